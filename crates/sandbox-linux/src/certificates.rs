//! Certificates that programs inside trust beside those of this machine: one bundle for each sandbox that has some, mounted
//! over the one that programs look for. It lies in the sandbox's folder, where the server can write it again.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sandbox_core::{Image, SandboxSpec};

use crate::steps::Step;

/// The bundle, in the sandbox's folder.
pub const FILE: &str = "certificates.pem";
/// Where programs look for it, by distribution.
const BUNDLES: [&str; 4] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/ssl/cert.pem",
    "etc/ssl/ca-bundle.pem",
];

/// Writes the bundle, if the sandbox has certificates of its own.
pub fn write(spec: &SandboxSpec, folder: &Path) -> io::Result<()> {
    let Some(own) = &spec.certificates else { return Ok(()) };
    let root = root(spec);
    let known = BUNDLES.iter().find_map(|bundle| fs::read_to_string(root.join(bundle)).ok()).unwrap_or_default();
    fs::write(folder.join(FILE), format!("{}\n{own}", known.trim_end()))
}

/// What mounts it. A link leads to a file that has its own place in the list, or to none that matters.
pub fn steps(spec: &SandboxSpec, folder: &Path) -> Vec<Step> {
    if spec.certificates.is_none() {
        return Vec::new();
    }
    let root = root(spec);
    let is_file = |bundle: &&str| fs::symlink_metadata(root.join(bundle)).is_ok_and(|found| found.is_file());
    let cover = |bundle: &str| Step::Cover { stub: folder.join(FILE), target: bundle.to_owned() };
    BUNDLES.iter().filter(|bundle| is_file(bundle)).map(|bundle| cover(bundle)).collect()
}

fn root(spec: &SandboxSpec) -> PathBuf {
    match &spec.image {
        Image::Host => "/".into(),
        Image::Folder(folder) => folder.clone(),
    }
}
