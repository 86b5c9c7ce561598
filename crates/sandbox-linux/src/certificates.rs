//! Certificates that programs inside trust beside those of this machine: one bundle for each sandbox that has some, mounted
//! over the one that programs look for. It lies in the sandbox's folder, where the server can write it again.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sandbox_core::{Facts, Image, SandboxSpec};

use crate::{java_trust, steps::Step};

/// The bundle, in the sandbox's folder.
const FILE: &str = "certificates.pem";
/// What Java trusts, in the sandbox's folder.
const JAVA_FILE: &str = "certificates.jks";
/// Where Java of Debian and its relatives looks for it.
const JAVA: &str = "etc/ssl/certs/java/cacerts";
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
    write_for(&root(spec), own, folder)
}

/// Writes them anew: the server has another authority after a restart.
pub fn renew(facts: &Facts, own: &str, folder: &Path) -> io::Result<()> {
    if facts.spec.certificates.is_some() { write_for(&root(&facts.spec), own, folder) } else { Ok(()) }
}

/// In place, for what is mounted inside are these very files.
fn write_for(root: &Path, own: &str, folder: &Path) -> io::Result<()> {
    let known = BUNDLES.iter().find_map(|bundle| fs::read_to_string(root.join(bundle)).ok()).unwrap_or_default();
    fs::write(folder.join(FILE), format!("{}\n{own}", known.trim_end()))?;
    let Some(store) = java_store(root) else { return Ok(()) };
    let more = java_trust::with_certificate(&store, own).unwrap_or(store);
    fs::write(folder.join(JAVA_FILE), more)
}

/// Java's own, where there is one of the kind that can be added to.
fn java_store(root: &Path) -> Option<Vec<u8>> {
    fs::read(root.join(JAVA)).ok().filter(|store| store.starts_with(&java_trust::HEAD))
}

/// What mounts it. A link leads to a file that has its own place in the list, or to none that matters.
pub fn steps(spec: &SandboxSpec, folder: &Path) -> Vec<Step> {
    if spec.certificates.is_none() {
        return Vec::new();
    }
    let root = root(spec);
    let is_file = |bundle: &&str| fs::symlink_metadata(root.join(bundle)).is_ok_and(|found| found.is_file());
    let cover = |bundle: &str| Step::Cover { stub: folder.join(FILE), target: bundle.to_owned() };
    let java = java_store(&root).map(|_| Step::Cover { stub: folder.join(JAVA_FILE), target: JAVA.into() });
    BUNDLES.iter().filter(|bundle| is_file(bundle)).map(|bundle| cover(bundle)).chain(java).collect()
}

fn root(spec: &SandboxSpec) -> PathBuf {
    match &spec.image {
        Image::Host | Image::Reference(_) => "/".into(),
        Image::Folder(folder) => folder.clone(),
    }
}
