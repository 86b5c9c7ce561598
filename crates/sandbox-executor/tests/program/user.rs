//! Commands as another user than the executor. Only root can start such an executor without a sandbox.

use std::{
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        process::ExitStatusExt,
    },
    time::{Duration, Instant},
};

use sandbox_core::exec::{Exec, Exit};
use sandbox_executor::{
    boot::Identity,
    protocol::{NewFile, Reason, Target},
};

use crate::harness::{Carrier, Program, reason};

/// Nobody's, so that its processes can be counted.
const USER: u32 = 61_234;

async fn start(pids: Option<u32>) -> Option<Program> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return None;
    }
    let change = |boot: &mut sandbox_executor::boot::Boot| {
        boot.user = Identity::Drop { uid: USER, gid: USER };
        boot.pids = pids;
        boot.die_with_parent = true;
        let workspace = std::path::Path::new(&boot.workspace);
        chown(workspace, Some(USER), Some(USER)).unwrap();
        std::fs::set_permissions(workspace.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    };
    Some(Program::start(Carrier::Local, change).await)
}

#[tokio::test]
async fn commands_and_files_have_exactly_the_users_rights() {
    let Some(program) = start(None).await else { return };
    let workspace = program.workspace();
    let outcome =
        program.run("id -u; id -G; grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status | cut -f2 | sort -u").await;
    assert_eq!(outcome.text(), format!("{USER}\n{USER}\n0000000000000000\n"));
    assert_ne!(program.run("cat /proc/$PPID/environ").await.exit, Some(Exit::Code(0)), "our memory is hidden");
    assert_eq!(program.run("cat /proc/self/oom_score_adj").await.text(), "500\n");

    std::fs::write(workspace.join("roots"), "secret").unwrap();
    std::fs::set_permissions(workspace.join("roots"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(reason(program.client.read(&b"roots".into(), 0, None).await), Reason::Denied);
    let mut writer = program.client.write().await.unwrap();
    writer.begin(&NewFile { path: b"new/file".into(), mode: Some(0o640) }).await.unwrap();
    writer.finish().await.unwrap();
    for name in ["new", "new/file"] {
        let metadata = std::fs::metadata(workspace.join(name)).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (USER, USER));
    }
    let closed = Exec::shell("mkdir closed && touch closed/in && chmod 0 closed");
    assert_eq!(program.exec(&closed).await.exit, Some(Exit::Code(0)));
    program.client.remove(&b"closed".into()).await.unwrap();
}

#[tokio::test]
async fn a_fork_bomb_can_be_ended_and_does_not_stop_us() {
    let Some(program) = start(Some(60)).await else { return };
    let follow = program.client.spawn(&Exec::argv(["perl", "-e", "fork while 1"])).await.unwrap();
    let started = Instant::now();
    while program.client.usage().await.unwrap().processes < 50 {
        assert!(started.elapsed() < Duration::from_secs(10), "the bomb does not go off");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    program.client.list(&b".".into(), 1, 10).await.unwrap();
    program.client.signal(Target::Job(follow.job()), 9).await.unwrap();
    assert_eq!(program.client.usage().await.unwrap().processes, 0);
    assert_eq!(program.run("echo again").await.text(), "again\n");
}

#[test]
fn becoming_the_user_does_not_undo_dying_with_the_parent() {
    let starter = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(start(None))
    });
    let Some(mut program) = starter.join().unwrap() else { return };
    let begun = Instant::now();
    let status = loop {
        match program.child.try_wait().unwrap() {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it lives on without its parent");
    };
    assert_eq!(status.signal(), Some(9));
}
