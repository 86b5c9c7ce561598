//! Programs that a policy takes away: which files of an image a stub is mounted over.
//!
//! An engine cannot be asked what a name leads to, but it hands out folders. Their names are kept in the cache as a tree of
//! empty files and links, once for each image, and looked up there as the embedded backend looks up those of a folder.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use bollard::{
    models::{ContainerCreateBody, HostConfig},
    query_parameters::{CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder},
};
use futures::TryStreamExt;
use sandbox_core::{Error, Result, SandboxSpec, policy::DeniedPrograms};
use sandbox_linux::unavailable::{self, Cover};
use tokio_util::io::StreamReader;

use crate::{
    engine::Engine,
    failure, fault, labels,
    listing::{self, Kind},
    plan::Image,
    removal, secrets,
};

/// What covers them, in the cache.
pub const STUB: &str = "unavailable";
/// Where programs are, and where their links lead to.
const FOLDERS: [&str; 7] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/etc/alternatives"];

/// What of an image is covered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// Files that a stub is mounted over.
    pub files: Vec<String>,
    /// Links to programs that are others' too: whoever mounts over those mounts over what they lead to.
    pub left: usize,
}

/// What is to be covered; nothing where nothing is, or where the engine cannot mount our stub.
pub async fn covered(
    spec: &SandboxSpec,
    engine: &Engine,
    image: &Image,
    state: &Path,
    state_id: &str,
) -> Result<Option<Covered>> {
    if spec.policy.commands.denied_programs != DeniedPrograms::Removed || !engine.nature.here {
        return Ok(None);
    }
    let cache = state.join("cache");
    let tree = cache.join(format!("programs-{}", image.id.trim_start_matches("sha256:")));
    let keeping = || Error::io(format!("keeping the names of programs in {}", cache.display()));
    if !tree.is_dir() {
        let draft = cache.join(format!("programs-draft-{}", secrets::random_text(8).map_err(keeping())?));
        let made = look(spec, engine, image, state_id, &draft).await;
        let made = made.and_then(|()| fs::rename(&draft, &tree).map_err(keeping()));
        if made.is_err() {
            let _ = fs::remove_dir_all(&draft);
        }
        // Somebody else may have been faster; theirs is as good.
        if !tree.is_dir() {
            made?;
        }
    }
    write_stub(&cache).map_err(keeping())?;
    let found = unavailable::covered(&tree, &spec.policy.commands.deny).map_err(keeping())?;
    let (files, links): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, cover)| *cover == Cover::File);
    Ok(Some(Covered { files: files.into_iter().map(|(path, _)| path).collect(), left: links.len() }))
}

fn write_stub(cache: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let path = cache.join(STUB);
    if fs::read_to_string(&path).is_ok_and(|text| text == unavailable::TEXT) {
        return Ok(());
    }
    let draft = cache.join(format!("{STUB}-{}", std::process::id()));
    fs::write(&draft, unavailable::TEXT)?;
    // It can be read, and not executed.
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o444))?;
    fs::rename(&draft, &path)
}

/// Through a container that is never started.
async fn look(spec: &SandboxSpec, engine: &Engine, image: &Image, state_id: &str, tree: &Path) -> Result<()> {
    let looking = || failure::step("looking for programs in the image");
    let name = format!("{}-look", labels::container(&spec.id));
    let body = ContainerCreateBody {
        image: Some(image.id.clone()),
        entrypoint: Some(vec!["/nothing".into()]),
        labels: Some(labels::of(spec, state_id)),
        host_config: Some(HostConfig { network_mode: Some("none".into()), ..HostConfig::default() }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::default().name(&name).build();
    engine.docker.create_container(Some(options), body).await.map_err(looking())?;
    fault::point("looking");
    let mut looked = fs::create_dir(tree).map_err(Error::io("making a folder in the cache"));
    for folder in FOLDERS {
        if looked.is_ok() {
            looked = keep(engine, &name, folder, tree).await;
        }
    }
    // An engine says the same of a folder that is missing and of a container that somebody removed meanwhile.
    if looked.is_ok() {
        looked = engine.docker.inspect_container(&name, None).await.map_err(looking()).map(drop);
    }
    removal::container(&engine.docker, &name).await?;
    looked
}

async fn keep(engine: &Engine, container: &str, folder: &str, tree: &Path) -> Result<()> {
    let options = DownloadFromContainerOptionsBuilder::default().path(folder).build();
    let archive = engine.docker.download_from_container(container, Some(options)).map_err(|error| {
        let kind = if failure::is_missing(&error) { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
        io::Error::new(kind, failure::words(&error))
    });
    let keeping = || Error::io(format!("looking for programs in {folder} of the image"));
    let entries = match listing::read(StreamReader::new(archive)).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(keeping())?,
    };
    place(tree, folder, &entries).map_err(keeping())
}

/// Links lead where they lead inside; nobody follows them from outside.
fn place(tree: &Path, folder: &str, entries: &[listing::Entry]) -> io::Result<()> {
    let path: PathBuf = tree.join(folder.trim_start_matches('/'));
    let above = path.parent().unwrap_or(tree);
    // A folder that lies behind a link is listed where the link leads to.
    if !above.starts_with(tree) || has_link(tree, above) {
        return Ok(());
    }
    fs::create_dir_all(above)?;
    if let Some(listing::Entry { name: None, kind: Kind::Link(target) }) = entries.first() {
        return symlink(target, path);
    }
    fs::create_dir_all(&path)?;
    for entry in entries {
        let Some(name) = &entry.name else { continue };
        match &entry.kind {
            Kind::File => drop(fs::File::create_new(path.join(name))?),
            Kind::Link(target) => symlink(target, path.join(name))?,
            Kind::Folder => {}
        }
    }
    Ok(())
}

fn has_link(tree: &Path, path: &Path) -> bool {
    path.ancestors().take_while(|above| *above != tree).any(Path::is_symlink)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_tree_of_names_is_looked_up_like_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let file = |name: &str| listing::Entry { name: Some(name.into()), kind: Kind::File };
        let link = |name: Option<&str>, to: &str| listing::Entry {
            name: name.map(str::to_owned),
            kind: Kind::Link(to.into()),
        };
        let usr = [
            file("su"),
            file("busybox"),
            link(Some("mount"), "busybox"),
            link(Some("nc"), "/etc/alternatives/nc"),
            file("nc.real"),
        ];
        place(&tree, "/usr/bin", &usr).unwrap();
        place(&tree, "/bin", &[link(None, "usr/bin")]).unwrap();
        place(&tree, "/sbin", &[link(None, "../../../../../../../usr/bin")]).unwrap();
        place(&tree, "/etc/alternatives", &[link(Some("nc"), "/usr/bin/nc.real")]).unwrap();
        let deny = ["su", "mount", "nc"].map(String::from).into();
        let found = unavailable::covered(&tree, &deny).unwrap();
        let paths: Vec<_> = found.iter().map(|(path, cover)| (path.as_str(), *cover)).collect();
        assert_eq!(
            paths,
            [("/usr/bin/mount", Cover::Link), ("/usr/bin/nc.real", Cover::File), ("/usr/bin/su", Cover::File)]
        );
    }
}
