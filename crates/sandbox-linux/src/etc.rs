//! The made-up `/etc` of the `host` image, and the few programs of our own beside it.
//!
//! One folder holds copies of what programs need of this machine's `/etc` (certificates, linker settings, time zone,
//! fonts, …) and files that say who is who inside. It is made once, named after the state of its sources, and bound
//! read-only into every sandbox: one mount instead of twenty. Nothing that only root may read is copied, and no settings of
//! clients that may hold passwords (pip, npm, git, Maven).

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::FlockOperation;

use crate::unavailable;

/// What nobody holds and is younger may still be used.
const LONG_AGO: Duration = Duration::from_secs(7 * 24 * 3600);

/// Copied where they exist.
const SOURCES: [&str; 36] = [
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "default/locale",
    "fonts",
    "gai.conf",
    "ghostscript",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "libreoffice",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "magic.mime",
    "mailcap",
    "mime.types",
    "nodejs",
    "os-release",
    "papersize",
    "perl",
    "pki/ca-trust",
    "pki/tls",
    "protocols",
    "python3",
    "services",
    "shells",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "R",
];
/// The same for names that begin so: their version follows.
const VERSIONED: [&str; 3] = ["ImageMagick-", "java-", "python3."];

/// Written by us.
pub const MADE: [(&str, &str); 7] = [
    (
        "passwd",
        "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("group", "root:x:0:\ntty:x:5:\nsandbox:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n"),
    ("hostname", "sandbox\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"),
    // way_out::DNS_SERVER; where there is no way out, there is no way to it either.
    ("resolv.conf", "nameserver 198.19.0.53\n"),
    ("timezone", "Etc/UTC\n"),
];

/// The first `pip` makes the sandbox's own environment in HOME, so that `pip install` works as typed though the
/// system's Python cannot be changed; its `bin` is already on PATH.
const PIP: &str = r#"#!/bin/sh
if [ ! -x "$HOME/.venv/bin/python3" ]; then
    python3 -m venv --system-site-packages --without-pip "$HOME/.venv" || exit 1
fi
exec "$HOME/.venv/bin/python3" -m pip "$@"
"#;

/// More than this is not copied: an odd `/etc` must not fill the state folder.
const MOST_FILES: usize = 20_000;

/// The prepared folder, made if it is not there yet. It holds `etc`, `opt`, `root` and `zero`.
pub fn prepare(state: &Path) -> io::Result<PathBuf> {
    let cache = state.join("cache");
    let folder = cache.join(format!("host-{:016x}", fingerprint()));
    if hold(&folder) {
        return Ok(folder);
    }
    fs::create_dir_all(&cache)?;
    remove_unused(&cache);
    let draft = cache.join(format!("draft-{}", std::process::id()));
    let _ = fs::remove_dir_all(&draft);
    build(&draft)?;
    // Held before it has its name, so nobody ever finds it without.
    if !hold(&draft) {
        return Err(io::Error::other("what was just made is gone"));
    }
    match fs::rename(&draft, &folder) {
        // Somebody else was faster; theirs is as good.
        Err(_) if hold(&folder) => fs::remove_dir_all(&draft)?,
        other => other?,
    }
    Ok(folder)
}

/// Keeps a prepared folder from being removed as long as this process lives. False if it is not there.
fn hold(folder: &Path) -> bool {
    let Ok(file) = fs::File::open(folder) else { return false };
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
        return false;
    }
    // Whoever removes it has had the lock, and another may have its name by now.
    let same = match (file.metadata(), fs::metadata(folder)) {
        (Ok(held), Ok(named)) => held.ino() == named.ino(),
        _ => false,
    };
    if same {
        std::mem::forget(file);
    }
    same
}

/// Removes those of earlier states of this machine that nobody has held for long. A launcher lives as long as its
/// sandboxes, but may be killed before them.
fn remove_unused(cache: &Path) {
    let aside = cache.join(format!("draft-{}", std::process::id()));
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let old = |file: &fs::File| file.metadata()?.modified()?.elapsed().map_err(io::Error::other);
        let unused = entry.file_name().to_string_lossy().starts_with("host-")
            && fs::File::open(entry.path()).is_ok_and(|file| {
                old(&file).is_ok_and(|age| age > LONG_AGO)
                    && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                    && fs::rename(entry.path(), &aside).is_ok()
            });
        if unused {
            let _ = fs::remove_dir_all(&aside);
        }
    }
}

fn build(draft: &Path) -> io::Result<()> {
    folder(draft)?;
    fill(&draft.join("etc"), &sources())?;
    // A file of nothing, for `/dev/zero` where the device would hide memory. Some file systems end at 16 GiB.
    let zeros = fs::File::create(draft.join("zero"))?;
    zeros.set_len(1 << 40).or_else(|_| zeros.set_len(1 << 34))?;
    // Where every sandbox, in a mount namespace of its own, puts its root for a moment.
    folder(&draft.join("root"))?;
    write(&draft.join(unavailable::STUB), unavailable::TEXT, 0o444)?;
    write_programs(&draft.join("opt"))
}

/// What programs need of this machine's `/etc`, in an order that does not change.
pub fn sources() -> Vec<String> {
    let entries = fs::read_dir("/etc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<String> = names.filter(|name| VERSIONED.iter().any(|begin| name.starts_with(begin))).collect();
    found.sort();
    SOURCES.iter().map(|name| (*name).to_owned()).chain(found).collect()
}

/// Makes an `/etc` with copies of these and with what is made up.
pub fn fill(etc: &Path, sources: &[String]) -> io::Result<()> {
    folder(etc)?;
    let mut budget = MOST_FILES;
    for name in sources {
        let (source, target) = (Path::new("/etc").join(name), etc.join(name));
        if let Some(parent) = Path::new(name).parent()
            && parent != Path::new("")
            && source.exists()
        {
            folder(&etc.join(parent))?;
        }
        copy(&source, &target, &mut budget)?;
    }
    for (name, content) in MADE {
        write(&etc.join(name), content, 0o644)?;
    }
    let _ = symlink("/proc/self/mounts", etc.join("mtab"));
    Ok(())
}

/// Makes a folder with the programs of our own.
pub fn write_programs(opt: &Path) -> io::Result<()> {
    folder(opt)?;
    folder(&opt.join("bin"))?;
    ["pip", "pip3"].into_iter().try_for_each(|name| write(&opt.join("bin").join(name), PIP, 0o755))
}

/// Makes a folder that everybody may look into, whatever this process's mask for new files is.
pub fn folder(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Links stay links, folders are walked, files that everybody may read are copied. What is not there is left out.
pub fn copy(source: &Path, target: &Path, budget: &mut usize) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(source) else { return Ok(()) };
    if *budget == 0 {
        return Ok(());
    }
    *budget -= 1;
    if found.is_symlink() {
        return link(source, target);
    }
    if found.is_dir() {
        let Ok(entries) = fs::read_dir(source) else { return Ok(()) };
        folder(target)?;
        for entry in entries.flatten() {
            copy(&entry.path(), &target.join(entry.file_name()), budget)?;
        }
    } else if found.is_file() && found.mode() & 0o004 != 0 {
        fs::copy(source, target)?;
        fs::set_permissions(target, fs::Permissions::from_mode(found.mode() & 0o755))?;
    }
    Ok(())
}

/// A link into /etc or /usr leads to the same thing inside. One to where distributions keep such things is replaced by
/// what it leads to; others lead to what may be a person's.
fn link(source: &Path, target: &Path) -> io::Result<()> {
    let to = fs::read_link(source)?;
    match fs::canonicalize(source) {
        Ok(real) if real.starts_with("/usr") || real.starts_with("/etc") => symlink(to, target),
        Ok(real) if ["/nix/store", "/gnu/store", "/var/lib", "/opt"].iter().any(|top| real.starts_with(top)) => {
            let readable = real.is_file() && fs::metadata(&real)?.mode() & 0o004 != 0;
            if readable { fs::copy(real, target).map(drop) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// Writes a file with this mode.
pub fn write(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let _ = fs::remove_file(path);
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Changes when a source does, and with the version of this program.
pub fn fingerprint() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), "root and zero", PIP, MADE, unavailable::TEXT).hash(&mut hasher);
    for name in sources() {
        let stamp = stamp(&Path::new("/etc").join(&name));
        (name, stamp).hash(&mut hasher);
    }
    hasher.finish()
}

/// Changes when the file, or what is directly in the folder, does.
pub fn stamp(path: &Path) -> Option<(i64, i64, u64)> {
    fs::metadata(path).ok().map(|found| (found.mtime(), found.mtime_nsec(), found.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_state_of_the_machine_left_is_removed_unless_somebody_holds_it() {
        let state = tempfile::tempdir().expect("a folder");
        let cache = state.path().join("cache");
        for name in ["host-1/etc", "host-2/etc", "host-3/etc", "ground-1"] {
            fs::create_dir_all(cache.join(name)).expect("a folder");
        }
        let long_ago = std::time::SystemTime::now() - LONG_AGO * 2;
        for name in ["host-1", "host-2", "ground-1"] {
            fs::File::open(cache.join(name)).expect("it").set_modified(long_ago).expect("a time");
        }
        assert!(hold(&cache.join("host-2")) && !hold(&cache.join("host-4")));
        let made = prepare(state.path()).expect("prepared");
        assert!(made.join("etc/passwd").exists());
        let left = ["host-1", "host-2", "host-3", "ground-1"].map(|name| cache.join(name).exists());
        assert_eq!(left, [false, true, true, true]);
        assert_eq!(prepare(state.path()).expect("prepared"), made);
        assert_eq!(fs::read_dir(&cache).expect("the cache").count(), 4);
    }
}
