//! The embedded backend through the suite that every backend passes.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

use std::{
    fs,
    os::unix::{
        fs::{DirBuilderExt, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use sandbox_conformance::{Programs, Subject};
use sandbox_core::{Image, policy::SystemCalls};
use sandbox_linux::LinuxBackend;

fn main() {
    sandbox_linux::run_role_if_asked();
    if std::env::var_os(sandbox_conformance::SECRET).is_none() {
        let again = Command::new("/proc/self/exe")
            .args(std::env::args_os().skip(1))
            .env(sandbox_conformance::SECRET, "x")
            .exec();
        panic!("starting again failed: {again}");
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let folder = tempfile::tempdir().expect("a folder for the state");
    let state = folder.path().join("state");
    fs::DirBuilder::new().mode(0o700).create(&state).expect("a folder for the state");
    let failed = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime").block_on(async {
        let backend = LinuxBackend::start(&state).expect("the backend starts");
        // bwrap, where it has to start sandboxes for us, knows no layers.
        let bwrap = std::env::var_os("SANDBOX_MCP_USE_BWRAP").is_some();
        let image = if bwrap { None } else { Some(Image::Folder(image(folder.path()))) };
        // Nor can it be told how many terminals there may be: only open files bound them.
        let terminals = if bwrap { 4096 } else { 64 };
        let subject = Subject {
            backend: Arc::new(backend),
            image,
            programs: Programs::OfThisMachine,
            unheld: Default::default(),
            terminals,
        };
        let mut failed = sandbox_conformance::run(subject.clone(), &filter).await;
        // What it is by default was tried above.
        for calls in [SystemCalls::Minimal, SystemCalls::Build] {
            failed += sandbox_conformance::run_with(subject.clone(), &filter, &calls).await;
        }
        failed
    });
    remove(folder);
    std::process::exit(i32::from(failed > 0));
}

/// Once the launcher has ended, which takes a moment.
fn remove(folder: tempfile::TempDir) {
    let path = folder.keep();
    let removed = || fs::remove_dir_all(&path).is_ok();
    for _ in (0..30).take_while(|_| !removed()) {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// A small root file system made of a static busybox.
fn image(folder: &Path) -> PathBuf {
    let image = folder.join("image");
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    let busybox = busybox.expect("a static busybox: install the package busybox-static");
    for name in ["bin", "etc", "opt"] {
        fs::create_dir_all(image.join(name)).expect("a folder of the image");
    }
    fs::copy(busybox, image.join("bin/busybox")).expect("a copy of busybox");
    for name in ["sh", "ls", "cat", "id", "mkdir", "rm", "echo", "mount", "su"] {
        symlink("busybox", image.join("bin").join(name)).expect("a link to busybox");
    }
    // Who follows it from outside gets out; from inside it leads to a folder of the image.
    fs::create_dir(image.join("opt/outside")).expect("a folder of the image");
    symlink("/opt/outside", image.join("out")).expect("a link that leads out");
    fs::write(image.join("bin/removable"), "x").expect("a file of the image");
    image
}
