//! Commands that try to hold up the executor, or to get away from it.

use std::time::{Duration, Instant};

use sandbox_core::{
    Control,
    exec::{Exec, Exit},
};
use sandbox_executor::{
    client::ClientError,
    protocol::{Reason, Target},
};

use crate::harness::{Carrier, Outcome, Program, on_both};

/// Stops every third new child of the executor before its program runs, as far as it is fast enough.
const STOPPER: &str = r#"
import os, signal, time
boss, me = os.getppid(), os.getpid()
children, done = f"/proc/{boss}/task/{boss}/children", {me}
print("ready", flush=True)
end = time.time() + 20
while time.time() < end:
    for pid in map(int, open(children).read().split()):
        if pid in done: continue
        done.add(pid)
        if len(done) % 3: continue
        try:
            os.kill(pid, signal.SIGSTOP)
            while ") T" not in (stat := open(f"/proc/{pid}/stat").read()) and ") Z" not in stat: pass
            if "sandbox-exec" not in stat: os.kill(pid, signal.SIGCONT)
        except OSError: pass
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_a_process_before_its_program_runs_does_not_stop_the_executor() {
    let program = Program::start(Carrier::Local, |_| {}).await;
    let mut stopper = program.client.spawn(&Exec::argv(["python3", "-c", STOPPER])).await.unwrap();
    stopper.next().await.unwrap();
    let run = |client: sandbox_executor::client::Client| async move {
        match client.spawn(&Exec::argv(["echo", "done"])).await {
            Ok(follow) => Ok(Outcome::of(follow).await),
            Err(error) => Err(error),
        }
    };
    let (mut finished, mut held_up, mut slowest) = (0, 0, Duration::ZERO);
    // It has to be quicker than a process that starts, which a busy machine may take some rounds for.
    for _ in 0..10 {
        let begun = Instant::now();
        let running: Vec<_> = (0..50).map(|_| tokio::spawn(run(program.client.clone()))).collect();
        while running.iter().any(|one| !one.is_finished()) {
            assert!(begun.elapsed() < Duration::from_secs(15), "starting hangs");
            let asked = Instant::now();
            tokio::time::timeout(Duration::from_secs(3), program.client.jobs()).await.expect("it hangs").unwrap();
            slowest = slowest.max(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for one in running {
            match one.await.unwrap() {
                Ok(outcome) => {
                    assert_eq!((outcome.text(), outcome.exit), ("done\n", Some(Exit::Code(0))));
                    finished += 1;
                }
                Err(ClientError::Refused(failure)) => {
                    assert_eq!(failure.reason, Reason::System);
                    assert!(failure.what.contains("was not started within 5 s"), "{}", failure.what);
                    held_up += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        if held_up > 0 {
            break;
        }
    }
    assert!(finished > 0, "nothing else finished");
    assert!(held_up > 0, "nobody was caught, so nothing was tried");
    println!("{finished} finished, {held_up} held up, slowest answer {slowest:?}");
    program.client.signal(Target::Job(stopper.job()), 9).await.unwrap();
    assert_eq!(program.run("echo again").await.text(), "again\n");
    assert_eq!(program.client.usage().await.unwrap().processes, 0, "what was held up is gone");
    assert_eq!(program.client.jobs().await.unwrap().len(), finished + 2, "and is no job");
}

/// Takes off its mark, its session, its group and its parent, says which process it is now, and stays.
const LEAVER: &str = r#"
import os, resource, time
resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("leaver", "w").write(str(os.getpid()))
        time.sleep(60)
    os._exit(0)
time.sleep(60)
"#;

#[tokio::test]
async fn a_command_that_takes_off_its_mark_is_still_ended_by_its_time_limit() {
    on_both(async |program| {
        let other = program.client.spawn(&Exec::shell("(setsid sleep 4; echo whole) & wait")).await.unwrap();
        let left = program.run("setsid sleep 20 >/dev/null 2>&1 & echo $!").await;
        let mut exec = Exec::argv(["python3", "-c", LEAVER]);
        exec.timeout = Some(Duration::from_millis(700));
        assert_eq!(program.exec(&exec).await.exit, Some(Exit::Limit(Control::Time)));
        let leaver = std::fs::read_to_string(program.workspace().join("leaver")).unwrap();
        let begun = Instant::now();
        while is_alive(&leaver) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it got away");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(is_alive(left.text().trim()), "what an earlier command left running is not touched");
        assert_eq!(Outcome::of(other).await.text(), "whole\n", "another job is not touched");
        program.client.signal(Target::All, 9).await.unwrap();
    })
    .await;
}

fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

/// Its first thread ends, which makes it look dead; another one goes on.
const PRETENDER: &str = r#"
import ctypes, os, platform, threading, time
def go_on():
    while True:
        open("beat", "w").write("x")
        time.sleep(0.02)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(platform.machine(), 93), 0)
"#;

#[tokio::test]
async fn a_command_whose_first_thread_has_ended_is_still_ended() {
    on_both(async |program| {
        let mut exec = Exec::argv(["python3", "-c", PRETENDER]);
        exec.timeout = Some(Duration::from_millis(700));
        let outcome = program.exec(&exec).await;
        assert_eq!(outcome.exit, Some(Exit::Limit(Control::Time)), "{outcome:?}");
        assert!(outcome.elapsed < Duration::from_secs(20), "{outcome:?}");
        assert!(program.workspace().join("beat").exists());
    })
    .await;
}
