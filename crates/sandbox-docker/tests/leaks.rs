//! A server or an engine that is killed at any step of fetching an image, and of making and removing a container, leaves
//! nothing half there: the next server finds what is there, and removes what nobody owns.
//!
//! With `SANDBOX_TEST_ENGINE` only servers are killed. With `SANDBOX_TEST_ARCHIVE`, the root file system of a small image,
//! a Docker and a registry are started that can be killed too; that takes root.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

mod support;

use std::{
    collections::BTreeSet,
    fs,
    panic::AssertUnwindSafe,
    path::Path,
    process::{Child, Command},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use sandbox_core::{Backend, Policy, Reference, SandboxSpec, exec::Exec};
use sandbox_docker::{DockerBackend, Options};
use sandbox_executor::client::Client;
use support::{Dockerd, Registry, docker, publish, spec, state_in, things, variable, wait_until};
use tokio::runtime::Runtime;

/// Steps of fetching an image.
const FETCHING: [&str; 3] = ["before_fetch", "fetching", "fetched"];
/// Steps of making and removing a container, in order.
const LIVING: [&str; 9] = [
    "looking",
    "folder_made",
    "before_create",
    "created",
    "started",
    "before_boot",
    "booted",
    "container_removed",
    "volumes_removed",
];
/// Says that this process is the one that is killed, and where its state is.
const VICTIM: &str = "SANDBOX_TEST_VICTIM";
const DIE_AT: &str = "SANDBOX_MCP_DOCKER_DIE_AT";
const STOP_AT: &str = "SANDBOX_MCP_DOCKER_STOP_AT";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if let (Some(state), Some(engine), Some(image)) =
        (variable(VICTIM), variable("SANDBOX_TEST_ENGINE"), variable("SANDBOX_TEST_IMAGE"))
    {
        let image = image.parse().expect("the name of an image");
        return runtime.block_on(live(&backend(&engine, state.as_ref()), &image));
    }
    let mut failed = 0;
    if let Some(archive) = variable("SANDBOX_TEST_ARCHIVE") {
        failed += all_of_ours(&runtime, archive.as_ref());
    } else if let Some(engine) = variable("SANDBOX_TEST_ENGINE") {
        let image = variable("SANDBOX_TEST_IMAGE").expect("SANDBOX_TEST_IMAGE names an image");
        let stage = Stage { engine, image: image.parse().expect("the name of an image"), runtime: &runtime };
        for step in LIVING.into_iter().chain(["nothing"]) {
            failed += told(&format!("server killed at {step}"), || stage.kill_server(step));
        }
        failed += told("what ended was said to be removed and its files stayed", || stage.bury_what_ended());
        failed += told("another server removed what an image was looked into with", || stage.recover_beside("looking"));
        failed += told("programs were not seen and so not covered", || stage.remove_what_looks());
        failed += told("a container was started again and removed with its files", || stage.restart());
    } else {
        println!("skipped: SANDBOX_TEST_ENGINE names no engine (tests/engines/run starts some)");
    }
    std::process::exit(i32::from(failed > 0));
}

/// With an engine and a registry that are started and killed here.
fn all_of_ours(runtime: &Runtime, archive: &Path) -> u32 {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = Registry::start(folder.path(), false);
    let mut engine = Dockerd::start(&folder.path().join("docker"));
    let image = registry.image("leaks");
    publish(&engine.address(), archive, folder.path(), &image);
    let stage = Stage { engine: engine.address(), image, runtime };
    let mut failed = 0;
    for step in FETCHING {
        failed += told(&format!("server killed at {step}"), || {
            stage.forget_image();
            stage.kill_server(step);
        });
        failed += told(&format!("engine killed at {step}"), || {
            stage.forget_image();
            stage.kill_engine(step, &mut engine);
            assert_eq!(engine.half_fetched(), [""; 0], "of a fetch that was not completed");
        });
    }
    for step in LIVING {
        failed += told(&format!("engine killed at {step}"), || stage.kill_engine(step, &mut engine));
    }
    drop(engine);
    // What a killed engine left mounted.
    let _ = Command::new("sh")
        .args(["-c", "grep -o \" $0/[^ ]*\" /proc/self/mounts | sort -r | xargs -r umount -l"])
        .arg(folder.path())
        .status();
    failed
}

fn told(name: &str, test: impl FnOnce()) -> u32 {
    let began = Instant::now();
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(test));
    let word = if outcome.is_ok() { "ok" } else { "FAILED" };
    println!("test {name} ... {word} ({} ms)", began.elapsed().as_millis());
    u32::from(outcome.is_err())
}

fn backend(engine: &str, state: &Path) -> DockerBackend {
    let options = Options { address: Some(engine.to_owned()), image: None };
    DockerBackend::new(state, options).expect("the backend starts")
}

/// Where something is killed.
struct Stage<'a> {
    engine: String,
    image: Reference,
    runtime: &'a Runtime,
}

impl Stage<'_> {
    fn things(&self) -> BTreeSet<String> {
        self.runtime.block_on(things(&self.engine))
    }

    fn forget_image(&self) {
        let _ = std::panic::catch_unwind(|| docker(&self.engine, &["rmi", "--force", self.image.as_str()]));
    }

    fn victim(&self, state: &Path, variable: &str, step: &str) -> Child {
        let mut command = Command::new("/proc/self/exe");
        command.env(VICTIM, state).env(variable, step).env("SANDBOX_TEST_ENGINE", &self.engine);
        command.env("SANDBOX_TEST_IMAGE", self.image.as_str()).spawn().expect("a victim")
    }

    fn kill_server(&self, step: &str) {
        let folder = tempfile::tempdir().expect("a folder");
        let (state, before) = (state_in(folder.path()), self.things());
        let status = self.victim(&state, DIE_AT, step).wait().expect("its end");
        assert!(status.success() == (step == "nothing"), "it was to die at {step}: {status}");
        self.nothing_is_left(&state, &before);
    }

    /// The server waits there until the engine is dead, and goes on without it; both are started again.
    fn kill_engine(&self, step: &str, engine: &mut Dockerd) {
        let folder = tempfile::tempdir().expect("a folder");
        let (state, before) = (state_in(folder.path()), self.things());
        let mut victim = self.stopped_at(step, &state);
        engine.kill();
        kill_process(Pid::from_child(&victim), Signal::CONT).expect("it goes on");
        let status = victim.wait().expect("its end");
        assert!(status.code().is_some_and(|code| code <= 3), "without an engine it ended with {status}");
        engine.start_again();
        self.nothing_is_left(&state, &before);
    }

    /// As `rm` does it with a sandbox whose container was ended by somebody else.
    fn bury_what_ended(&self) {
        let folder = tempfile::tempdir().expect("a folder");
        let (state, before) = (state_in(folder.path()), self.things());
        let backend = backend(&self.engine, &state);
        self.runtime.block_on(async {
            let sandbox = backend.create(&spec(&self.image)).await.expect("a sandbox");
            let folder = state.join("sandboxes").join(sandbox.facts().spec.id.as_str());
            let container = sandbox_docker::container(&folder).expect("its container");
            docker(&self.engine, &["kill", &container]);
            sandbox_docker::bury(&folder).await.expect("buried");
            assert_eq!(&things(&self.engine).await, &before);
            sandbox_docker::bury(&folder).await.expect("twice is fine");
            sandbox.destroy().await.expect("and so is this");
        });
    }

    fn stopped_at(&self, step: &str, state: &Path) -> Child {
        let victim = self.victim(state, STOP_AT, step);
        let stat = format!("/proc/{}/stat", victim.id());
        let is_stopped = || fs::read_to_string(&stat).is_ok_and(|text| text.contains(") T "));
        wait_until(&format!("that it comes to {step}"), is_stopped);
        victim
    }

    /// A server that starts while another one makes a sandbox leaves that alone.
    fn recover_beside(&self, step: &str) {
        let folder = tempfile::tempdir().expect("a folder");
        let (state, before) = (state_in(folder.path()), self.things());
        let mut victim = self.stopped_at(step, &state);
        let recovered = self.runtime.block_on(backend(&self.engine, &state).recover()).expect("recovered");
        kill_process(Pid::from_child(&victim), Signal::CONT).expect("it goes on");
        assert!(victim.wait().expect("its end").success(), "after {:?} were removed", recovered.removed);
        assert!(recovered.removed.is_empty(), "{:?}", recovered.removed);
        self.nothing_is_left(&state, &before);
    }

    /// An engine says of a folder in a container that is gone what it says of a folder that never was.
    fn remove_what_looks(&self) {
        let folder = tempfile::tempdir().expect("a folder");
        let (state, before) = (state_in(folder.path()), self.things());
        let mut victim = self.stopped_at("looking", &state);
        for name in docker(&self.engine, &["ps", "--all", "--filter", "name=-look", "--format", "{{.Names}}"]).lines() {
            docker(&self.engine, &["rm", "--force", name]);
        }
        kill_process(Pid::from_child(&victim), Signal::CONT).expect("it goes on");
        assert_eq!(victim.wait().expect("its end").code(), Some(3), "it is an error");
        let kept = fs::read_dir(state.join("cache")).expect("the cache").flatten().map(|entry| entry.file_name());
        let kept: Vec<_> = kept.filter(|name| name.to_string_lossy().starts_with("programs-")).collect();
        assert_eq!(kept, [""; 0], "what was not seen is not kept");
        self.nothing_is_left(&state, &before);
    }

    /// Its files are its user's until somebody removes it.
    fn restart(&self) {
        let folder = tempfile::tempdir().expect("a folder");
        let (state, before) = (state_in(folder.path()), self.things());
        self.runtime.block_on(async {
            let sandbox = backend(&self.engine, &state).create(&spec(&self.image)).await.expect("a sandbox");
            let id = sandbox.facts().spec.id.clone();
            let folder = state.join("sandboxes").join(id.as_str());
            let container = sandbox_docker::container(&folder).expect("its container");
            docker(&self.engine, &["restart", "--time=0", &container]);
            drop(sandbox);
            let recovered = backend(&self.engine, &state).recover().await.expect("recovered");
            assert_eq!((recovered.ended, recovered.removed.len()), (vec![id], 0));
            sandbox_docker::bury(&folder).await.expect("buried");
        });
        self.nothing_is_left(&state, &before);
    }

    /// What lives is adopted and can be used, and then removed; everything else is gone, and all can be made anew.
    fn nothing_is_left(&self, state: &Path, before: &BTreeSet<String>) {
        let backend = backend(&self.engine, state);
        self.runtime.block_on(async {
            clear(&backend, state).await;
            let left = things(&self.engine).await;
            assert_eq!(left.difference(before).collect::<Vec<_>>(), [""; 0], "left at the engine");
            let sandbox = backend.create(&spec(&self.image)).await.expect("a sandbox as before");
            sandbox.destroy().await.expect("removed");
            assert_eq!(&things(&self.engine).await, before);
        });
    }
}

/// Ends with 3 where an engine went away under it.
async fn live(backend: &DockerBackend, image: &Reference) {
    let lived = async {
        backend.fetch(image, &|_| {}).await?;
        // With programs that are taken away, for which images are looked into.
        let policy = Policy::preset("yolo-1").expect("a preset");
        let sandbox = backend.create(&SandboxSpec { policy, ..spec(image) }).await?;
        let channel = sandbox.connect().await?;
        if let Ok(client) = Client::connect(channel).await {
            drop(client.spawn(&Exec::shell("sleep 1000")).await);
        }
        sandbox.destroy().await
    };
    let lived: sandbox_core::Result<()> = lived.await;
    if let Err(error) = lived {
        println!("   the server: {error}");
        std::process::exit(3);
    }
}

async fn clear(backend: &DockerBackend, state: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let recovered = backend.recover().await.expect("recovered");
        for sandbox in &recovered.alive {
            if let Ok(channel) = sandbox.connect().await {
                let client = Client::connect(channel).await.expect("a connection");
                client.jobs().await.expect("its jobs");
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
