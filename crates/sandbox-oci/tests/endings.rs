//! Whoever is killed leaves nothing: the server at every moment of making and removing a sandbox, and the keeper. And nobody
//! inside is taken for the executor.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

mod support;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_core::{Backend, Image, Policy, Sandbox, SandboxSpec, SessionId, UserId, exec::Exec, policy::User};
use sandbox_executor::client::Client;
use sandbox_oci::OciBackend;

const SECRET: &str = "SECRET_OF_THE_SERVER";
/// Names the state folder for a process that makes and removes sandboxes until it is killed.
const VICTIM: &str = "SANDBOX_TESTS_VICTIM";
/// Milliseconds after which one is killed.
const MOMENTS: [u64; 14] = [1, 10, 20, 35, 50, 70, 90, 120, 150, 190, 240, 300, 380, 500];

fn main() {
    // Sandboxes that nobody looks after end soon.
    let lease = ("SANDBOX_MCP_LEASE_SECONDS", "2");
    if std::env::var_os(SECRET).is_some() && std::env::var_os(lease.0).is_none() {
        let status = Command::new("/proc/self/exe").env(lease.0, lease.1).status().expect("starting again");
        std::process::exit(status.code().unwrap_or(1));
    }
    if let Some(state) = std::env::var_os(VICTIM)
        && std::env::args().next().is_some_and(|name| !name.starts_with("sandbox-"))
    {
        return be_victim(Path::new(&state));
    }
    let Some(stage) = support::begin(SECRET) else { return };
    let (state, backend) = (stage.state(), stage.backend());
    let failed = stage.runtime().block_on(async {
        let mut failed = Vec::new();
        kill_servers(&state);
        let recovered = backend.recover().await.expect("recovered");
        println!(
            "{} found alive, {} ended, removed {:?}",
            recovered.alive.len(),
            recovered.ended.len(),
            recovered.removed
        );
        for sandbox in recovered.alive {
            if sandbox.destroy().await.is_err() {
                failed.push("one that was found again cannot be removed".to_owned());
            }
        }
        failed.extend(left(&state, "servers that were killed").await);
        kill_keeper(&backend, &state).await;
        failed.extend(left(&state, "a keeper that was killed").await);
        failed.extend(strangers_at_the_door(&backend).await);
        failed
    });
    failed.iter().for_each(|what| println!("{what}"));
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!("test result: {word}. {} passed; {} failed", 3 - failed.len().min(3), failed.len());
    stage.end(failed.len())
}

fn be_victim(state: &Path) {
    let wanted = std::env::var("SANDBOX_TESTS_OCI_RUNTIME").unwrap_or_else(|_| "runsc".to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let backend = OciBackend::new(state, Some(&wanted), Default::default()).expect("the backend starts");
        loop {
            let sandbox = backend.create(&spec()).await.expect("made");
            sandbox.destroy().await.expect("removed");
        }
    });
}

fn spec() -> SandboxSpec {
    let owner = UserId::local();
    let id = SessionId::random(&owner).expect("an id");
    let (policy, env) = (Policy::default(), Default::default());
    SandboxSpec { id, owner, image: Image::Host, policy, persistent: false, env, certificates: None, tools: Vec::new() }
}

fn kill_servers(state: &Path) {
    for moment in MOMENTS {
        let mut victim = Command::new("/proc/self/exe")
            .env(VICTIM, state)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("a victim");
        std::thread::sleep(Duration::from_millis(moment));
        victim.kill().expect("killed");
        victim.wait().expect("gone");
    }
}

async fn kill_keeper(backend: &OciBackend, state: &Path) {
    let sandbox: Arc<dyn Sandbox> = backend.create(&spec()).await.expect("made");
    let folder = state.join("sandboxes").join(sandbox.facts().spec.id.as_str());
    let note = fs::read_to_string(folder.join("lock")).expect("who keeps it");
    let keeper = note.split(' ').next().expect("a number");
    Command::new("kill").args(["-9", keeper]).status().expect("killed");
    tokio::time::timeout(Duration::from_secs(10), sandbox.ended()).await.expect("its end is noticed");
    assert!(sandbox.connect().await.is_err(), "it still answers");
    sandbox.destroy().await.expect("removed");
}

/// Commands that have the executor's user fill the keeper's socket with connections of their own: servers are still given
/// the executor's.
async fn strangers_at_the_door(backend: &OciBackend) -> Option<String> {
    let script = "import socket, time
held = []
while True:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        try:
            stranger = socket.socket(socket.AF_UNIX, kind); stranger.connect('/.sandbox/door')
            stranger.send(b'x' * 32); held = held[-40:] + [stranger]
        except OSError:
            pass
    time.sleep(0.01)";
    let mut spec = spec();
    spec.policy.privileges.user = User::Root;
    let sandbox = backend.create(&spec).await.expect("made");
    let client = connect(&*sandbox).await.expect("connected");
    let _posing = client.spawn(&Exec::argv(["python3", "-c", script])).await.expect("started");
    let mut wrong = None;
    for round in 0..10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let asked = async { connect(&*sandbox).await?.stat(&"/workspace".into()).await.ok() };
        if !matches!(tokio::time::timeout(Duration::from_secs(12), asked).await, Ok(Some(_))) {
            wrong = Some(format!("somebody else answered for the executor, or it was not reached, in round {round}"));
            break;
        }
    }
    sandbox.destroy().await.expect("removed");
    wrong
}

async fn connect(sandbox: &dyn Sandbox) -> Option<Client> {
    Client::connect(sandbox.connect().await.ok()?).await.ok()
}

/// What is still there when all leases are over.
async fn left(state: &Path, after: &str) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let found = look(state);
        if found.is_empty() || Instant::now() > end {
            return found.into_iter().map(|what| format!("after {after}: {what}")).collect();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn look(state: &Path) -> Vec<String> {
    let own = fs::read_link("/proc/self/exe").expect("ourselves");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("processes").flatten() {
        let name = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if name.starts_with(b"sandbox-keeper") && fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == own) {
            found.push(format!("the keeper {}", entry.file_name().display()));
        }
    }
    for name in fs::read_dir(state.join("sandboxes")).expect("sandboxes").flatten().map(|entry| entry.file_name()) {
        let name = name.to_string_lossy().into_owned();
        let cgroups = Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-name", &name]).output();
        let cgroups = cgroups.map(|output| output.stdout).unwrap_or_default();
        if !cgroups.is_empty() {
            found.push(format!("cgroups {}", String::from_utf8_lossy(&cgroups).trim()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    found.extend(
        mounts.lines().filter(|line| line.contains(&*state.to_string_lossy())).map(|line| format!("mount {line}")),
    );
    found
}
