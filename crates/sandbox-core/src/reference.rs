//! The name of an image in a registry, as people type it: `python:3.12-slim`, `localhost:5000/team/tool@sha256:…`.
//!
//! Parsed once, by the grammar of the distribution specification. What was left out is filled in when it is asked for;
//! what was typed is what is shown.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Where images come from whose registry is not named.
const DEFAULT_REGISTRY: &str = "docker.io";
/// No longer name is taken.
const LONGEST: usize = 512;

/// An image in a registry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reference {
    text: String,
    /// Where the repository begins; the registry is before it, if one was named.
    repository: usize,
    /// Where the repository ends.
    end: usize,
    /// Where the digest begins, with its `@`; the end of the text if there is none.
    digest: usize,
}

/// The text names no image.
#[derive(Debug, thiserror::Error)]
#[error("`{text}` is not the name of an image: {why}")]
pub struct InvalidReference {
    text: String,
    why: &'static str,
}

impl Reference {
    /// As it was typed.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host, and the port if there is one, of the registry.
    pub fn registry(&self) -> &str {
        self.text[..self.repository].strip_suffix('/').unwrap_or(DEFAULT_REGISTRY)
    }

    /// The name within the registry.
    pub fn repository(&self) -> String {
        let name = &self.text[self.repository..self.end];
        if self.registry() == DEFAULT_REGISTRY && !name.contains('/') {
            return format!("library/{name}");
        }
        name.to_owned()
    }

    /// The tag; `latest` where neither a tag nor a digest was typed.
    pub fn tag(&self) -> Option<&str> {
        let typed = self.text[self.end..self.digest].strip_prefix(':');
        typed.or((self.digest().is_none()).then_some("latest"))
    }

    /// The digest, `sha256:` and so on, if one was typed: then nothing else decides which image it is.
    pub fn digest(&self) -> Option<&str> {
        self.text[self.digest..].strip_prefix('@')
    }

    /// With everything that was left out: two that mean the same are equal here.
    pub fn in_full(&self) -> String {
        let tag = self.tag().map(|tag| format!(":{tag}")).unwrap_or_default();
        format!("{}/{}{tag}{}", self.registry(), self.repository(), &self.text[self.digest..])
    }
}

impl FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        parse(text).map_err(|why| InvalidReference { text: text.chars().take(80).collect(), why })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    if text.len() > LONGEST {
        return Err("it is too long");
    }
    let (name, digest) = text.split_at(text.find('@').unwrap_or(text.len()));
    if let Some(digest) = digest.strip_prefix('@') {
        check_digest(digest)?;
    }
    // The first part is a registry where it could not be a folder: it has a dot, a port, or is this machine.
    let repository = match name.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => {
            check_registry(host)?;
            host.len() + 1
        }
        _ => 0,
    };
    let rest = &name[repository..];
    let tag = rest.find(':').unwrap_or(rest.len());
    let (path, tag) = rest.split_at(tag);
    if let Some(tag) = tag.strip_prefix(':') {
        check_tag(tag)?;
    }
    if !path.split('/').all(is_component) {
        return Err("a name is made of small letters and digits, divided by . _ - and /");
    }
    Ok(Reference { text: text.to_owned(), repository, end: repository + path.len(), digest: name.len() })
}

fn check_registry(host: &str) -> Result<(), &'static str> {
    let (name, port) = host.rsplit_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    if !name.split('.').all(label) {
        return Err("the registry is not the name of a host");
    }
    match port {
        Some(port) if port.parse::<u16>().map_or(true, |port| port == 0) => Err("the registry's port is no port"),
        _ => Ok(()),
    }
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if tag.is_empty() || tag.len() > 128 || tag.starts_with(['.', '-']) || !tag.chars().all(good) {
        return Err("a tag is made of at most 128 letters, digits and . _ -");
    }
    Ok(())
}

fn check_digest(digest: &str) -> Result<(), &'static str> {
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    match digest.split_once(':') {
        Some(("sha256", text)) if text.len() == 64 && hex(text) => Ok(()),
        Some(("sha512", text)) if text.len() == 128 && hex(text) => Ok(()),
        _ => Err("a digest is `sha256:` and 64 hexadecimal digits, or `sha512:` and 128"),
    }
}

/// `[a-z0-9]+` parts, divided by one `.`, one or two `_`, or any number of `-`.
fn is_component(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let divided = |divider: &[u8]| matches!(divider, b"." | b"_" | b"__") || divider.iter().all(|byte| *byte == b'-');
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(|byte| plain(*byte)) && bytes.last().is_some_and(|byte| plain(*byte));
    ends && bytes.split(|byte| plain(*byte)).filter(|divider| !divider.is_empty()).all(divided)
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Reference> for String {
    fn from(reference: Reference) -> Self {
        reference.text
    }
}

impl TryFrom<String> for Reference {
    type Error = InvalidReference;

    fn try_from(text: String) -> Result<Self, InvalidReference> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn what_was_left_out_is_filled_in() {
        for (text, full) in [
            ("debian", "docker.io/library/debian:latest"),
            ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
            ("me/tool", "docker.io/me/tool:latest"),
            ("docker.io/debian", "docker.io/library/debian:latest"),
            ("localhost/tool:1", "localhost/tool:1"),
            ("localhost:5000/a/b_c/d--e.f", "localhost:5000/a/b_c/d--e.f:latest"),
            ("127.0.0.1:5000/x", "127.0.0.1:5000/x:latest"),
            ("registry.example.com/team/tool:V1.0", "registry.example.com/team/tool:V1.0"),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().in_full(), full, "{text}");
        }
        let pinned: Reference = format!("me/tool@{DIGEST}").parse().unwrap();
        assert_eq!((pinned.tag(), pinned.digest()), (None, Some(DIGEST)));
        let both: Reference = format!("me/tool:1@{DIGEST}").parse().unwrap();
        assert_eq!((both.tag(), both.digest()), (Some("1"), Some(DIGEST)));
        assert_eq!(both.in_full(), format!("docker.io/me/tool:1@{DIGEST}"));
    }

    #[test]
    fn what_names_no_image_is_refused() {
        let long = format!("a/{}", "b".repeat(600));
        let short = &DIGEST[..60];
        for text in [
            "",
            "Debian",
            "/debian",
            "debian/",
            "a//b",
            "a/../b",
            "-a",
            "a-",
            "a___b",
            "a..b",
            "a b",
            "a\0b",
            "a:",
            "a:-x",
            "a:b:c",
            "a@",
            "a@sha256:xyz",
            "a@md5:00",
            "http://a/b",
            "é.example/a",
            "-x.com/a",
            "a.b:0/c",
            "a.b:99999/c",
            "a@b@c",
            ".",
            "..",
            "--privileged",
            &long,
            &format!("a@{short}"),
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_image_or_an_error(text in "[a-zA-Z0-9./:@_ -]{0,40}") {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert_eq!(reference.to_string(), text.clone());
                let full: Reference = reference.in_full().parse().unwrap();
                prop_assert_eq!(full.in_full(), reference.in_full());
            }
        }
    }
}
