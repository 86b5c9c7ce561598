//! One command on the program's own streams.

use std::{fs::File, io::Read, os::unix::process::ExitStatusExt, process::Stdio, time::Duration};

use sandbox_core::{
    Control,
    exec::{Exec, Exit},
};
use sandbox_executor::boot::{Attachment, BootReport};

use crate::harness::{boot, launch};

fn run(exec: Exec) -> (String, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let mut boot = boot(folder.path());
    boot.attachment = Attachment::Single(Box::new(exec));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let null = File::open("/dev/null").unwrap();
    let mut child = launch(folder.path(), &boot, null.into(), writer.into(), Stdio::null());
    let mut output = String::new();
    reader.read_to_string(&mut output).unwrap();
    child.wait().unwrap();
    (output, std::fs::read(folder.path().join("status")).unwrap())
}

fn exit(status: &[u8]) -> Exit {
    rmp_serde::from_slice(status).unwrap()
}

#[test]
fn a_single_command_has_our_streams_and_its_end_is_told() {
    let (output, status) = run(Exec::shell("echo $GREETING; (setsid sleep 30 >/dev/null &) ; exit 9"));
    assert_eq!((output.as_str(), exit(&status)), ("hello\n", Exit::Code(9)));
    let (_, status) = run(Exec::shell("kill -9 $$"));
    assert_eq!(exit(&status), Exit::Signal(9));
}

#[test]
fn a_single_command_is_stopped_in_time() {
    let mut exec = Exec::shell("sleep 30");
    exec.timeout = Some(Duration::from_millis(100));
    assert_eq!(exit(&run(exec).1), Exit::Limit(Control::Time));
}

#[test]
fn a_single_command_that_cannot_start_ends_as_shells_have_it() {
    assert_eq!(exit(&run(Exec::argv(["no-such-program"])).1), Exit::Code(127));
    assert_eq!(exit(&run(Exec::argv(["/etc/passwd"])).1), Exit::Code(126));
    let report: BootReport = rmp_serde::from_slice(&run(Exec::argv([""])).1).unwrap();
    assert!(matches!(report, BootReport::Failed(why) if why.contains("no program")));
}

#[test]
fn a_single_command_dies_with_the_thread_that_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut boot = boot(folder.path());
    boot.attachment = Attachment::Single(Box::new(Exec::shell("echo started; exec sleep 20")));
    boot.die_with_parent = true;
    let starter = std::thread::spawn(move || {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let null = File::open("/dev/null").unwrap();
        let child = launch(folder.path(), &boot, null.into(), writer.into(), Stdio::null());
        reader.read_exact(&mut [0; 8]).unwrap();
        child
    });
    assert_eq!(starter.join().unwrap().wait().unwrap().signal(), Some(9));
}
