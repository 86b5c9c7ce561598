//! Builds the executor as a static program of its own, to be carried inside this library.
//!
//! For musl where that target is installed (smaller, no C library to match), else for gnu with a static C runtime
//! (`.cargo/config.toml` says so). Its target folder is shared by all kinds of builds, so it is built once.

use std::{
    env, fs,
    hash::{DefaultHasher, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    let executor = Path::new("../sandbox-executor");
    for input in ["../sandbox-executor/src", "../sandbox-executor/Cargo.toml", "../sandbox-core/src", "build.rs"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let out: PathBuf = variable("OUT_DIR").into();
    let target = target();
    let breakable = env::var_os("CARGO_FEATURE_BREAKABLE").is_some();
    let folder = shared_target_folder(&out, if breakable { "executor-breakable" } else { "executor" });
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--bin", "sandbox-executor", "--profile", "executor", "--target", &target, "--target-dir"]);
    cargo.arg(&folder).current_dir(executor);
    if breakable {
        cargo.args(["--features", "breakable"]);
    }
    // These describe the build that we are part of, not the one that we start.
    for name in ["CARGO_ENCODED_RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET", "RUSTFLAGS"] {
        cargo.env_remove(name);
    }
    let built = cargo.status().is_ok_and(|status| status.success());
    assert!(built, "the executor could not be built: {cargo:?}");
    let program = folder.join(&target).join("executor/sandbox-executor");
    let bytes = fs::read(&program).unwrap_or_else(|error| panic!("reading {}: {error}", program.display()));
    // A name for this very program; it need not withstand anybody.
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    println!("cargo::rustc-env=EXECUTOR_HASH={:016x}", hasher.finish());
    fs::write(out.join("executor"), bytes).unwrap_or_else(|error| panic!("writing to {}: {error}", out.display()));
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
fn shared_target_folder(out: &Path, name: &str) -> PathBuf {
    let build = out.ancestors().find(|path| path.file_name().is_some_and(|name| name == "build")).unwrap_or(out);
    build.ancestors().nth(3).unwrap_or(out).join(name)
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
