//! Archives that an engine sends: the names in one folder, without the content, or the content of one file. What comes is
//! hostile: a name is taken only if it is one, and there are not too many; content only if it is as long as expected.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

const BLOCK: usize = 512;
/// Longest name or target that is read.
const LONGEST: u64 = 64 << 10;
/// No folder of programs has more.
const MOST: usize = 50_000;

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name; none for the folder itself, or for what stands in its place.
    pub name: Option<String>,
    /// What it is.
    pub kind: Kind,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    File,
    Folder,
    Link(String),
}

/// Reads an archive of a folder to its end. What lies deeper is left out.
pub async fn read(mut archive: impl AsyncRead + Unpin) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let (mut long_name, mut long_target) = (None, None);
    loop {
        let mut header = [0; BLOCK];
        match archive.read_exact(&mut header).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(entries),
            other => other?,
        };
        if header.iter().all(|byte| *byte == 0) {
            // The end; what follows must be taken all the same, or the engine waits.
            tokio::io::copy(&mut archive, &mut tokio::io::sink()).await?;
            return Ok(entries);
        }
        let size = size(&header[124..136]).ok_or(io::ErrorKind::InvalidData)?;
        match header[156] {
            b'L' => long_name = Some(text(&mut archive, size).await?),
            b'K' => long_target = Some(text(&mut archive, size).await?),
            b'x' => {
                let said = text(&mut archive, size).await?;
                long_name = attribute(&said, "path").or(long_name);
                long_target = attribute(&said, "linkpath").or(long_target);
            }
            kind => {
                skip(&mut archive, size).await?;
                let name = long_name.take().unwrap_or_else(|| name(&header));
                let target = long_target.take().unwrap_or_else(|| field(&header[157..257]));
                let kind = match kind {
                    b'0' | 0 | b'1' => Kind::File,
                    b'2' => Kind::Link(target),
                    b'5' => Kind::Folder,
                    _ => continue,
                };
                entries.extend(within(&name).map(|name| Entry { name, kind }));
                if entries.len() > MOST {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "it has too many programs"));
                }
            }
        }
    }
}

/// The content of the file that an archive consists of; nothing if it is no file, or not as long as that.
pub async fn file(mut archive: impl AsyncRead + Unpin, length: usize) -> io::Result<Option<Vec<u8>>> {
    loop {
        let mut header = [0; BLOCK];
        archive.read_exact(&mut header).await?;
        let size = size(&header[124..136]).ok_or(io::ErrorKind::InvalidData)?;
        match header[156] {
            b'L' | b'K' | b'x' | b'g' => drop(text(&mut archive, size).await?),
            b'0' | 0 if size == length as u64 => {
                let mut content = vec![0; length];
                archive.read_exact(&mut content).await?;
                tokio::io::copy(&mut archive, &mut tokio::io::sink()).await?;
                return Ok(Some(content));
            }
            _ => return Ok(None),
        }
    }
}

/// The part after the folder's own name; nothing for what lies deeper or is no name.
fn within(path: &str) -> Option<Option<String>> {
    let path = path.trim_start_matches("./").trim_end_matches('/');
    let Some((_, rest)) = path.split_once('/') else { return Some(None) };
    let plain = !rest.is_empty() && !rest.contains(['/', '\0']) && rest != "." && rest != "..";
    plain.then(|| Some(rest.to_owned()))
}

fn name(header: &[u8; BLOCK]) -> String {
    let (name, prefix) = (field(&header[..100]), field(&header[345..500]));
    if prefix.is_empty() || &header[257..262] != b"ustar" { name } else { format!("{prefix}/{name}") }
}

fn field(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// In octal digits, or where those do not suffice as a number whose first bit is set.
fn size(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        return Some(field[4..].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    }
    let digits = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

async fn text(archive: &mut (impl AsyncRead + Unpin), size: u64) -> io::Result<String> {
    if size > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; size as usize];
    archive.read_exact(&mut bytes).await?;
    let padding = size.next_multiple_of(BLOCK as u64) - size;
    archive.read_exact(&mut vec![0; padding as usize]).await?;
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned())
}

async fn skip(archive: &mut (impl AsyncRead + Unpin), size: u64) -> io::Result<()> {
    let mut content = archive.take(size.next_multiple_of(BLOCK as u64));
    tokio::io::copy(&mut content, &mut tokio::io::sink()).await.map(drop)
}

/// One value of lines `LENGTH KEY=VALUE`.
fn attribute(said: &str, key: &str) -> Option<String> {
    said.lines().find_map(|line| Some(line.split_once(' ')?.1.strip_prefix(key)?.strip_prefix('=')?.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{fs, os::unix::fs::symlink, process::Command};

    use super::*;

    #[tokio::test]
    async fn names_links_and_long_names_are_found_in_archives_of_every_kind() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir_all(bin.join("deeper")).unwrap();
        let long = "x".repeat(180);
        fs::write(bin.join("su"), vec![1; 1000]).unwrap();
        fs::write(bin.join(&long), "x").unwrap();
        fs::write(bin.join("deeper/hidden"), "x").unwrap();
        symlink("su", bin.join("sudo")).unwrap();
        for format in ["gnu", "pax", "oldgnu"] {
            let made =
                Command::new("tar").args(["-c", "--format", format, "bin"]).current_dir(&folder).output().unwrap();
            let mut found = read(&made.stdout[..]).await.unwrap();
            found.sort_by_key(|entry| entry.name.clone());
            let entry = |name: Option<&str>, kind| Entry { name: name.map(str::to_owned), kind };
            let expected = [
                entry(None, Kind::Folder),
                entry(Some("deeper"), Kind::Folder),
                entry(Some("su"), Kind::File),
                entry(Some("sudo"), Kind::Link("su".into())),
                entry(Some(&long), Kind::File),
            ];
            assert_eq!(found, expected, "{format}");
        }
    }

    #[tokio::test]
    async fn a_files_content_is_read_if_it_is_one_and_as_long_as_expected() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("executor"), [7; 1000]).unwrap();
        symlink("executor", folder.path().join("link")).unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        let archived = |format: &str, name: &str| {
            let made =
                Command::new("tar").args(["-c", "--format", format, name]).current_dir(&folder).output().unwrap();
            made.stdout
        };
        for format in ["gnu", "pax"] {
            assert_eq!(file(&archived(format, "executor")[..], 1000).await.unwrap().unwrap(), [7; 1000], "{format}");
            assert_eq!(file(&archived(format, "executor")[..], 999).await.unwrap(), None);
            assert_eq!(file(&archived(format, "link")[..], 0).await.unwrap(), None);
            assert_eq!(file(&archived(format, "folder")[..], 0).await.unwrap(), None);
        }
        assert!(file(&archived("gnu", "executor")[..900], 1000).await.is_err(), "it was cut short");
    }

    #[tokio::test]
    async fn nonsense_is_refused_or_empty() {
        assert!(read(&[b'9'; 2048][..]).await.is_err());
        assert_eq!(read(&[1; 100][..]).await.unwrap(), []);
        for name in ["bin/../../etc", "bin/a/b", "bin/..", "bin//"] {
            assert!(within(name).is_none_or(|name| name.is_none()), "{name}");
        }
    }
}
