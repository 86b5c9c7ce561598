//! What both suites need: a state folder, a backend with a real runtime, and an end that leaves nothing.

#![allow(dead_code, clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

use std::{
    fs,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use sandbox_core::Backend;
use sandbox_oci::OciBackend;
use tokio::runtime::Runtime;

/// Names the runtime.
const RUNTIME: &str = "SANDBOX_TESTS_OCI_RUNTIME";

/// A place to try things.
pub struct Stage {
    folder: tempfile::TempDir,
    runtime: Runtime,
    wanted: String,
}

/// Becomes the keeper where this program was started as one, and begins a test otherwise. Nothing where no runtime is named
/// or it does not work, and nobody requires one.
pub fn begin(secret: &str) -> Option<Stage> {
    sandbox_oci::run_role_if_asked();
    sandbox_linux::run_role_if_asked();
    if std::env::var_os(secret).is_none() {
        let again =
            Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).env(secret, "only the server's").exec();
        panic!("starting again failed: {again}");
    }
    let required = std::env::var("SANDBOX_TESTS_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|one| one == "gvisor" || one == "oci");
    let Ok(wanted) = std::env::var(RUNTIME) else {
        assert!(!required, "{RUNTIME} names no runtime, and one is required");
        return skipped(&format!("{RUNTIME} names no runtime (tests/engines/oci does)"));
    };
    let folder = tempfile::tempdir().expect("a folder for the state");
    fs::DirBuilder::new().mode(0o700).create(folder.path().join("state")).expect("a folder for the state");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let stage = Stage { folder, runtime, wanted };
    let probe = stage.runtime.block_on(stage.backend().probe(&[]));
    for finding in &probe.findings {
        println!("{}: {}", finding.subject, finding.found);
    }
    if probe.usable {
        return Some(stage);
    }
    assert!(!required, "{:?}", probe.findings);
    skipped(&format!("{} does not work here", stage.wanted))
}

fn skipped(why: &str) -> Option<Stage> {
    println!("skipped: {why}");
    println!("test result: ok. 0 passed; 0 failed");
    None
}

impl Stage {
    /// Where things can be put.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The state folder.
    pub fn state(&self) -> PathBuf {
        self.folder().join("state")
    }

    /// Runs what waits.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// What is being tried.
    pub fn backend(&self) -> OciBackend {
        OciBackend::new(&self.state(), Some(&self.wanted), Default::default()).expect("the backend starts")
    }

    /// Leaves nothing, and ends this program.
    pub fn end(self, failed: usize) -> ! {
        drop(self.runtime);
        let path = self.folder.keep();
        let removed = || fs::remove_dir_all(&path).is_ok();
        for _ in (0..50).take_while(|_| !removed()) {
            std::thread::sleep(Duration::from_millis(100));
        }
        std::process::exit(i32::from(failed > 0));
    }
}
