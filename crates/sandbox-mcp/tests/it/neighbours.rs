//! What one sandbox does to others: it may use up all that it has, and a second client hardly notices.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::sync::watch;

use crate::harness::{Client, Era, start_in};

/// Each uses up one thing, in a sandbox of its own, for about three seconds.
const EXHAUSTION: [&str; 5] = [
    "bomb() { bomb | bomb & }; bomb; sleep 3",
    "for i in 1 2 3 4; do (head -c 100000000 /dev/zero; sleep 3) | tail & done; wait",
    "for i in 1 2 3 4 5 6 7 8; do timeout 3 sh -c 'while :; do :; done' & done; wait",
    "timeout 3 yes some output that nobody wants to read",
    "for i in $(seq 100); do head -c 10000000 /dev/zero > $i || exit; done; rm -f *; sleep 1",
];
/// What may be lost to neighbours: this many times the quiet time, or this much.
const TIMES: u32 = 3;
const AT_LEAST: Duration = Duration::from_millis(25);
/// Other programs of this machine have their moments, so quiet and loud times take turns, and the middle ones count.
const TURNS: usize = 5;
/// A machine may be busy with others all the time.
const ATTEMPTS: usize = 3;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures time, so it needs the machine to itself: ./test --full runs it alone"]
async fn a_second_client_is_served_while_sandboxes_exhaust_everything() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = Arc::new(start_in(folder.path(), Era::Legacy, &[]).await);
    let client = start_in(folder.path(), Era::Legacy, &[]).await;
    let session = client.sandbox().await;
    // The first commands pay for what is made once.
    slowest(&client, &session, Duration::from_secs(1)).await;
    let (switch, on) = watch::channel(false);
    for script in EXHAUSTION {
        tokio::spawn(exhaust(hostile.clone(), script, on.clone()));
    }
    let mut held = false;
    for _ in 0..ATTEMPTS {
        let (quiet, loud) = compare(&client, &session, &switch).await;
        held = loud <= AT_LEAST.max(quiet * TIMES);
        if held {
            break;
        }
    }
    assert!(held, "the second client had to wait in each of {ATTEMPTS} attempts, see above");
    hostile.still_works().await;
}

/// What commands take when all is quiet, and when it is not.
async fn compare(client: &Client, session: &str, switch: &watch::Sender<bool>) -> (Duration, Duration) {
    let (mut quiet, mut loud) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        quiet.push(slowest(client, session, Duration::from_secs(1)).await);
        switch.send_replace(true);
        tokio::time::sleep(Duration::from_millis(300)).await;
        loud.push(slowest(client, session, Duration::from_millis(2500)).await);
        switch.send_replace(false);
        // Until what was started has ended.
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    eprintln!("95 of 100 commands took at most {quiet:.1?}, and {loud:.1?} among sandboxes that exhaust everything");
    (middle(quiet), middle(loud))
}

/// Starts it again and again while it is wanted, each time in a new sandbox: some leave much running.
async fn exhaust(hostile: Arc<Client>, script: &str, mut on: watch::Receiver<bool>) {
    while on.wait_for(|on| *on).await.is_ok() {
        let limits = json!({"limits": {"memory": "256MiB", "disk": "256MiB", "pids": 128, "cpus": 2}});
        let session = hostile.sandbox_with(limits).await;
        let command = json!({"session_id": session, "command": script, "timeout": 4});
        drop(hostile.call("run_command", command).await);
        drop(hostile.call("cleanup_session", json!({"session_id": session})).await);
    }
}

/// What 95 of 100 commands take at most, one after the other.
async fn slowest(client: &Client, session: &str, time: Duration) -> Duration {
    let until = Instant::now() + time;
    let mut times = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        assert_eq!(client.output(session, "echo served").await, "served\n");
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    times.sort();
    times[(times.len() * 95 / 100).min(times.len() - 1)]
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
