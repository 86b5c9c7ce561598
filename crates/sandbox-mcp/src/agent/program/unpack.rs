//! Unpacks a package of the npm registry. It is hostile until it is on the disk: only plain files with plain names are
//! taken out of it, and not too much of them.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

use flate2::read::GzDecoder;

/// All files together.
const LARGEST: u64 = 2 << 30;
const MOST_FILES: usize = 10_000;
/// Everything in a package lies in this folder.
const ROOT: &str = "package";

/// Puts the files of a package into a folder that everybody may read.
pub fn unpack(package: &Path, folder: &Path) -> io::Result<()> {
    let packed = io::BufReader::with_capacity(1 << 20, File::open(package)?);
    let mut archive = tar::Archive::new(GzDecoder::new(packed));
    let (mut left, mut files) = (LARGEST, 0);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let shown = path.display().to_string();
        let refuse = |why: &str| io::Error::other(format!("the package holds `{}`, {why}", shown.escape_debug()));
        let name = plain(&path).ok_or_else(|| refuse("which is no name in its folder"))?;
        files += 1;
        if files > MOST_FILES {
            return Err(refuse("and more files than a program has"));
        }
        match entry.header().entry_type() {
            tar::EntryType::Directory => continue,
            tar::EntryType::Regular => {}
            _ => return Err(refuse("which is neither a file nor a folder")),
        }
        let mode = if entry.header().mode()? & 0o100 != 0 { 0o755 } else { 0o644 };
        let target = folder.join(name);
        if let Some(above) = target.parent() {
            fs::create_dir_all(above)?;
        }
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&target)?;
        let written = io::copy(&mut entry.by_ref().take(left + 1), &mut file)?;
        left = left.checked_sub(written).ok_or_else(|| refuse("and is larger than a program may be"))?;
        file.flush()?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    open_folders(folder)
}

/// The name beneath the package's own folder, if there is nothing special about it.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut parts = path.components();
    if parts.next()? != Component::Normal(ROOT.as_ref()) {
        return None;
    }
    let name = parts.as_path();
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(text) if text.to_str().is_some());
    (name.components().count() < 20 && name.components().all(is_plain)).then(|| name.to_owned())
}

/// Whoever works in a sandbox is somebody else outside.
fn open_folders(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_folders(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use flate2::{Compression, write::GzEncoder};

    fn packed(folder: &Path, entries: &[(&str, tar::EntryType, &str)]) -> PathBuf {
        let file = folder.join("package.tgz");
        let mut builder = tar::Builder::new(GzEncoder::new(File::create(&file).unwrap(), Compression::fast()));
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            // As an attacker would write it: the library's own setter refuses such names.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_mode(0o4755);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap();
        file
    }

    #[test]
    fn files_come_out_and_nothing_else_does() {
        use tar::EntryType as Type;
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        fs::create_dir(&out).unwrap();
        let good = [("package/bin/x", Type::Regular, "program"), ("package/bin", Type::Directory, "")];
        unpack(&packed(folder.path(), &good), &out).unwrap();
        let mode = fs::metadata(out.join("bin/x")).unwrap().permissions().mode();
        assert_eq!((fs::read_to_string(out.join("bin/x")).unwrap().as_str(), mode & 0o7777), ("program", 0o755));
        for (name, kind) in [
            ("package/../../x", Type::Regular),
            ("/etc/x", Type::Regular),
            ("elsewhere/x", Type::Regular),
            ("package/x", Type::Symlink),
            ("package/x", Type::Link),
            ("package/x", Type::Char),
            ("package/x", Type::Fifo),
            ("package", Type::Regular),
        ] {
            let out = tempfile::tempdir().unwrap();
            let refused = unpack(&packed(folder.path(), &[(name, kind, "")]), out.path());
            assert!(refused.is_err(), "{name} {kind:?}");
            assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "{name}");
        }
        let twice = [("package/x", Type::Regular, "a"), ("package/x", Type::Regular, "b")];
        assert!(unpack(&packed(folder.path(), &twice), &folder.path().join("out")).is_err());
    }
}
