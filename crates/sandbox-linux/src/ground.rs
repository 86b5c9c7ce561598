//! What a root that can be changed stands on, for the image `host`: everything in it but this machine's programs.
//!
//! `root` is the lowest layer of `/`: a made-up `/etc` with what package managers need, a `/var` with a copy of the
//! package database, empty folders. `folders` has, for an ordinary user, a skeleton for each folder of programs.
//! Both are made once for a state of this machine, shared by all sandboxes, and changed by none: each writes to its own
//! layer above. A sandbox's folder has a link to the one that it stands on; what no link leads to is removed one day.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use crate::{accounts, etc, host::Top, skeleton, tree};

/// The link in a sandbox's folder to what it stands on.
pub const LINK: &str = "ground";

/// Of `/etc`, on top of what every sandbox gets: what package managers and their scripts look for.
const SETTINGS: [&str; 15] = [
    "adduser.conf",
    "apt",
    "bash.bashrc",
    "bash_completion.d",
    "debconf.conf",
    "default/useradd",
    "deluser.conf",
    "dpkg",
    "login.defs",
    "pam.conf",
    "pam.d",
    "profile",
    "security/limits.conf",
    "skel",
    "ucf.conf",
];

/// apt gives up privileges while it downloads. The sandbox is wall enough, and where there is a single id it cannot.
const APT: (&str, &str) = ("apt/apt.conf.d/99sandbox", "APT::Sandbox::User \"root\";\n");

/// Made empty.
const FOLDERS: [&str; 32] = [
    "dev",
    "etc",
    "home",
    "home/sandbox",
    "media",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "run/lock",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
    "var/backups",
    "var/cache",
    "var/cache/apt",
    "var/cache/apt/archives",
    "var/cache/apt/archives/partial",
    "var/lib",
    "var/lib/apt",
    "var/lib/apt/lists",
    "var/lib/apt/lists/partial",
    "var/lib/misc",
    "var/local",
    "var/log",
    "var/log/apt",
    "var/mail",
    "var/spool",
    "workspace",
];

const LINKS: [(&str, &str); 3] = [("var/tmp", "/tmp"), ("var/run", "/run"), ("var/lock", "/run/lock")];

/// Of `/var`, where there is dpkg.
const DATABASES: [&str; 6] = [
    "cache/debconf/config.dat",
    "cache/debconf/templates.dat",
    "lib/apt/extended_states",
    "lib/dpkg",
    "lib/pam",
    "lib/ucf",
];

/// A change in one of these changes what a ground is made of.
const TELLING: [&str; 20] = [
    "/etc/apt",
    "/etc/apt/sources.list.d",
    "/etc/default",
    "/etc/group",
    "/etc/pam.d",
    "/etc/passwd",
    "/usr",
    "/usr/bin",
    "/usr/include",
    "/usr/lib",
    "/usr/libexec",
    "/usr/local",
    "/usr/local/bin",
    "/usr/local/lib",
    "/usr/local/share",
    "/usr/sbin",
    "/usr/share",
    "/usr/share/doc",
    "/var/lib/dpkg/info",
    "/var/lib/dpkg/status",
];

/// More than this is not copied.
const MOST_FILES: usize = 300_000;
/// Whoever planned with one has made its link by then.
const LINKED_AFTER: Duration = Duration::from_secs(600);

/// Who the folders of a ground belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Folders {
    /// Owners are mapped, so those of this machine will do.
    Mapped,
    /// They must be the user's own: with skeletons.
    Own,
}

/// The prepared folder, made if it is not there yet: about a second for a usual machine.
pub fn prepare(state: &Path, tops: &[Top], folders: Folders) -> io::Result<PathBuf> {
    static MAKING: Mutex<()> = Mutex::new(());
    let cache = state.join("cache");
    let ground = cache.join(format!("ground-{:016x}", fingerprint(tops, folders)));
    let _one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if ground.is_dir() {
        touch(&ground);
        return Ok(ground);
    }
    let draft = cache.join(format!("draft-ground-{}", std::process::id()));
    remove(&draft);
    build(&draft, tops, folders).inspect_err(|_| remove(&draft))?;
    match fs::rename(&draft, &ground) {
        // Somebody else was faster; theirs is as good.
        Err(_) if ground.is_dir() => remove(&draft),
        other => other?,
    }
    remove_old(state, &ground);
    Ok(ground)
}

fn build(draft: &Path, tops: &[Top], folders: Folders) -> io::Result<()> {
    let root = draft.join("root");
    etc::folder(draft)?;
    etc::folder(&root)?;
    FOLDERS.iter().try_for_each(|name| etc::folder(&root.join(name)))?;
    for (name, mode) in [("root", 0o700), ("tmp", 0o1777), ("run/lock", 0o1777)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode))?;
    }
    LINKS.iter().try_for_each(|(name, to)| symlink(to, root.join(name)))?;
    etc::write_programs(&root.join("opt/sandbox"))?;
    write_settings(&root.join("etc"))?;
    if Path::new("/var/lib/dpkg/status").exists() {
        copy_databases(&root.join("var"))?;
    }
    let own = draft.join("folders");
    etc::folder(&own)?;
    for top in tops {
        match top {
            Top::Link { name, to } => symlink(to, root.join(name))?,
            Top::Folder { name } => {
                etc::folder(&root.join(name))?;
                if folders == Folders::Own {
                    skeleton::copy(&Path::new("/").join(name), &own.join(name))?;
                }
            }
        }
    }
    Ok(())
}

fn write_settings(etc: &Path) -> io::Result<()> {
    etc::fill(etc, &[etc::sources(), SETTINGS.map(String::from).into()].concat())?;
    remove_passwords(&etc.join("apt"));
    if etc.join("apt/apt.conf.d").is_dir() {
        etc::write(&etc.join(APT.0), APT.1, 0o644)?;
    }
    let made = |name: &str| etc::MADE.iter().find(|(made, _)| *made == name).map_or("", |(_, content)| *content);
    let theirs = |name: &str| fs::read_to_string(Path::new("/etc").join(name)).unwrap_or_default();
    let passwd = accounts::with_system(made("passwd"), &theirs("passwd"));
    let group = accounts::with_system(made("group"), &theirs("group"));
    etc::write(&etc.join("shadow"), &accounts::shadow(&passwd), 0o600)?;
    etc::write(&etc.join("gshadow"), &accounts::gshadow(&group), 0o600)?;
    etc::write(&etc.join("passwd"), &passwd, 0o644)?;
    etc::write(&etc.join("group"), &group, 0o644)
}

/// Package sources may have a name and a password in their addresses; such a file is left out.
fn remove_passwords(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            remove_passwords(&path);
        } else if entry.file_name().to_string_lossy().starts_with("auth.conf")
            || fs::read(&path).is_ok_and(has_password)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn has_password(content: Vec<u8>) -> bool {
    let text = String::from_utf8_lossy(&content);
    text.split("://").skip(1).any(|rest| {
        let authority = rest.split(|next: char| next == '/' || next.is_whitespace()).next();
        authority.is_some_and(|authority| authority.contains('@'))
    })
}

fn copy_databases(var: &Path) -> io::Result<()> {
    let mut budget = MOST_FILES;
    for name in DATABASES {
        let (source, target) = (Path::new("/var").join(name), var.join(name));
        if source.exists() {
            target.parent().map_or(Ok(()), etc::folder)?;
            etc::copy(&source, &target, &mut budget)?;
        }
    }
    Ok(())
}

/// Also another after every start of this machine: nobody waits for the disk when one is made, so its name may outlive
/// its content should the power fail.
fn fingerprint(tops: &[Top], folders: Folders) -> u64 {
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), "1", etc::fingerprint(), folders, tops).hash(&mut hasher);
    fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().hash(&mut hasher);
    for name in TELLING {
        etc::stamp(Path::new(name)).hash(&mut hasher);
    }
    hasher.finish()
}

/// Removes grounds that nobody stands on any more, and drafts that nobody makes.
fn remove_old(state: &Path, current: &Path) {
    let sandboxes = fs::read_dir(state.join("sandboxes")).into_iter().flatten().flatten();
    let used: Vec<PathBuf> = sandboxes.filter_map(|entry| fs::read_link(entry.path().join(LINK)).ok()).collect();
    for entry in fs::read_dir(state.join("cache")).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let ours = name.starts_with("ground-") || name.starts_with("draft-ground-");
        if ours && path != current && !used.contains(&path) && is_old(&path) {
            remove(&path);
        }
    }
}

fn is_old(path: &Path) -> bool {
    let changed = fs::symlink_metadata(path).and_then(|found| found.modified());
    changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > LINKED_AFTER))
}

/// Notes that it is in use.
fn touch(ground: &Path) {
    let _ = fs::File::open(ground).and_then(|folder| folder.set_modified(SystemTime::now()));
}

fn remove(folder: &Path) {
    let _ = tree::clear(folder);
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ground_is_removed_when_nobody_stands_on_it() {
        let state = tempfile::tempdir().expect("a folder");
        let cache = state.path().join("cache");
        for name in ["cache/ground-used/root", "cache/ground-left", "cache/ground-new", "cache/host-1", "sandboxes/one"]
        {
            fs::create_dir_all(state.path().join(name)).expect("a folder");
        }
        symlink(cache.join("ground-used"), state.path().join("sandboxes/one").join(LINK)).expect("a link");
        for name in ["ground-used", "ground-left", "host-1"] {
            let folder = fs::File::open(cache.join(name)).expect("a folder");
            folder.set_modified(SystemTime::now() - 2 * LINKED_AFTER).expect("a time");
        }
        remove_old(state.path(), &cache.join("ground-current"));
        let left = |name: &str| cache.join(name).exists();
        assert_eq!(["ground-used", "ground-left", "ground-new", "host-1"].map(left), [true, false, true, true]);
    }

    #[test]
    fn sources_with_a_password_are_known() {
        assert!(has_password(b"deb https://me:secret@packages.example/debian stable main".to_vec()));
        assert!(!has_password(b"deb https://packages.example/debian stable main # me@example".to_vec()));
    }
}
