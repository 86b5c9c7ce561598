//! What an image consists of, before any of it is brought: from a registry, from what `docker save` writes, or from an OCI
//! layout. Manifests and configurations are short and are read here, each compared with its digest.

use std::path::Path;

use sandbox_core::Reference;
use serde::Deserialize;

use crate::{
    Digest, ImageError, limits,
    manifest::{Config, Descriptor, Document, Manifest, choose},
    registry::Repository,
    source::{Files, Found},
};

/// Lists within lists are followed so far.
const NESTED: usize = 3;
/// How the repositories of built-in templates begin, at `localhost`.
const BUILT_IN: &str = "sandbox-mcp/";

/// One image that can be made.
pub struct Planned {
    /// What it will be called.
    pub name: Reference,
    /// Who said so.
    pub named: NamedBy,
    /// What it is.
    pub digest: Digest,
    /// What it needs.
    pub config: Config,
    /// What it is made of, the lowest first.
    pub layers: Vec<Layer>,
}

/// Who gave an image its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// Whoever asked for it: the name itself, or the file that it is called after.
    Person,
    /// What is in the archive or layout. That may be anybody's.
    Content,
}

/// One layer.
pub struct Layer {
    /// Bytes, as it is there.
    pub size: u64,
    /// What those are, if nobody has checked that yet.
    pub packed: Option<Digest>,
    /// What it is when unpacked.
    pub unpacked: Digest,
    /// Where it is.
    pub place: Place,
}

/// Where a layer is.
pub enum Place {
    /// In a registry.
    There(Descriptor),
    /// In a file of this machine.
    Here(Found),
}

/// Asks a registry.
pub async fn of_registry(repository: &Repository, image: &Reference, name: &Reference) -> Result<Planned, ImageError> {
    let which = image.digest().or(image.tag()).unwrap_or("latest");
    let mut bytes = repository.manifest(which, None).await?;
    for _ in 0..NESTED {
        match Document::parse(&bytes)? {
            Document::Index(list) => {
                let chosen = choose(&list)?.clone();
                bytes = repository.manifest(&chosen.digest.to_string(), Some(&chosen)).await?;
            }
            Document::Image(manifest) => {
                let config = Config::parse(&blob(repository, &manifest.config).await?)?;
                let layers = pair(&manifest, &config, |layer| Ok((None, Place::There(layer.clone()))))?;
                let (name, named) = (name.clone(), NamedBy::Person);
                return Ok(Planned { name, named, digest: Digest::of(&bytes), config, layers });
            }
        }
    }
    Err(ImageError::malformed("its manifest is a list of lists of lists"))
}

/// Something short.
async fn blob(repository: &Repository, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
    if descriptor.size > limits::CONFIG {
        return Err(ImageError::malformed(format!("its configuration is longer than {} bytes", limits::CONFIG)));
    }
    let (response, _) = repository.blob(&descriptor.digest, 0).await?;
    let mut body = response.into_body();
    let mut content = Vec::new();
    while let Some(more) = crate::registry::fetch::next_of(&mut body).await {
        let more = more.map_err(|why| ImageError::Unreachable { registry: "the registry".into(), why })?;
        content.extend_from_slice(&more);
        if content.len() as u64 > descriptor.size {
            return Err(ImageError::malformed("its configuration is longer than its manifest says"));
        }
    }
    check(&content, descriptor, "its configuration")?;
    Ok(content)
}

fn check(content: &[u8], descriptor: &Descriptor, what: &str) -> Result<(), ImageError> {
    let found = Digest::of(content);
    if found != descriptor.digest || content.len() as u64 != descriptor.size {
        let wanted = &descriptor.digest;
        return Err(ImageError::malformed(format!("{what} should be {wanted}, but its content is {found}")));
    }
    Ok(())
}

/// Layers with what each is when unpacked.
fn pair(
    manifest: &Manifest,
    config: &Config,
    place: impl Fn(&Descriptor) -> Result<(Option<Digest>, Place), ImageError>,
) -> Result<Vec<Layer>, ImageError> {
    if manifest.layers.len() != config.diff_ids.len() {
        return Err(ImageError::malformed(format!(
            "its manifest has {} layers and its configuration {}",
            manifest.layers.len(),
            config.diff_ids.len()
        )));
    }
    let layer = |(descriptor, unpacked): (&Descriptor, &Digest)| {
        let (packed, place) = place(descriptor)?;
        Ok(Layer { size: descriptor.size, packed, unpacked: unpacked.clone(), place })
    };
    manifest.layers.iter().zip(&config.diff_ids).map(layer).collect()
}

/// What `docker save` writes down.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// All images of an archive or a layout. One without a name is called after the file.
pub fn of_files(files: &Files, stem: &str, name: Option<&Reference>) -> Result<Vec<Planned>, ImageError> {
    let planned = match files.read("manifest.json", limits::MANIFEST) {
        Ok(text) => saved(files, &text, stem, name)?,
        Err(_) => match files.read("index.json", limits::MANIFEST) {
            Ok(index) => layout(files, &index, stem, name)?,
            Err(_) => {
                let what = "there is neither a manifest.json (`docker save`) nor an index.json (OCI layout) in it";
                return Err(ImageError::NoSource(format!("{stem} is no image: {what}")));
            }
        },
    };
    match (name, planned.len()) {
        (_, 0) => Err(ImageError::NoSource(format!("there is no image in {stem}"))),
        (_, count) if count > limits::IMAGES => Err(too_many()),
        (Some(_), count) if count > 1 => {
            Err(ImageError::NoSource(format!("there are {count} images in {stem}, so they cannot all have that name")))
        }
        _ => Ok(planned),
    }
}

fn too_many() -> ImageError {
    ImageError::malformed(format!("there are more than {} images in it", limits::IMAGES))
}

fn saved(files: &Files, text: &[u8], stem: &str, name: Option<&Reference>) -> Result<Vec<Planned>, ImageError> {
    let unreadable = |error| ImageError::malformed(format!("its manifest.json cannot be read: {error}"));
    let all: Vec<Saved> = serde_json::from_slice(text).map_err(unreadable)?;
    let mut planned = Vec::new();
    for Saved { config: file, repo_tags, layers: names } in all.into_iter().take(limits::IMAGES) {
        let tags = repo_tags.unwrap_or_default();
        let references = match name {
            Some(name) => vec![(name.clone(), NamedBy::Person)],
            None if tags.is_empty() => vec![(called(stem, "latest")?, NamedBy::Person)],
            None => tags.iter().take(limits::IMAGES + 1).map(|tag| inside(tag)).collect::<Result<_, _>>()?,
        };
        for (name, named) in references {
            // Each has a configuration of its own in memory.
            if planned.len() >= limits::IMAGES {
                return Err(too_many());
            }
            let text = files.read(&file, limits::CONFIG)?;
            let config = Config::parse(&text)?;
            if names.len() != config.diff_ids.len() {
                let count = config.diff_ids.len();
                return Err(ImageError::malformed(format!(
                    "its manifest.json has {} layers and its configuration {count}",
                    names.len()
                )));
            }
            let layer = |(name, unpacked): (&String, &Digest)| {
                let found = files.find(name)?;
                let (size, unpacked) = (found.length, unpacked.clone());
                Ok(Layer { size, packed: None, unpacked, place: Place::Here(found) })
            };
            let layers = names.iter().zip(&config.diff_ids).map(layer).collect::<Result<_, ImageError>>()?;
            planned.push(Planned { name, named, digest: Digest::of(&text), config, layers });
        }
    }
    Ok(planned)
}

fn layout(files: &Files, index: &[u8], stem: &str, name: Option<&Reference>) -> Result<Vec<Planned>, ImageError> {
    let Document::Index(list) = Document::parse(index)? else {
        return Err(ImageError::malformed("its index.json is no list of images"));
    };
    let named = |entry: &Descriptor| {
        let annotation = |key: &str| entry.annotations.get(key);
        annotation("io.containerd.image.name").or_else(|| annotation("org.opencontainers.image.ref.name")).cloned()
    };
    // Several without names are one image for several machines.
    let entries: Vec<&Descriptor> = match list.iter().any(|entry| named(entry).is_some()) {
        true => list.iter().filter(|entry| named(entry).is_some()).collect(),
        false => vec![choose(&list)?],
    };
    let mut planned = Vec::new();
    for entry in entries.into_iter().take(limits::IMAGES + 1) {
        let reference = match (name, named(entry)) {
            (Some(name), _) => (name.clone(), NamedBy::Person),
            (None, Some(text)) if text.contains(['/', ':']) => inside(&text)?,
            (None, Some(tag)) => (called(stem, &tag)?, NamedBy::Person),
            (None, None) => (called(stem, "latest")?, NamedBy::Person),
        };
        planned.push(in_layout(files, entry, reference)?);
    }
    Ok(planned)
}

fn in_layout(files: &Files, entry: &Descriptor, (name, named): (Reference, NamedBy)) -> Result<Planned, ImageError> {
    let mut entry = entry.clone();
    let place = |descriptor: &Descriptor| format!("blobs/sha256/{}", descriptor.digest.hex());
    for _ in 0..NESTED {
        let bytes = files.read(&place(&entry), limits::MANIFEST)?;
        check(&bytes, &entry, "its manifest")?;
        match Document::parse(&bytes)? {
            Document::Index(list) => entry = choose(&list)?.clone(),
            Document::Image(manifest) => {
                let text = files.read(&place(&manifest.config), limits::CONFIG)?;
                check(&text, &manifest.config, "its configuration")?;
                let config = Config::parse(&text)?;
                let layers = pair(&manifest, &config, |layer| {
                    let found = files.find(&place(layer))?;
                    if found.length != layer.size {
                        return Err(ImageError::malformed("a layer has another length than its manifest says"));
                    }
                    Ok((Some(layer.digest.clone()), Place::Here(found)))
                })?;
                return Ok(Planned { name, named, digest: entry.digest, config, layers });
            }
        }
    }
    Err(ImageError::malformed("its manifest is a list of lists of lists"))
}

/// A name that the content gives itself. Those of built-in templates stand for images that were made on this machine, and
/// nothing that came from elsewhere is one because it says so.
fn inside(text: &str) -> Result<(Reference, NamedBy), ImageError> {
    let name: Reference = text.parse().map_err(|error| ImageError::malformed(format!("{error}")))?;
    if name.registry() == "localhost" && name.repository().starts_with(BUILT_IN) {
        let why = "names of built-in templates are given by you alone";
        return Err(ImageError::NotItsName { name: name.to_string(), why: why.into() });
    }
    Ok((name, NamedBy::Content))
}

/// What is there already under a name is replaced only by whom a person calls so.
pub fn check_name(planned: &Planned, there: Option<&Digest>) -> Result<(), ImageError> {
    if planned.named == NamedBy::Person || there.is_none_or(|there| *there == planned.digest) {
        return Ok(());
    }
    let why = "another image has that name already";
    Err(ImageError::NotItsName { name: planned.name.to_string(), why: why.into() })
}

/// After the file that it came in, as an image of this machine only.
fn called(stem: &str, tag: &str) -> Result<Reference, ImageError> {
    let name = format!("localhost/{stem}:{tag}");
    name.parse().map_err(|_| {
        ImageError::NoSource(format!("the image in {stem} has no name: give it one with `--name NAME:TAG`"))
    })
}

/// The name of a file without its endings, as the name of an image can be.
pub fn stem(path: &Path) -> String {
    let name = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = name.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name =
        [".gz", ".zst", ".tgz", ".tar", ".oci"].iter().fold(name.as_str(), |name, end| name.trim_end_matches(end));
    let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    name.chars().map(plain).collect::<String>().trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_archive_took_the_name_of_a_built_in_template() {
        for name in ["localhost/sandbox-mcp/base", "localhost/sandbox-mcp/base:latest", "localhost/sandbox-mcp/new:1"] {
            let told = inside(name).unwrap_err().advice();
            assert!(told.contains(&format!("--name {name}")), "{told}");
        }
        for name in ["localhost/mine:1", "sandbox-mcp/base", "localhost:5000/sandbox-mcp/base", "debian"] {
            assert_eq!(inside(name).unwrap().1, NamedBy::Content, "{name}");
        }
    }

    #[test]
    fn an_archive_replaced_another_image_by_its_name() {
        let planned = |named| Planned {
            name: "debian".parse().unwrap(),
            named,
            digest: Digest::of(b"new"),
            config: Config { env: Vec::new(), diff_ids: Vec::new() },
            layers: Vec::new(),
        };
        let old = Digest::of(b"old");
        assert!(check_name(&planned(NamedBy::Content), Some(&old)).is_err());
        assert!(check_name(&planned(NamedBy::Content), Some(&Digest::of(b"new"))).is_ok());
        assert!(check_name(&planned(NamedBy::Content), None).is_ok());
        assert!(check_name(&planned(NamedBy::Person), Some(&old)).is_ok());
    }

    /// A configuration of up to 8 MiB was read for each tag before they were counted.
    #[test]
    fn an_archive_with_a_thousand_tags_was_read_a_thousand_times() {
        let folder = tempfile::tempdir().unwrap();
        let tags: Vec<String> = (0..1000).map(|number| format!("x:{number}")).collect();
        let manifest = serde_json::json!([{"Config": "config", "RepoTags": tags, "Layers": ["layer"]}]);
        std::fs::write(folder.path().join("manifest.json"), manifest.to_string()).unwrap();
        let config = serde_json::json!({"rootfs": {"diff_ids": [Digest::of(b"x").to_string()]}});
        std::fs::write(folder.path().join("config"), config.to_string()).unwrap();
        std::fs::write(folder.path().join("layer"), "x").unwrap();
        let files = Files::Folder(folder.path().to_owned());
        let told = of_files(&files, "x", None).map(drop).unwrap_err().to_string();
        assert!(told.contains("more than 64 images"), "{told}");
    }

    #[test]
    fn a_file_without_a_name_inside_gives_it() {
        for (path, name) in [("/x/My Image.tar.gz", "my-image"), ("/a/b.oci.tar", "b"), ("/a/_x_.tar", "x")] {
            assert_eq!(stem(Path::new(path)), name);
        }
    }
}
