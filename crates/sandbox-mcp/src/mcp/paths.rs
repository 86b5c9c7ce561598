//! Paths inside a sandbox as callers write them, and links to files for `resources/read`.
//!
//! Whether a path may be used is the executor's to say; here it only gets a form in which it can be asked.

use std::fmt::Write;

use sandbox_core::{Denial, Policy, SessionId};
use sandbox_executor::{
    client::ClientError,
    protocol::{Path, Reason},
};

use super::{error::ToolError, schema::shortened};

/// What links begin with.
pub const SCHEME: &str = "sandbox://";
/// No path is longer (PATH_MAX).
const MAX_PATH: usize = 4096;

/// A path that was given as text, or as a link into the same sandbox.
pub fn parse(session: &SessionId, text: &str) -> Result<Path, ToolError> {
    let bytes = if text.starts_with(SCHEME) {
        let (linked, path) = parse_link(text)?;
        if linked != *session {
            let what = format!("the link {} leads to another sandbox than {session}", shortened(text));
            return Err(ToolError::Invalid(what));
        }
        path.0
    } else {
        text.as_bytes().to_vec()
    };
    let problem = if bytes.is_empty() {
        Some("a path is empty; name a file, such as data.csv")
    } else if bytes.contains(&0) {
        Some("the path holds a NUL character, which no file name can have")
    } else if bytes.len() > MAX_PATH {
        Some("the path is longer than 4,096 bytes; use a shorter one")
    } else {
        None
    };
    match problem {
        Some(what) => Err(ToolError::Invalid(what.to_owned())),
        None => Ok(Path(bytes)),
    }
}

/// The link to a file. The path is absolute.
pub fn link(session: &SessionId, path: &Path) -> String {
    let mut link = format!("{SCHEME}{session}");
    for &byte in &path.0 {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            link.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(link, "%{byte:02X}");
        }
    }
    link
}

/// What a link leads to.
pub fn parse_link(link: &str) -> Result<(SessionId, Path), ToolError> {
    let wrong = || {
        let shown = shortened(link);
        ToolError::Invalid(format!(
            "`{shown}` is not a link to a file: they look like {SCHEME}SESSION_ID/workspace/file"
        ))
    };
    let rest = link.strip_prefix(SCHEME).ok_or_else(wrong)?;
    let slash = rest.find('/').ok_or_else(wrong)?;
    let (session, path) = rest.split_at(slash);
    Ok((session.parse().map_err(|_| wrong())?, Path(decoded(path.as_bytes()).ok_or_else(wrong)?)))
}

fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    Some(bytes)
}

/// The path as text. Names that are no text are shown as well as can be.
pub fn shown(path: &Path) -> String {
    String::from_utf8_lossy(&path.0).into_owned()
}

/// Whether a path is all text.
pub fn is_text(path: &Path) -> bool {
    std::str::from_utf8(&path.0).is_ok()
}

/// The refusal, if it is the policy's and not the file's.
pub fn denial(error: &ClientError, path: &str, policy: &Policy) -> Option<Denial> {
    let ClientError::Refused(failure) = error else { return None };
    let limits = &policy.limits;
    let (reason, rule, message) = match failure.reason {
        Reason::OutsidePlaces => {
            let message = "file tools reach /workspace, HOME (/home/sandbox) and /tmp, and nothing outside them";
            (sandbox_core::Reason::OutsidePlaces, "places for files".to_owned(), message.to_owned())
        }
        Reason::Full if path.starts_with("/tmp") => {
            let (rule, message) =
                (format!("limits.tmp = {}", limits.tmp), format!("all {} of /tmp are used", limits.tmp));
            (sandbox_core::Reason::TmpLimit, rule, message)
        }
        Reason::Full => {
            let message = format!("there is no room left: the disk limit is {}", limits.disk);
            (sandbox_core::Reason::DiskLimit, format!("limits.disk = {}", limits.disk), message)
        }
        _ => return None,
    };
    let (target, level) = (shortened(path), policy.name.clone());
    Some(Denial {
        reason,
        target,
        rule,
        level,
        message,
        how_to_ask: advice(failure.reason).unwrap_or_default().to_owned(),
        verdict: None,
    })
}

/// A refusal about a file, with what to do.
pub fn explained(error: &ClientError) -> String {
    let advice = match error {
        ClientError::Refused(failure) => advice(failure.reason),
        _ => None,
    };
    match advice {
        Some(advice) => format!("{}. {advice}", error.to_string().trim_end_matches('.')),
        None => error.to_string(),
    }
}

fn advice(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::OutsidePlaces => {
            Some("Use a path in /workspace, HOME (/home/sandbox) or /tmp that no link leads out of")
        }
        Reason::Full => Some("Delete files, or create a sandbox whose policy gives more space"),
        Reason::WrongKind => Some("Name a regular file; list_files shows what is there"),
        Reason::Denied => Some("The sandbox's user may not; change it with chmod, or use another path"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn session() -> SessionId {
        "sandbox_local_0123456789abcdef01234567".parse().unwrap()
    }

    proptest! {
        #[test]
        fn every_name_survives_as_a_link(name in proptest::collection::vec(1u8..=255, 1..100)) {
            let path = Path([b"/workspace/", name.as_slice()].concat());
            let link = link(&session(), &path);
            prop_assert!(link.is_ascii());
            prop_assert_eq!(parse_link(&link).unwrap(), (session(), path));
        }

        #[test]
        fn no_text_makes_a_link_that_panics(text in ".{0,200}") {
            let _ = parse_link(&text);
            let _ = parse_link(&format!("sandbox://{}/{text}", session()));
        }
    }

    #[test]
    fn paths_that_cannot_be_are_refused_here() {
        for text in ["", "a\0b", &"x".repeat(5000), "sandbox://elsewhere/x"] {
            assert!(parse(&session(), text).is_err(), "{text:.20}");
        }
        let other = "sandbox://sandbox_local_ffffffffffffffffffffffff/workspace/x";
        assert!(parse(&session(), other).unwrap_err().to_string().contains("another sandbox"));
        assert_eq!(parse(&session(), "../etc/passwd").unwrap(), Path::from("../etc/passwd"));
    }
}
