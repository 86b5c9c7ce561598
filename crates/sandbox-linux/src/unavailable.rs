//! Programs that a policy takes away: which files a stub is mounted over, so that they can be neither executed nor read.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

use crate::programs::{Entry, FOLDERS, Programs};

/// The name of the stub in the folder that [`crate::etc`] prepares.
pub const STUB: &str = "unavailable";
/// What who reads it finds.
pub const TEXT: &str = "This program is not available in this sandbox: the sandbox's policy denies it.\n\
    Nothing that it does would have an effect here. Work without it, or ask for a policy that allows it.\n";

/// What a stub is mounted over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// A file.
    File,
    /// A link to a program that is others' too.
    Link,
}

/// The paths to be covered for a list of denied commands. Rules with more words than a name are about harmless programs.
pub(crate) fn covers(deny: &BTreeSet<String>, programs: &Programs) -> BTreeMap<String, Cover> {
    let denied: BTreeSet<&str> = deny.iter().map(String::as_str).filter(|rule| !rule.contains(' ')).collect();
    let entries = programs.entries(|name| is_denied(name, &denied));
    entries.iter().filter_map(|entry| cover(entry, &denied)).collect()
}

/// The same for a root file system in a folder, of which the names suffice.
pub fn covered(root: &Path, deny: &BTreeSet<String>) -> io::Result<BTreeMap<String, Cover>> {
    Ok(covers(deny, &Programs::of(root, Vec::new())?))
}

/// `mkfs` means `mkfs.ext4` too, and `nc` every `nc.openbsd`.
fn is_denied(name: &str, denied: &BTreeSet<&str>) -> bool {
    denied.contains(name) || name.split_once('.').is_some_and(|(stem, _)| denied.contains(stem))
}

/// A link is followed, so that no other name leads to the same file. But many programs are links to a single one
/// (busybox), which must stay: then only the link is covered.
fn cover(entry: &Entry, denied: &BTreeSet<&str>) -> Option<(String, Cover)> {
    let Some(target) = &entry.leads_to else { return Some((entry.path.clone(), Cover::File)) };
    let (folder, name) = target.rsplit_once('/')?;
    let shared = FOLDERS.contains(&folder) && !is_denied(name, denied);
    Some(if shared { (entry.path.clone(), Cover::Link) } else { (target.clone(), Cover::File) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn files_links_and_alternatives_are_covered_but_no_shared_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for name in ["usr/bin", "usr/lib/docker", "etc/alternatives"] {
            fs::create_dir_all(root.join(name)).expect("a folder");
        }
        for name in ["su", "busybox", "nc.openbsd", "mkfs.ext4", "chmod", "sudoers"] {
            fs::write(root.join("usr/bin").join(name), "x").expect("a file");
        }
        fs::write(root.join("usr/lib/docker/docker"), "x").expect("a file");
        for (link, to) in [
            ("bin", "usr/bin"),
            ("usr/bin/mount", "busybox"),
            ("usr/bin/ls", "busybox"),
            ("usr/bin/nc", "/etc/alternatives/nc"),
            ("etc/alternatives/nc", "/bin/nc.openbsd"),
            ("usr/bin/docker", "../lib/docker/docker"),
            ("usr/bin/ssh", "nowhere"),
        ] {
            symlink(to, root.join(link)).expect("a link");
        }
        let deny = ["su", "sudo", "mount", "nc", "mkfs", "docker", "ssh", "chmod 777"].map(String::from).into();
        let covered = covers(&deny, &Programs::of(root, Vec::new()).expect("programs"));
        let expected = [
            ("/usr/bin/mkfs.ext4", Cover::File),
            ("/usr/bin/mount", Cover::Link),
            ("/usr/bin/nc.openbsd", Cover::File),
            ("/usr/bin/su", Cover::File),
            ("/usr/lib/docker/docker", Cover::File),
        ];
        assert_eq!(covered, expected.map(|(path, cover)| (path.to_owned(), cover)).into());
    }
}
