//! A server that is killed at every step of making and removing a container leaves nothing: the next one finds what is there,
//! and removes what nobody owns. Runs against `SANDBOX_TEST_ENGINE`, as the conformance suite does.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use sandbox_core::{Backend, Image, Policy, SandboxSpec, SessionId, UserId, exec::Exec};
use sandbox_docker::{DockerBackend, Options};
use sandbox_executor::client::Client;

/// Steps at which a server is killed, in order.
const STEPS: [&str; 9] = [
    "folder_made",
    "before_create",
    "created",
    "started",
    "before_boot",
    "booted",
    "container_removed",
    "volumes_removed",
    "nothing",
];
/// Says that this process is the one that is killed, and where its state is.
const VICTIM: &str = "SANDBOX_TEST_VICTIM";
const DIE_AT: &str = "SANDBOX_MCP_DOCKER_DIE_AT";

fn main() {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(engine) = variable("SANDBOX_TEST_ENGINE") else {
        println!("skipped: SANDBOX_TEST_ENGINE names no engine (tests/engines/run starts some)");
        return;
    };
    let image = variable("SANDBOX_TEST_IMAGE").expect("SANDBOX_TEST_IMAGE names an image");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let backend = |state: &Path| {
        let options = Options { address: Some(engine.clone()), image: image.parse().ok() };
        DockerBackend::new(state, options).expect("the backend starts")
    };
    if let Some(state) = variable(VICTIM) {
        return runtime.block_on(live_and_die(&backend(state.as_ref())));
    }
    let mut failed = 0;
    for step in STEPS {
        let outcome = std::panic::catch_unwind(|| {
            let folder = tempfile::tempdir().expect("a folder");
            let state = folder.path().join("state");
            fs::DirBuilder::new().mode(0o700).create(&state).expect("a folder for the state");
            let status =
                Command::new("/proc/self/exe").env(VICTIM, &state).env(DIE_AT, step).status().expect("a victim");
            assert!(status.success() == (step == "nothing"), "it was to die at {step}: {status}");
            runtime.block_on(nothing_is_left(&backend(&state), &state));
        });
        println!("test killed at {step} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        failed += i32::from(outcome.is_err());
    }
    std::process::exit(i32::from(failed > 0));
}

async fn live_and_die(backend: &DockerBackend) {
    let owner = UserId::local();
    let spec = SandboxSpec {
        id: SessionId::random(&owner).expect("an id"),
        owner,
        image: Image::Host,
        policy: Policy::default(),
        persistent: false,
        env: Default::default(),
        certificates: None,
        tools: Vec::new(),
    };
    let sandbox = backend.create(&spec).await.expect("a sandbox");
    let client = Client::connect(sandbox.connect().await.expect("a connection")).await.expect("a connection");
    drop(client.spawn(&Exec::shell("sleep 1000")).await.expect("a command"));
    sandbox.destroy().await.expect("removed");
}

/// What lives is adopted and can be used, and then removed; everything else is gone.
async fn nothing_is_left(backend: &DockerBackend, state: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let recovered = backend.recover().await.expect("recovered");
        for sandbox in &recovered.alive {
            if let Ok(channel) = sandbox.connect().await {
                let client = Client::connect(channel).await.expect("a connection");
                assert_eq!(client.jobs().await.expect("jobs").iter().filter(|job| job.exit.is_none()).count(), 0);
            }
            sandbox.destroy().await.expect("removed");
        }
        let left = recovered.alive.len() + recovered.ended.len() + recovered.removed.len();
        let folders = fs::read_dir(state.join("sandboxes")).expect("the folder").count();
        if left == 0 && folders == 0 {
            return;
        }
        // One that ended before anybody was told of it has its folder until somebody removes that.
        for id in &recovered.ended {
            let _ = fs::rename(state.join("sandboxes").join(id.as_str()), state.join("trash").join(id.as_str()));
        }
        assert!(Instant::now() < end, "{left} things and {folders} folders are left: {:?}", recovered.removed);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
