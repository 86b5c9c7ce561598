//! What images say of themselves: manifests, indexes and configurations, in the OCI form and in Docker's (version 2,
//! schema 2). Only what is used is read.

use serde::Deserialize;

use crate::{Digest, ImageError, limits};

/// Kinds of manifests that are understood, for registries.
pub const ACCEPTED: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

/// Content, named by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What kind of content.
    #[serde(default)]
    pub media_type: String,
    /// What it is.
    pub digest: Digest,
    /// How long it is.
    pub size: u64,
    /// What it is for, in an index.
    #[serde(default)]
    pub platform: Option<Platform>,
    /// Names and the like, in an index.
    #[serde(default)]
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// What machine an image is for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Platform {
    /// `amd64`, `arm64` …
    pub architecture: String,
    /// `linux` …
    pub os: String,
    /// `v8` …
    #[serde(default)]
    pub variant: Option<String>,
}

/// One image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// How it was made and what it needs.
    pub config: Descriptor,
    /// What it is made of, the lowest first.
    pub layers: Vec<Descriptor>,
}

/// What a registry answers, or a layout has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// One image.
    Image(Manifest),
    /// Several.
    Index(Vec<Descriptor>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    schema_version: Option<u32>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
}

impl Document {
    /// Reads it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        let written: Written = serde_json::from_slice(bytes)
            .map_err(|error| ImageError::malformed(format!("its manifest cannot be read: {error}")))?;
        if written.schema_version == Some(1) {
            return Err(ImageError::malformed(
                "its manifest has the old form (schema 1), which is no longer understood",
            ));
        }
        match written {
            Written { config: Some(config), layers: Some(layers), manifests: None, .. } => {
                if layers.len() > limits::LAYERS {
                    let count = layers.len();
                    return Err(ImageError::malformed(format!("it has {count} layers, more than {}", limits::LAYERS)));
                }
                Ok(Self::Image(Manifest { config, layers }))
            }
            Written { config: None, layers: None, manifests: Some(manifests), .. } => Ok(Self::Index(manifests)),
            _ => Err(ImageError::malformed("its manifest is neither that of an image nor a list of images")),
        }
    }
}

/// What this machine's images are called.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The image of a list that is for this machine.
pub fn choose(list: &[Descriptor]) -> Result<&Descriptor, ImageError> {
    let ours = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture();
    let named = list.iter().filter(|entry| entry.platform.as_ref().is_some_and(ours));
    // The plainest of several variants runs everywhere.
    let plainest = |entry: &&Descriptor| entry.platform.as_ref().and_then(|platform| platform.variant.clone());
    if let Some(found) = named.min_by_key(plainest) {
        return Ok(found);
    }
    match list {
        // A list of one that does not say; its configuration will.
        [only] if only.platform.is_none() => Ok(only),
        _ => {
            let known = list.iter().filter_map(|entry| entry.platform.as_ref());
            let mut known: Vec<_> =
                known.map(|platform| format!("{}/{}", platform.os, platform.architecture)).collect();
            known.dedup();
            known.truncate(12);
            let ours = format!("linux/{}", architecture());
            Err(ImageError::malformed(format!("it is not for this machine ({ours}), but for {}", known.join(", "))))
        }
    }
}

/// How an image was made and what it needs, as far as that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Variables that its commands expect.
    pub env: Vec<(String, String)>,
    /// What its layers are when unpacked, the lowest first.
    pub diff_ids: Vec<Digest>,
}

#[derive(Deserialize)]
struct WrittenConfig {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    config: Option<WrittenEnv>,
    rootfs: Option<WrittenRoot>,
}

#[derive(Deserialize)]
struct WrittenEnv {
    #[serde(rename = "Env", default)]
    env: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct WrittenRoot {
    #[serde(default)]
    diff_ids: Vec<Digest>,
}

impl Config {
    /// Reads it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        let written: WrittenConfig = serde_json::from_slice(bytes)
            .map_err(|error| ImageError::malformed(format!("its configuration cannot be read: {error}")))?;
        let foreign = |said: &str, ours: &str| !said.is_empty() && said != ours;
        if foreign(&written.os, "linux") || foreign(&written.architecture, architecture()) {
            return Err(ImageError::malformed(format!(
                "it is for {}/{}, and this machine is linux/{}",
                written.os,
                written.architecture,
                architecture()
            )));
        }
        let root = written.rootfs.ok_or_else(|| ImageError::malformed("its configuration names no layers"))?;
        if root.diff_ids.len() > limits::LAYERS {
            return Err(ImageError::malformed(format!("it has more than {} layers", limits::LAYERS)));
        }
        let env = written.config.and_then(|config| config.env).unwrap_or_default();
        let variable = |text: String| {
            let (name, value) = text.split_once('=')?;
            let good = !name.is_empty() && !name.contains('\0') && !value.contains('\0');
            good.then(|| (name.to_owned(), value.to_owned()))
        };
        Ok(Self { env: env.into_iter().filter_map(variable).collect(), diff_ids: root.diff_ids })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn descriptor(platform: &str) -> serde_json::Value {
        let mut value = serde_json::json!({"digest": Digest::of(platform.as_bytes()).to_string(), "size": 3});
        if let [os, architecture, rest @ ..] = &platform.split('/').collect::<Vec<_>>()[..] {
            value["platform"] = serde_json::json!({"os": os, "architecture": architecture, "variant": rest.first()});
        }
        value
    }

    fn choose_of(platforms: &[&str]) -> Result<String, String> {
        let manifests: Vec<_> = platforms.iter().map(|platform| descriptor(platform)).collect();
        let index = serde_json::json!({"schemaVersion": 2, "manifests": manifests}).to_string();
        let Document::Index(list) = Document::parse(index.as_bytes()).unwrap() else { panic!("no index") };
        let chosen = choose(&list).map_err(|error| error.to_string())?;
        Ok(platforms[list.iter().position(|entry| entry == chosen).unwrap()].to_owned())
    }

    #[test]
    fn the_image_for_this_machine_is_chosen() {
        let ours = format!("linux/{}", architecture());
        let variant = format!("{ours}/v9");
        assert_eq!(choose_of(&["windows/amd64", "linux/s390x", &variant, &ours]).unwrap(), ours);
        assert_eq!(choose_of(&["unsaid"]).unwrap(), "unsaid");
        let refused = choose_of(&["linux/s390x", "unknown/unknown"]).unwrap_err();
        assert!(refused.contains("linux/s390x") && refused.contains(&ours), "{refused}");
    }

    #[test]
    fn what_is_no_manifest_is_refused_in_words() {
        let many: Vec<_> = (0..limits::LAYERS + 1).map(|_| descriptor("x")).collect();
        let many = serde_json::json!({"schemaVersion": 2, "config": descriptor("x"), "layers": many}).to_string();
        for (text, says) in [
            ("", "cannot be read"),
            ("{}", "neither"),
            (r#"{"schemaVersion":1,"fsLayers":[]}"#, "schema 1"),
            (r#"{"config":{"digest":"sha256:..","size":1},"layers":[]}"#, "not a digest"),
            (r#"{"config":{"digest":"sha256:..","size":-1},"layers":[]}"#, "cannot be read"),
            (&many, "layers"),
        ] {
            let refused = Document::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }

    #[test]
    fn a_configuration_says_what_for() {
        let config = Config::parse(
            br#"{"architecture":"","os":"linux","config":{"Env":["PATH=/bin","EMPTY=","=x","bad","N=a=b"]},
            "rootfs":{"type":"layers","diff_ids":[]}}"#,
        );
        let env = config.unwrap().env;
        assert_eq!(env, [("PATH", "/bin"), ("EMPTY", ""), ("N", "a=b")].map(|(a, b)| (a.into(), b.into())));
        let other = br#"{"architecture":"s390x","os":"linux","rootfs":{"diff_ids":[]}}"#;
        assert!(Config::parse(other).unwrap_err().to_string().contains("s390x"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = Document::parse(&bytes);
            let _ = Config::parse(&bytes);
        }
    }
}
