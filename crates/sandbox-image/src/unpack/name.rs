//! Names of entries in a layer, checked once: parts beneath the layer's root, and nothing else.

use std::ffi::{CStr, CString};

use crate::{ImageError, limits};

/// How the name of an entry begins that removes something of a lower layer.
const WHITEOUT: &[u8] = b".wh.";
/// Removes everything of lower layers from its folder.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Notes of a file system of long ago.
const NOTES: &[u8] = b".wh..wh.";

/// A path beneath the root of a layer, in parts. None is empty, `.`, `..`, or has a slash in it. The root itself has no
/// part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Vec<CString>);

/// What an entry means by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// What it says.
    Entry(Name),
    /// This is not there any more.
    Whiteout(Name),
    /// What lower layers have in this folder is not there any more.
    Opaque(Name),
    /// Nothing.
    Ignored,
}

impl Name {
    /// Checks a name.
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        let refuse = |why: &str| Err(ImageError::malformed(format!("the name `{}` {why}", shown(bytes))));
        if bytes.is_empty() {
            return refuse("is empty");
        }
        if bytes.starts_with(b"/") {
            return refuse("is absolute");
        }
        if bytes.len() > limits::PATH {
            return refuse("is too long");
        }
        let mut parts = Vec::new();
        for part in bytes.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." => return refuse("leads upwards (`..`)"),
                part if part.len() > limits::NAME => return refuse("has a part that is too long"),
                part => match CString::new(part) {
                    Ok(part) => parts.push(part),
                    Err(_) => return refuse("has a zero byte in it"),
                },
            }
        }
        if parts.len() > limits::DEPTH {
            return refuse("is nested too deeply");
        }
        Ok(Self(parts))
    }

    /// Of parts that were checked.
    pub fn of(parts: &[CString]) -> Self {
        Self(parts.to_vec())
    }

    /// What an entry with this name means.
    pub fn meaning(self) -> Result<Meaning, ImageError> {
        let Some((folder, last)) = self.split() else { return Ok(Meaning::Entry(self)) };
        let Some(hidden) = last.to_bytes().strip_prefix(WHITEOUT) else { return self.inside_plain() };
        let folder = Self(folder.to_vec());
        if last.to_bytes() == OPAQUE {
            return Ok(Meaning::Opaque(folder));
        }
        if last.to_bytes().starts_with(NOTES) {
            return Ok(Meaning::Ignored);
        }
        match hidden {
            b"" | b"." | b".." => {
                Err(ImageError::malformed(format!("the name `{}` removes nothing that could be there", self.shown())))
            }
            hidden => {
                let mut parts = folder.0;
                parts.extend(CString::new(hidden).ok());
                Ok(Meaning::Whiteout(Self(parts)))
            }
        }
    }

    /// Nothing lies in what removes something.
    fn inside_plain(self) -> Result<Meaning, ImageError> {
        let (notes, odd) = self.0.iter().fold((false, false), |(notes, odd), part| {
            let part = part.to_bytes();
            (notes || part.starts_with(NOTES), odd || part.starts_with(WHITEOUT))
        });
        match (notes, odd) {
            (true, _) => Ok(Meaning::Ignored),
            (false, true) => {
                Err(ImageError::malformed(format!("the name `{}` leads through one that removes", self.shown())))
            }
            _ => Ok(Meaning::Entry(self)),
        }
    }

    /// The folder and the last part; nothing for the root.
    pub fn split(&self) -> Option<(&[CString], &CStr)> {
        self.0.split_last().map(|(last, folder)| (folder, last.as_c_str()))
    }

    /// All parts.
    pub fn parts(&self) -> &[CString] {
        &self.0
    }

    /// For messages.
    pub fn shown(&self) -> String {
        let parts: Vec<&[u8]> = self.0.iter().map(|part| part.to_bytes()).collect();
        shown(&parts.join(&b'/'))
    }

    /// To be written down; [`Self::parse`] reads it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let parts: Vec<&[u8]> = self.0.iter().map(|part| part.to_bytes()).collect();
        if parts.is_empty() { b".".to_vec() } else { parts.join(&b'/') }
    }
}

/// A name for people: without what a terminal would obey, and not endless.
pub fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain: String = text.chars().take(120).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().count() > 120 { format!("{plain}…") } else { plain }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn meaning(text: &str) -> Result<Meaning, String> {
        Name::parse(text.as_bytes()).and_then(Name::meaning).map_err(|error| error.to_string())
    }

    fn name(text: &str) -> Name {
        Name::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn names_stay_beneath_the_root() {
        assert_eq!(name("./a//b/./c/").shown(), "a/b/c");
        assert!(name("./").parts().is_empty());
        let long = format!("a/{}", "b".repeat(256));
        let deep = "a/".repeat(400);
        for (bad, says) in [
            ("", "empty"),
            ("/etc/passwd", "absolute"),
            ("../x", "`..`"),
            ("a/../../x", "`..`"),
            ("a/..", "`..`"),
            ("a\0b", "zero byte"),
            (&long, "too long"),
            (&"x".repeat(5000), "too long"),
            (&deep, "too deeply"),
        ] {
            let error = Name::parse(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn whiteouts_remove_what_could_be_there() {
        assert_eq!(meaning("a/.wh.b"), Ok(Meaning::Whiteout(name("a/b"))));
        assert_eq!(meaning(".wh.b"), Ok(Meaning::Whiteout(name("b"))));
        assert_eq!(meaning("a/.wh..wh..opq"), Ok(Meaning::Opaque(name("a"))));
        assert_eq!(meaning(".wh..wh.plnk/1.2"), Ok(Meaning::Ignored));
        assert_eq!(meaning("a/.wh..wh.aufs"), Ok(Meaning::Ignored));
        for bad in [".wh.", "a/.wh.", "a/.wh..", "a/.wh...", ".wh.a/b"] {
            assert!(meaning(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_safe_name_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(name) = Name::parse(&bytes) {
                for part in name.parts() {
                    let part = part.to_bytes();
                    prop_assert!(!part.is_empty() && part != b"." && part != b".." && !part.contains(&b'/'));
                }
                prop_assert_eq!(Name::parse(&name.to_bytes()).unwrap(), name.clone());
                let _ = name.meaning();
            }
        }

        #[test]
        fn what_removes_is_never_left_as_a_file(bytes in "[a./wh]{0,24}") {
            if let Ok(Meaning::Entry(name)) = Name::parse(bytes.as_bytes()).and_then(Name::meaning) {
                prop_assert!(name.parts().iter().all(|part| !part.to_bytes().starts_with(WHITEOUT)));
            }
        }
    }
}
