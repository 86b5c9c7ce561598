//! Turning what the system says into what a caller can act on.

use rustix::io::Errno;
use sandbox_executor::protocol::{Failure, Reason};

/// Longest message: what a caller sent may be part of it, and it must fit into a frame.
const LONGEST: usize = 4 << 10;

/// A failure in words.
pub fn failed(reason: Reason, what: impl Into<String>) -> Failure {
    Failure { reason, what: shortened(what.into(), LONGEST) }
}

/// At most so many bytes of a text.
pub fn shortened(mut text: String, longest: usize) -> String {
    if text.len() > longest {
        let end = (0..=longest).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// A failure about a path.
pub fn about(path: &[u8], error: Errno) -> Failure {
    let name = shown(path);
    let (reason, why) = match error {
        Errno::NOENT => (Reason::NotFound, "no such file or folder"),
        Errno::ACCESS | Errno::PERM => (Reason::Denied, "the sandbox's user may not"),
        Errno::ROFS => (Reason::Denied, "this part of the sandbox is read-only"),
        Errno::XDEV => (Reason::OutsidePlaces, "it leads outside the places for files"),
        Errno::LOOP => (Reason::OutsidePlaces, "a link that leads in circles or to no file"),
        Errno::NOTDIR => (Reason::WrongKind, "a part of the path is not a folder"),
        Errno::ISDIR => (Reason::WrongKind, "it is a folder"),
        Errno::NXIO | Errno::NODEV => (Reason::WrongKind, "it is not a regular file"),
        Errno::NOTEMPTY | Errno::EXIST => (Reason::WrongKind, "a folder that is not empty, or another thing, is there"),
        Errno::NOSPC | Errno::DQUOT => (Reason::Full, "the sandbox's disk is full; remove something first"),
        Errno::FBIG => (Reason::Full, "larger than a file may be in this sandbox"),
        Errno::NAMETOOLONG => (Reason::Invalid, "the name is too long"),
        Errno::INVAL | Errno::ILSEQ => (Reason::Invalid, "the system does not take such a name"),
        Errno::MFILE | Errno::NFILE => (Reason::TooMany, "too many open files"),
        _ => return failed(Reason::System, format!("{name}: {error}")),
    };
    failed(reason, format!("{name}: {why}"))
}

/// A path for a message: readable, and not endless.
pub fn shown(path: &[u8]) -> String {
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(&path[..path.len().min(LONGEST)]);
    let text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if path.len() > LONGEST { format!("`{text}…`") } else { format!("`{text}`") }
}
