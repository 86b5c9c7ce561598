//! Builds the program that attacks from inside as a static program of its own, to be carried inside this library.
//!
//! For musl where that target is installed, else for gnu with a static C runtime, in the target folder that the
//! executor is built in too: `sandbox-linux` does the same, and its build file says more.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    for input in ["program/src", "program/Cargo.toml", "build.rs"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let out: PathBuf = variable("OUT_DIR").into();
    let target = target();
    let folder = shared_target_folder(&out);
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--bin", "sandbox-attack", "--profile", "executor", "--target", &target, "--target-dir"]);
    cargo.arg(&folder).current_dir("program");
    // These describe the build that we are part of, not the one that we start.
    for name in ["CARGO_ENCODED_RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET", "RUSTFLAGS"] {
        cargo.env_remove(name);
    }
    let built = cargo.status().is_ok_and(|status| status.success());
    assert!(built, "the attack program could not be built: {cargo:?}");
    let program = folder.join(&target).join("executor/sandbox-attack");
    let copied = fs::copy(&program, out.join("sandbox-attack"));
    assert!(copied.is_ok(), "copying {}: {copied:?}", program.display());
}

fn target() -> String {
    let own = variable("TARGET");
    let musl = own.replace("-gnu", "-musl");
    let installed = Command::new(variable("RUSTC"))
        .args(["--print", "target-libdir", "--target", &musl])
        .output()
        .is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir());
    if installed { musl } else { own }
}

/// `target/…/build/NAME/out` → `target/executor`.
fn shared_target_folder(out: &Path) -> PathBuf {
    let build = out.ancestors().find(|path| path.file_name().is_some_and(|name| name == "build")).unwrap_or(out);
    build.ancestors().nth(3).unwrap_or(out).join("executor")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
