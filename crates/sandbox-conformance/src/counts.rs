//! What the kernel counts for a user and not for a sandbox: a sandbox cannot use it up.

use std::time::Duration;

use sandbox_core::{Control, exec::Exec};

use crate::workbench::{Outcome, Workbench, has_own_kernel, run, sh};

pub async fn watches_of_files_are_not_used_up(bench: Workbench) {
    if is_alone(&bench).await {
        return;
    }
    let script = r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
made = []
while len(made) < 5000:
    one = libc.inotify_init1(0)
    if one < 0: break
    made.append(one)
print(len(made))
"#;
    // Where the commands' user is somebody outside too, it is said.
    let (sandbox, _client) = bench.sandbox().await;
    let by = &sandbox.facts().enforcement.0[&Control::ExecutorIdentity].by;
    if by.contains("share the commands' user, for whom the kernel counts watches") {
        return;
    }
    let count = number(&bench, script).await;
    let of_user = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
    let of_user: u64 = of_user.trim().parse().unwrap();
    assert!(count > 0 && count <= of_user.div_ceil(4).max(4), "{count} of the user's {of_user} instances");
    let (_sandbox, client) = bench.sandbox().await;
    let watches = sh(&client, "cat /proc/sys/user/max_inotify_watches").await.text();
    assert!(watches.parse::<u64>().unwrap() <= 65_536, "{watches} watches");
}

pub async fn the_queue_of_signals_is_not_used_up(bench: Workbench) {
    if is_alone(&bench).await {
        return;
    }
    // Blocked, so that they wait; each with a value of its own.
    let script = r#"
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
count = 0
while count < 50000 and libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), ctypes.c_void_p(count)) == 0: count += 1
print(count)
"#;
    let count = number(&bench, script).await;
    assert!((100..5000).contains(&count), "{count} signals wait");
}

pub async fn terminals_are_not_used_up(bench: Workbench) {
    let script = r#"
import os
made = []
try:
    while len(made) < 5000: made.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
except OSError: pass
print(len(made))
"#;
    let count = number(&bench, script).await;
    assert!(count > 0 && count <= bench.subject.terminals, "{count} terminals");
}

pub async fn message_queues_are_not_used_up(bench: Workbench) {
    let script = r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(sum(libc.mq_open(b'/queue%d' % n, 0o102, 0o600, None) >= 0 for n in range(300)))
"#;
    assert_eq!(number(&bench, script).await, 0, "queues were made");
}

/// Whether sandboxes have a kernel of their own, which counts for nobody else.
async fn is_alone(bench: &Workbench) -> bool {
    let (sandbox, _client) = bench.sandbox().await;
    has_own_kernel(sandbox.as_ref())
}

async fn number(bench: &Workbench, script: &str) -> u64 {
    let (_sandbox, client) = bench.sandbox().await;
    let outcome = python(&client, script).await;
    outcome.text().parse().unwrap_or_else(|_| panic!("{outcome:?}"))
}

async fn python(client: &sandbox_executor::client::Client, script: &str) -> Outcome {
    let mut exec = Exec::argv(["python3", "-c", script]);
    exec.timeout = Some(Duration::from_secs(60));
    run(client, &exec).await
}
