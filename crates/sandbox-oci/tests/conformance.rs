//! The backend through the suite that every backend passes, with the runtime that SANDBOX_TESTS_OCI_RUNTIME names (runsc).

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

mod support;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use sandbox_conformance::{Programs, Subject};
use sandbox_core::{Image, policy::SystemCalls};

fn main() {
    let Some(stage) = support::begin(sandbox_conformance::SECRET) else { return };
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let image = image(stage.folder());
    let failed = stage.runtime().block_on(async {
        let subject = Subject {
            backend: Arc::new(stage.backend()),
            image: Some(Image::Folder(image)),
            programs: Programs::OfThisMachine,
            unheld: BTreeSet::new(),
            terminals: 4096,
        };
        let mut failed = sandbox_conformance::run(subject.clone(), &filter).await;
        // With every profile it takes long where the machine is slow.
        let profiles = [SystemCalls::Minimal, SystemCalls::Build];
        for calls in profiles.into_iter().filter(|_| std::env::var_os("SANDBOX_TESTS_QUICK").is_none()) {
            failed += sandbox_conformance::run_with(subject.clone(), &filter, &calls).await;
        }
        failed
    });
    stage.end(failed)
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
