//! Checking paths before the system sees them: every one is a place for files and a way down from it.

use sandbox_executor::protocol::{Failure, Path, Reason};

use super::failure::{failed, shown};

/// Longest path, as the system's own limit.
const MAX_PATH: usize = 4095;

/// A path that was checked. Links are the kernel's to check, when it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The index of its place.
    pub place: usize,
    /// The way down from there: names joined by `/`; empty for the place itself.
    pub rest: Vec<u8>,
}

impl Located {
    /// The folder above, and the name in it. A place itself has neither.
    pub fn split(&self) -> Option<(&[u8], &[u8])> {
        match self.rest.iter().rposition(|&byte| byte == b'/') {
            Some(at) => Some((&self.rest[..at], &self.rest[at + 1..])),
            None if self.rest.is_empty() => None,
            None => Some((b"", &self.rest)),
        }
    }
}

/// Finds the place that a path lies in.
pub fn locate(path: &Path, places: &[String], workspace: &str) -> Result<Located, Failure> {
    let bytes = &path.0;
    let invalid = |why: &str| failed(Reason::Invalid, format!("{}: {why}", shown(bytes)));
    if bytes.is_empty() {
        return Err(invalid("a path must not be empty"));
    }
    if bytes.len() > MAX_PATH {
        return Err(invalid("the path is too long"));
    }
    if bytes.contains(&0) {
        return Err(invalid("a path must not hold a NUL byte"));
    }
    let mut names = if bytes[0] == b'/' { Vec::new() } else { names(workspace.as_bytes()) };
    names.extend(self::names(bytes));
    if names.contains(&&b".."[..]) {
        let what = format!("{}: `..` is not allowed; give the path without it", shown(bytes));
        return Err(failed(Reason::OutsidePlaces, what));
    }
    // The deepest place wins, where one lies in another.
    let within = places.iter().map(|place| self::names(place.as_bytes())).enumerate();
    let within = within.filter(|(_, place)| names.starts_with(place)).max_by_key(|(_, place)| place.len());
    match within {
        Some((place, above)) => Ok(Located { place, rest: names[above.len()..].join(&b'/') }),
        None => {
            let what = format!("{}: files can only be reached in {}", shown(bytes), places.join(", "));
            Err(failed(Reason::OutsidePlaces, what))
        }
    }
}

fn names(path: &[u8]) -> Vec<&[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn find(path: &[u8]) -> Result<Located, Reason> {
        let places = ["/workspace", "/home/sandbox", "/workspace/deep"].map(str::to_owned);
        locate(&Path::from(path), &places, "/workspace").map_err(|failure| failure.reason)
    }

    #[test]
    fn paths_fall_into_their_place() {
        let at = |place, rest: &[u8]| Ok(Located { place, rest: rest.to_vec() });
        assert_eq!(find(b"a/./b//c"), at(0, b"a/b/c"));
        assert_eq!(find(b"/workspace"), at(0, b""));
        assert_eq!(find(b"/home/sandbox/x"), at(1, b"x"));
        assert_eq!(find(b"deep/x"), at(2, b"x"));
        assert_eq!(find(b"\xff\xfe"), at(0, b"\xff\xfe"));
        assert_eq!(find(b"/workspace2"), Err(Reason::OutsidePlaces));
        assert_eq!(find(b"/etc/passwd"), Err(Reason::OutsidePlaces));
        assert_eq!(find(b"a/../b"), Err(Reason::OutsidePlaces));
        assert_eq!(find(b""), Err(Reason::Invalid));
        assert_eq!(find(b"a\0b"), Err(Reason::Invalid));
        assert_eq!(find(&[b'a'; 5000]), Err(Reason::Invalid));
    }

    proptest! {
        #[test]
        fn a_located_path_only_goes_down(path in prop::collection::vec(prop::sample::select(b"/.ab\0".to_vec()), 0..40)) {
            if let Ok(located) = find(&path) {
                prop_assert!(!located.rest.starts_with(b"/") && !located.rest.ends_with(b"/"));
                for name in located.rest.split(|&byte| byte == b'/').filter(|_| !located.rest.is_empty()) {
                    prop_assert!(!name.is_empty() && name != b"." && name != b".." && !name.contains(&0));
                }
                if let Some((folder, name)) = located.split() {
                    prop_assert!(!name.is_empty() && folder.len() < located.rest.len());
                }
            }
        }
    }
}
