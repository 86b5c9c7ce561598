//! Certificates that programs inside trust beside those of this machine: one bundle for each sandbox that has some, mounted
//! over the one that programs look for. It lies in the sandbox's folder, where the server can write it again.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use sandbox_core::{Facts, Image, SandboxSpec};

use crate::{images, java_trust, steps::Step};

/// No bundle is larger.
const LARGEST: u64 = 16 << 20;

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
    let root = images::root_of(&facts.spec.image, folder);
    if facts.spec.certificates.is_some() { write_for(&root, own, folder) } else { Ok(()) }
}

/// In place, for what is mounted inside are these very files.
fn write_for(root: &Path, own: &str, folder: &Path) -> io::Result<()> {
    let known = BUNDLES.iter().find_map(|bundle| String::from_utf8(read_inside(root, bundle)?).ok());
    fs::write(folder.join(FILE), format!("{}\n{own}", known.unwrap_or_default().trim_end()))?;
    let Some(store) = java_store(root) else { return Ok(()) };
    let more = java_trust::with_certificate(&store, own).unwrap_or(store);
    fs::write(folder.join(JAVA_FILE), more)
}

/// Java's own, where there is one of the kind that can be added to.
fn java_store(root: &Path) -> Option<Vec<u8>> {
    read_inside(root, JAVA).filter(|store| store.starts_with(&java_trust::HEAD))
}

/// A file of an image: links in it lead to where they would from inside. What it holds is given to a sandbox, so a link
/// that leads to a file of this machine must not.
fn read_inside(root: &Path, path: &str) -> Option<Vec<u8>> {
    let folder = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(&folder, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
    let file = fs::File::from(file);
    let mut content = Vec::new();
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    file.take(LARGEST).read_to_end(&mut content).ok()?;
    Some(content)
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

/// No image has a name any more where this is asked.
fn root(spec: &SandboxSpec) -> PathBuf {
    match &spec.image {
        Image::Host | Image::Reference(_) => "/".into(),
        Image::Folder(folder) => folder.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_of_an_image_gives_no_file_of_this_machine_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let (root, secret) = (folder.path().join("root"), folder.path().join("secret"));
        fs::create_dir_all(root.join("etc/ssl/certs")).expect("a folder");
        fs::write(&secret, "secret").expect("a file");
        symlink(&secret, root.join(BUNDLES[0])).expect("a link");
        symlink("../../../../../../../../../../etc/passwd", root.join("etc/ssl/cert.pem")).expect("a link");
        write_for(&root, "own", folder.path()).expect("written");
        assert_eq!(fs::read_to_string(folder.path().join(FILE)).expect("the bundle"), "\nown");
    }
}
