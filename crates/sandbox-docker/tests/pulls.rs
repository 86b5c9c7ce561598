//! Images that an engine does not have: fetched through it with progress, with what the user's Docker knows of the registry;
//! and what is said where that cannot be. Against `SANDBOX_TEST_ENGINE`, a Docker, with Debian's registry on loopback.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

mod support;

use std::{
    fs,
    os::unix::process::CommandExt,
    panic::AssertUnwindSafe,
    path::Path,
    process::Command,
    sync::{Mutex, PoisonError},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sandbox_core::{Backend, Error, Fetching, Reference};
use sandbox_docker::{DockerBackend, Options};
use support::{Registry, docker, free_port, publish, spec, state_in, variable};
use tokio::runtime::Runtime;

/// Where Docker's settings are, ours for the time of the test.
const SETTINGS: &str = "DOCKER_CONFIG";
const MARK: &str = "SANDBOX_TEST_SETTINGS";

fn main() {
    let (Some(engine), Some(archive)) = (variable("SANDBOX_TEST_ENGINE"), variable("SANDBOX_TEST_ARCHIVE")) else {
        println!("skipped: SANDBOX_TEST_ENGINE names no engine (tests/engines/run starts some)");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    if variable(MARK).is_none() {
        let settings = folder.keep();
        let again = Command::new("/proc/self/exe").env(MARK, &settings).env(SETTINGS, &settings).exec();
        panic!("starting again failed: {again}");
    }
    let settings = variable(MARK).expect("our settings");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let stage = Stage {
        backend: backend(&engine, folder.path()),
        engine,
        archive: archive.into(),
        folder: folder.path().to_owned(),
        settings: settings.clone().into(),
        runtime,
    };
    let tests: [(&str, Test); 5] = [
        ("an_image_that_is_missing_is_fetched_with_progress", Stage::with_progress),
        ("a_sandbox_fetches_its_image_by_itself", Stage::by_itself),
        ("credentials_are_those_of_the_users_docker", Stage::with_credentials),
        ("an_image_that_nobody_has_is_said", Stage::unknown),
        ("a_registry_that_is_not_reached_is_said_with_what_to_do", Stage::unreachable),
    ];
    let mut failed = 0;
    for (name, test) in tests {
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| test(&stage)));
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        failed += i32::from(outcome.is_err());
    }
    drop(folder);
    let _ = fs::remove_dir_all(settings);
    std::process::exit(i32::from(failed > 0));
}

fn backend(engine: &str, folder: &Path) -> DockerBackend {
    let options = Options { address: Some(engine.to_owned()), image: None };
    DockerBackend::new(&state_in(folder), options).expect("the backend starts")
}

type Test = fn(&Stage);

struct Stage {
    backend: DockerBackend,
    engine: String,
    archive: std::path::PathBuf,
    folder: std::path::PathBuf,
    settings: std::path::PathBuf,
    runtime: Runtime,
}

impl Stage {
    fn registry(&self, name: &str, password: bool) -> Registry {
        let folder = self.folder.join(name);
        fs::create_dir(&folder).expect("a folder");
        Registry::start(&folder, password)
    }

    fn publish(&self, image: &Reference) {
        publish(&self.engine, &self.archive, &self.folder, image);
    }

    fn forget(&self, image: &Reference) {
        docker(&self.engine, &["rmi", "--force", image.as_str()]);
    }

    fn fetch(&self, image: &Reference) -> (sandbox_core::Result<()>, Vec<Fetching>) {
        let seen = Mutex::new(Vec::new());
        let note = |step: Fetching| seen.lock().unwrap_or_else(PoisonError::into_inner).push(step);
        let outcome = self.runtime.block_on(self.backend.fetch(image, &note));
        (outcome, seen.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn refused(&self, image: &Reference) -> (String, String) {
        match self.fetch(image).0 {
            Err(Error::Unavailable { what, why, fix }) => {
                assert!(what.contains(image.as_str()), "{what}");
                (why, fix)
            }
            other => panic!("fetched without being there: {other:?}"),
        }
    }

    fn with_progress(&self) {
        let registry = self.registry("open", false);
        let image = registry.image("team/tool");
        self.publish(&image);
        let (outcome, seen) = self.fetch(&image);
        outcome.expect("fetched");
        let numbers: Vec<(u64, u64)> = seen.iter().filter_map(|step| Some((step.done, step.total?))).collect();
        assert!(numbers.len() > 3, "told {} times", numbers.len());
        assert!(numbers.iter().all(|(done, total)| done <= total), "{numbers:?}");
        assert!(numbers.iter().any(|(_, total)| *total > 29_000_000), "of 30 MB: {numbers:?}");
        assert!(seen.iter().any(|step| step.step.contains("Download")), "{seen:?}");
        // The second time there is nothing to do.
        let (outcome, seen) = self.fetch(&image);
        outcome.expect("there");
        assert!(seen.is_empty(), "{seen:?}");
        self.forget(&image);
    }

    fn by_itself(&self) {
        let registry = self.registry("itself", false);
        let image = registry.image("tool");
        self.publish(&image);
        self.runtime.block_on(async {
            let sandbox = self.backend.create(&spec(&image)).await.expect("a sandbox");
            sandbox.destroy().await.expect("removed");
        });
        self.forget(&image);
    }

    fn with_credentials(&self) {
        let registry = self.registry("closed", true);
        let image = registry.image("private");
        let auth = STANDARD.encode("me:secret");
        let known = format!(r#"{{"auths": {{"localhost:{}": {{"auth": "{auth}"}}}}}}"#, registry.port);
        let config = self.settings.join("config.json");
        fs::write(&config, &known).expect("settings");
        self.publish(&image);
        fs::remove_file(&config).expect("forgotten");
        let (_, fix) = self.refused(&image);
        assert!(fix.contains(&format!("docker login localhost:{}", registry.port)), "{fix}");
        fs::write(&config, known.replace(&auth, &STANDARD.encode("me:wrong"))).expect("settings");
        let (why, fix) = self.refused(&image);
        assert!(fix.contains("docker login"), "{fix}");
        assert!(!why.contains("wrong") && !fix.contains("wrong"), "a password is told: {why} {fix}");
        fs::write(&config, known).expect("settings");
        self.fetch(&image).0.expect("fetched");
        self.forget(&image);
        fs::remove_file(&config).expect("forgotten");
    }

    fn unknown(&self) {
        let registry = self.registry("empty", false);
        let (why, fix) = self.refused(&registry.image("not/there"));
        assert!(why.contains("not found") || why.contains("manifest unknown"), "{why}");
        assert!(fix.contains("name and tag"), "{fix}");
    }

    fn unreachable(&self) {
        let image: Reference = format!("localhost:{}/gone:latest", free_port()).parse().expect("a name");
        let (why, fix) = self.refused(&image);
        assert!(why.contains("refused"), "{why}");
        assert!(fix.contains("docker save") && fix.contains("docker load"), "{fix}");
        let created = self.runtime.block_on(self.backend.create(&spec(&image))).map(drop);
        let said = created.expect_err("no sandbox without its image").to_string();
        assert!(said.contains("docker load"), "{said}");
        let left = fs::read_dir(self.folder.join("state/sandboxes")).expect("the folder").count();
        assert_eq!(left, 0, "a folder is left of a sandbox that was never made");
    }
}
