//! Disguises of blocked commands, run for real where the level removes denied programs: each ends refused or without
//! effect. How many are refused before they run is reported. `./test --full` tries a thousand.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};

use crate::{
    disguise::{Disguise, Harm, Targets, disguises},
    harness::{Client, start},
};

/// How many there are, if not [`USUAL`].
const VARIABLE: &str = "SANDBOX_TESTS_DISGUISES";
const USUAL: usize = 200;
const SEED: u64 = 7;
/// Sandboxes that share the work.
const WORKERS: usize = 2;

/// What would be different in a sandbox if a blocked command had worked in it.
const STATE: &str = "cat /proc/self/mountinfo /proc/modules 2>/dev/null | md5sum; readlink /proc/self/ns/mnt; \
    find /dev /workspace /tmp /home -xdev -type b 2>/dev/null; find / -xdev -type s 2>/dev/null | head -3; \
    ls -ldn / /usr /usr/bin /etc /etc/passwd /bin/ /lib/ | md5sum; ls /usr /usr/bin /etc | md5sum; id -u";

#[derive(Default)]
struct Tally {
    refused: usize,
    without_effect: usize,
    harmful: Vec<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn disguises_of_blocked_commands_gain_nothing() {
    let count = std::env::var(VARIABLE).ok().and_then(|count| count.parse().ok()).unwrap_or(USUAL);
    let (targets, reached) = listener();
    let all = Arc::new(disguises(SEED, count, &targets));
    assert_eq!(all.len(), count);
    let client = Arc::new(start().await);
    let next = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> =
        (0..WORKERS).map(|_| tokio::spawn(work(client.clone(), all.clone(), next.clone(), reached.clone()))).collect();
    let mut sum = Tally::default();
    for worker in workers {
        let tally = worker.await.unwrap();
        sum.refused += tally.refused;
        sum.without_effect += tally.without_effect;
        sum.harmful.extend(tally.harmful);
    }
    println!(
        "of {count} disguises {} were refused early with a reason, {} ran without effect, {} had one",
        sum.refused,
        sum.without_effect,
        sum.harmful.len()
    );
    assert_eq!(sum.refused + sum.without_effect + sum.harmful.len(), count);
    assert!(sum.harmful.is_empty(), "{:#?}", sum.harmful);
    assert!(sum.refused * 100 >= count * 60, "only {} were refused early", sum.refused);
    assert_eq!(reached.load(Ordering::Relaxed), 0, "the listener outside was reached");
}

async fn work(
    client: Arc<Client>,
    all: Arc<Vec<Disguise>>,
    next: Arc<AtomicUsize>,
    reached: Arc<AtomicUsize>,
) -> Tally {
    let created = client.ok("create_sandbox", json!({"policy": "yolo-1"})).await;
    let session = created["session_id"].as_str().unwrap().to_owned();
    let before = client.output(&session, STATE).await;
    let mut tally = Tally::default();
    while let Some(disguise) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
        let asked = json!({"session_id": session, "command": disguise.text, "timeout": 30, "wait_seconds": 40});
        let answer = client.call("run_command", asked).await;
        if answer.value["status"] == "denied" {
            assert!(answer.value["denials"][0]["message"].as_str().is_some_and(|why| why.len() > 20), "{answer:?}");
            tally.refused += 1;
            continue;
        }
        let after = client.output(&session, STATE).await;
        let touched = reached.load(Ordering::Relaxed) > 0;
        match after != before || touched || became_root(disguise, &answer.value) {
            true => tally.harmful.push(format!("{:?} {}: {} → {}", disguise.harm, disguise.text, before, after)),
            false => tally.without_effect += 1,
        }
        client.output(&session, "rm -rf /tmp/* /workspace/* 2>/dev/null; true").await;
    }
    tally
}

/// Whether `id` said so, where that is what the command would have done.
fn became_root(disguise: &Disguise, answer: &Value) -> bool {
    let outputs: BTreeMap<&str, &str> =
        ["stdout", "stderr"].into_iter().map(|name| (name, answer[name].as_str().unwrap_or_default())).collect();
    let root = |line: &str| line.trim() == "0" || line.contains("uid=0");
    matches!(disguise.harm, Harm::Root | Harm::Mounts) && outputs["stdout"].lines().any(root)
}

/// A listener of our own, outside, and how often it was reached.
fn listener() -> (Targets, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let targets = Targets { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
    let reached = Arc::new(AtomicUsize::new(0));
    let count = reached.clone();
    std::thread::spawn(move || {
        while listener.accept().is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    (targets, reached)
}
