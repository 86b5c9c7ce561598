//! Commands: how they start, speak, listen and end.

use std::time::{Duration, Instant};

use sandbox_core::{
    Control,
    exec::{Exec, Exit, Stdin, TerminalSize},
};
use sandbox_executor::{
    client::{InputEnd, JobEvent, Until},
    protocol::Target,
};

use crate::workbench::{Workbench, collect, connect, run, sh};

pub async fn a_command_runs_and_its_output_comes_back(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let outcome = sh(&client, "echo hello").await;
    assert_eq!((outcome.exit, outcome.text().as_str()), (Exit::Code(0), "hello"));
}

pub async fn standard_error_is_apart(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let outcome = sh(&client, "echo out; echo err >&2").await;
    assert_eq!((&*outcome.stdout, &*outcome.stderr), (&b"out\n"[..], &b"err\n"[..]));
}

pub async fn exit_codes_and_signals_are_told_apart(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    assert_eq!(sh(&client, "exit 7").await.exit, Exit::Code(7));
    assert_eq!(sh(&client, "kill -TERM $$").await.exit, Exit::Signal(15));
    assert_eq!(sh(&client, "kill -KILL $$").await.exit, Exit::Signal(9));
}

pub async fn input_reaches_a_command(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let mut exec = Exec::argv(["cat"]);
    exec.stdin = Stdin::Piped;
    let follow = client.spawn(&exec).await.unwrap();
    client.input(follow.job(), b"one ", InputEnd::Keep).await.unwrap();
    client.input(follow.job(), b"two", InputEnd::Close).await.unwrap();
    assert_eq!(collect(follow).await.text(), "one two");
    assert_eq!(run(&client, &Exec::argv(["cat"])).await.text(), "", "without input a command reads end of file");
}

pub async fn variables_and_folder_are_as_asked(bench: Workbench) {
    assert!(std::env::var_os(crate::SECRET).is_some(), "whoever runs this suite sets {}", crate::SECRET);
    let (_sandbox, client) = bench.sandbox().await;
    let mut exec = Exec::shell(format!("pwd; echo $COLOUR; echo $HOME; id -u; env | grep -c {}", crate::SECRET));
    exec.env.insert("COLOUR".into(), "blue".into());
    exec.cwd = Some("/tmp".into());
    assert_eq!(run(&client, &exec).await.text(), "/tmp\nblue\n/home/sandbox\n1000\n0");
    assert_eq!(sh(&client, "pwd").await.text(), "/workspace");
}

pub async fn binary_output_is_untouched(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let outcome = sh(&client, r"printf '\000\377\n\033'").await;
    assert_eq!(outcome.stdout, [0, 255, b'\n', 27]);
}

pub async fn a_gigabyte_of_output_goes_through(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let mut follow = client.spawn(&Exec::shell("head -c 1073741824 /dev/zero; echo end")).await.unwrap();
    let (mut end, mut seen) = (0, 0);
    loop {
        match follow.next().await.unwrap() {
            JobEvent::Output { offset, data, .. } => {
                seen += data.len() as u64;
                end = offset + data.len() as u64;
            }
            JobEvent::Gap { to, .. } => end = to,
            JobEvent::Exited { exit, .. } => break assert_eq!(exit, Exit::Code(0)),
            JobEvent::Current => {}
        }
    }
    assert_eq!(end, (1 << 30) + 4, "offsets count all that was printed");
    assert!(seen >= 4 << 20, "at least the bound of the history arrives: {seen}");
}

pub async fn a_job_outlives_its_connection(bench: Workbench) {
    let (sandbox, client) = bench.sandbox().await;
    let job = client.spawn(&Exec::shell("echo first; sleep 0.3; echo second")).await.unwrap().job();
    drop(client);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let client = connect(sandbox.as_ref()).await;
    let follow = client.attach(job, 0, Until::Exit).await.unwrap();
    assert_eq!(collect(follow).await.text(), "first\nsecond");
    let follow = client.attach(job, 6, Until::Exit).await.unwrap();
    assert_eq!(collect(follow).await.text(), "second");
}

pub async fn a_terminal_has_a_size_and_is_resized(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let mut exec = Exec::shell("stty size; read line; stty size; test -t 0 && test -t 1 && echo terminal");
    exec.terminal = Some(TerminalSize { rows: 30, columns: 100 });
    exec.stdin = Stdin::Piped;
    let follow = client.spawn(&exec).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.resize(follow.job(), TerminalSize { rows: 40, columns: 120 }).await.unwrap();
    client.input(follow.job(), b"\n", InputEnd::Keep).await.unwrap();
    let text = collect(follow).await.text();
    for part in ["30 100", "40 120", "terminal"] {
        assert!(text.contains(part), "{part} in {text:?}");
    }
}

pub async fn twenty_commands_run_at_once(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let start = Instant::now();
    let commands = (0..20).map(|number| {
        let client = client.clone();
        tokio::spawn(async move { sh(&client, &format!("sleep 0.5; echo {number}")).await.text() })
    });
    let commands: Vec<_> = commands.collect();
    for (number, command) in commands.into_iter().enumerate() {
        assert_eq!(command.await.unwrap(), number.to_string());
    }
    assert!(start.elapsed() < Duration::from_secs(8), "they ran one after the other: {:?}", start.elapsed());
}

pub async fn a_missing_program_is_named(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let Err(error) = client.spawn(&Exec::argv(["no-such-program"])).await else { panic!("it started") };
    assert!(error.to_string().contains("no-such-program"), "{error}");
}

pub async fn a_whole_tree_is_killed_also_a_daemon(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let follow =
        client.spawn(&Exec::shell("setsid sh -c 'setsid sleep 1000 & sleep 1000' & sleep 1000 & wait")).await.unwrap();
    let sleeping = || async { sh(&client, "pgrep -c sleep").await.text() };
    for _ in 0..50 {
        if sleeping().await == "3" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(sleeping().await, "3");
    client.signal(Target::Job(follow.job()), 9).await.unwrap();
    assert_eq!(collect(follow).await.exit, Exit::Signal(9));
    assert_eq!(sleeping().await, "0");
}

pub async fn who_ignores_sigterm_is_killed_at_the_deadline(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let mut exec = Exec::shell("trap '' TERM; while :; do sleep 1; done");
    exec.timeout = Some(Duration::from_millis(300));
    let start = Instant::now();
    assert_eq!(run(&client, &exec).await.exit, Exit::Limit(Control::Time));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
