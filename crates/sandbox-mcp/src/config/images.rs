//! Images by name in the settings: which of them models may ask for, and how registries are reached.

use std::{fmt, path::PathBuf};

use sandbox_core::{Bytes, Reference};
use sandbox_image::{ImageSettings, registry::Registries};

/// Names of images that models may ask for: one image (`python:3.12-slim`), all tags of one (`python:*`), or everything
/// below a folder of a registry (`ghcr.io/team/*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    text: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// This one, in full.
    One(String),
    /// This repository, with its registry.
    Tags(String),
    /// What begins so.
    Below(String),
}

/// What an operator lists in `allowed_images`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Folders with root file systems.
    pub folders: Vec<PathBuf>,
    /// Names.
    pub names: Vec<NamePattern>,
}

impl NamePattern {
    /// What was written.
    pub fn parse(text: &str) -> Option<Self> {
        let whole = |reference: &Reference| format!("{}/{}", reference.registry(), reference.repository());
        let kind = if let Some(name) = text.strip_suffix(":*") {
            let reference: Reference = name.parse().ok()?;
            // A tag or digest in front of a star makes no sense.
            (reference.as_str().len() == name.len() && reference.tag() == Some("latest") && !name.ends_with(":latest"))
                .then(|| Kind::Tags(whole(&reference)))?
        } else if let Some(folder) = text.strip_suffix("/*") {
            // Any name below it tells where it is.
            let below: Reference = format!("{folder}/x").parse().ok()?;
            Kind::Below(whole(&below).strip_suffix('x')?.to_owned())
        } else {
            Kind::One(text.parse::<Reference>().ok()?.in_full())
        };
        Some(Self { text: text.to_owned(), kind })
    }

    /// Whether it means this image.
    pub fn matches(&self, image: &Reference) -> bool {
        let whole = format!("{}/{}", image.registry(), image.repository());
        match &self.kind {
            Kind::One(name) => *name == image.in_full(),
            Kind::Tags(name) => *name == whole,
            Kind::Below(folder) => whole.starts_with(folder),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What `allowed_images` must be.
pub const ALLOWED: &str = "a list of absolute paths of folders and of names of images, such as `python:3.12-slim`, \
                           `python:*` or `ghcr.io/team/*` (in the environment divided by commas, folders also by colons)";

/// Reads `allowed_images`.
pub fn allowed(said: &toml::Value) -> Option<Allowed> {
    let mut allowed = Allowed::default();
    for entry in entries(said)? {
        if entry.starts_with('/') {
            allowed.folders.push(entry.into());
        } else {
            allowed.names.push(NamePattern::parse(&entry)?);
        }
    }
    Some(allowed)
}

fn entries(said: &toml::Value) -> Option<Vec<String>> {
    match said {
        toml::Value::String(text) => {
            let pieces = text.split(',').map(str::trim).filter(|piece| !piece.is_empty());
            let apart = |piece: &str| -> Vec<String> {
                match piece.starts_with('/') {
                    true => piece.split(':').filter(|part| !part.is_empty()).map(str::to_owned).collect(),
                    false => vec![piece.to_owned()],
                }
            };
            Some(pieces.flat_map(apart).collect())
        }
        toml::Value::Array(list) => list.iter().map(|entry| entry.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

/// What `registry_mirrors` must be.
pub const MIRRORS: &str = "a list of `REGISTRY=ADDRESS`, such as `docker.io=https://mirror.example.com`";

/// Reads `registry_mirrors`: those of a registry are asked in their order.
pub fn mirrors(said: &toml::Value) -> Option<Registries> {
    let mut registries = Registries::default();
    for entry in entries(said)? {
        let (registry, address) = entry.split_once('=')?;
        let url = url::Url::parse(address).ok().filter(|url| url.has_host() && url.query().is_none())?;
        matches!(url.scheme(), "http" | "https").then_some(())?;
        format!("{registry}/x").parse::<Reference>().ok().filter(|image| image.registry() == registry)?;
        registries.mirrors.entry(registry.to_owned()).or_default().push(address.to_owned());
    }
    Some(registries)
}

/// What `insecure_registries` must be.
pub const INSECURE: &str = "a list of hosts, each with a port or without, such as `registry.lan:5000`";

/// Reads `insecure_registries`.
pub fn insecure(said: &toml::Value) -> Option<Vec<String>> {
    let good = |host: &String| {
        url::Url::parse(&format!("http://{host}")).is_ok_and(|url| url.path() == "/" && url.username().is_empty())
            && !host.contains(['/', '@', ' '])
    };
    entries(said)?.into_iter().map(|host| Some(host).filter(good)).collect()
}

/// All of it together.
pub fn settings(budget: Option<Bytes>, mirrors: Option<Registries>, insecure: Option<Vec<String>>) -> ImageSettings {
    let mut settings = ImageSettings::default();
    settings.budget = budget.map_or(settings.budget, |budget| budget.0);
    settings.registries = mirrors.unwrap_or_default();
    settings.registries.insecure = insecure.unwrap_or_default();
    settings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, image: &str) -> bool {
        NamePattern::parse(pattern).unwrap().matches(&image.parse().unwrap())
    }

    #[test]
    fn patterns_match_what_they_say_and_nothing_else() {
        for (pattern, good, bad) in [
            (
                "python:3.12",
                &["python:3.12", "docker.io/library/python:3.12"][..],
                &["python", "python:3", "x/python:3.12"][..],
            ),
            ("python", &["python:latest", "python"], &["python:3"]),
            (
                "python:*",
                &["python", "python:3.12", "docker.io/python:x"],
                &["pythonx", "me/python:1", "quay.io/python:1"],
            ),
            (
                "ghcr.io/team/*",
                &["ghcr.io/team/a", "ghcr.io/team/b/c:1"],
                &["ghcr.io/teamx/a", "ghcr.io/team:1", "team/a"],
            ),
            ("team/*", &["team/a:2", "docker.io/team/b"], &["teams/a", "ghcr.io/team/a"]),
            ("localhost:5000/*", &["localhost:5000/a"], &["localhost:5001/a", "localhost/a"]),
        ] {
            good.iter().for_each(|image| assert!(matches(pattern, image), "{pattern} means {image}"));
            bad.iter().for_each(|image| assert!(!matches(pattern, image), "{pattern} does not mean {image}"));
        }
        for bad in ["*", "*:*", "/*", "a*", "a/*/b", "python:3*", "a:b:*", "a@*", "", ":*"] {
            assert_eq!(NamePattern::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn folders_and_names_stand_in_one_list() {
        let text = toml::Value::String("/a:/b, python:3.12,team/*".into());
        let read = allowed(&text).unwrap();
        assert_eq!(read.folders, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(read.names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["python:3.12", "team/*"]);
        assert_eq!(allowed(&toml::Value::String("usr ".into())).unwrap().names.len(), 1);
        assert_eq!(allowed(&toml::Value::String("../x".into())), None);
    }

    #[test]
    fn registries_are_read() {
        let list =
            |texts: &[&str]| toml::Value::Array(texts.iter().map(|text| toml::Value::String((*text).into())).collect());
        let read = mirrors(&list(&["docker.io=https://a.example", "docker.io=https://b.example/hub"])).unwrap();
        assert_eq!(read.mirrors["docker.io"].len(), 2);
        for bad in ["docker.io", "docker.io=ftp://x", "=https://x", "docker.io=https://x?y", "UP PER=https://x"] {
            assert_eq!(mirrors(&list(&[bad])), None, "{bad}");
        }
        assert_eq!(insecure(&list(&["lan:5000", "10.0.0.1"])).unwrap().len(), 2);
        for bad in ["http://x", "a/b", "me@x", "a b", ""] {
            assert_eq!(insecure(&list(&[bad])), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_pattern_or_an_error(text in "[a-z*:/@.0-9]{0,20}", image in "[a-z:/.]{1,12}") {
            if let (Some(pattern), Ok(image)) = (NamePattern::parse(&text), image.parse::<Reference>()) {
                let _ = pattern.matches(&image);
            }
        }
    }
}
