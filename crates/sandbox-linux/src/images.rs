//! Images by name: what a sandbox stands on, and the worker that unpacks them with the ids that sandboxes have.
//!
//! An image becomes a folder once, when it is fetched; from there on a sandbox is made from it as from any folder. The
//! sandbox's own folder has a link to it, so that it is not removed.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use sandbox_core::{Image, Reference, Result, SandboxSpec};
use sandbox_image::{Fittings, Guard, ImageSettings, Images, Owners, Worker};

use crate::{backend, etc, host::Host, ids::IdSource, stage};

/// The name under which this program unpacks images.
pub const ROLE: &str = "sandbox-unpacker";

/// Where something is mounted in every sandbox, with the folders above it.
const MOUNT_POINTS: [&str; 9] = ["proc", "sys", "dev", "tmp", "run", "workspace", "home", "home/sandbox", "etc"];
/// Files of `/etc` that say how this sandbox is called and where it asks for names.
const ALWAYS: [&str; 3] = ["hosts", "hostname", "resolv.conf"];
/// Files of `/etc` whose lines are added where they are missing: who is who.
const ACCOUNTS: [&str; 2] = ["passwd", "group"];
/// Of those, whoever is not the system's own business.
const NAMES: [&str; 2] = ["root:", "sandbox:"];

/// Images of this state folder.
pub fn open(state: &Path, settings: ImageSettings) -> Result<Images> {
    Ok(Images::with_worker(state, worker(), fittings(), settings)?)
}

/// The same, where it is known whose files can be made.
pub fn of_host(host: &Host, settings: ImageSettings) -> Result<Images> {
    Ok(Images::open(&host.state, owners(host.ids), worker(), fittings(), settings)?)
}

/// What a sandbox will stand on.
pub struct Standing<'a> {
    /// What was asked for, with a folder in place of a name.
    pub spec: Cow<'a, SandboxSpec>,
    /// What else comes with a name.
    pub named: Option<Named>,
    _guard: Option<Guard>,
}

/// What comes with an image that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Kept as long as the sandbox has a link to it.
    pub link: PathBuf,
    /// Variables that its commands expect.
    pub env: BTreeMap<String, String>,
}

/// Looks it up. The image cannot be removed while the answer lives.
pub fn stand<'a>(spec: &'a SandboxSpec, host: &Host) -> Result<Standing<'a>> {
    let Image::Reference(name) = &spec.image else {
        return Ok(Standing { spec: Cow::Borrowed(spec), named: None, _guard: None });
    };
    let found = sandbox_image::stand(&host.state, owners(host.ids), name)?;
    let named = Named { link: found.link, env: found.record.env.into_iter().collect() };
    let spec = SandboxSpec { image: Image::Folder(found.root), ..spec.clone() };
    Ok(Standing { spec: Cow::Owned(spec), named: Some(named), _guard: Some(found.guard) })
}

/// The folder that a sandbox stands on which exists already.
pub fn root_of(image: &Image, folder: &Path) -> PathBuf {
    match image {
        Image::Host => "/".into(),
        Image::Folder(image) => image.clone(),
        Image::Reference(_) => fs::read_link(folder.join(sandbox_image::LINK))
            .map(|link| link.join(sandbox_image::ROOT))
            .unwrap_or_else(|_| folder.join("nothing")),
    }
}

/// Unpacks, in a process that has just been started for it and has a single thread. Answers with its exit code.
pub fn work(order: &str) -> i32 {
    match stage::enter() {
        Ok(stage) => sandbox_image::work(order, owners(stage.ids)),
        Err(_) => 70,
    }
}

fn worker() -> Worker {
    Arc::new(|| {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(ROLE).stderr(Stdio::null());
        // Ctrl-C is for whoever waits for it: then nobody listens to it any more, and it ends.
        command.process_group(0);
        backend::keep_only_what_it_needs(&mut command);
        #[cfg(debug_assertions)]
        if let Some(place) = std::env::var_os(sandbox_image::DIES_AT) {
            command.env(sandbox_image::DIES_AT, place);
        }
        command
    })
}

fn owners(ids: IdSource) -> Owners {
    match ids {
        IdSource::Ranges => Owners::Machine,
        IdSource::Subordinate { .. } => Owners::Subordinate,
        IdSource::Single => Owners::Single,
    }
}

/// What every image gets, so that nothing of it has to be made for each sandbox.
fn fittings() -> Fittings {
    let made = |name: &&str| {
        let content = etc::MADE.iter().find(|(made, _)| made == name).map_or("", |(_, content)| *content);
        ((*name).to_owned(), content.to_owned())
    };
    let lines = |name: &&str| {
        let (name, content) = made(name);
        let wanted = content.lines().filter(|line| NAMES.iter().any(|start| line.starts_with(start)));
        wanted.map(|line| (name.clone(), line.to_owned())).collect::<Vec<_>>()
    };
    Fittings {
        folders: MOUNT_POINTS.map(String::from).into(),
        etc: ALWAYS.iter().map(made).collect(),
        accounts: ACCOUNTS.iter().flat_map(lines).collect(),
    }
}

/// An image's variables beneath those of every sandbox. Where programs are is both: the sandbox's own folders first, then
/// those that the image names.
pub(crate) fn beneath(
    own: BTreeMap<String, String>,
    image: &BTreeMap<String, String>,
    home: &str,
) -> BTreeMap<String, String> {
    let mut env = image.clone();
    let language = image.get("LANG").cloned();
    env.extend(own);
    env.extend(language.map(|language| ("LANG".to_owned(), language)));
    if let Some(path) = image.get("PATH") {
        env.insert("PATH".into(), format!("{home}/.venv/bin:{home}/.local/bin:{path}"));
    }
    env
}

/// Whether an image of this name is there, for whichever ids.
pub fn is_there(state: &Path, image: &Reference) -> bool {
    let kinds = [Owners::Machine, Owners::Subordinate, Owners::Single];
    kinds.into_iter().any(|owners| sandbox_image::Store::at(state, owners).find(image).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_an_image_lie_beneath_those_of_the_sandbox() {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
        let own = map(&[("HOME", "/home/sandbox"), ("PATH", "/own"), ("LANG", "C.UTF-8"), ("http_proxy", "ours")]);
        let image =
            map(&[("HOME", "/root"), ("PATH", "/go/bin:/bin"), ("LANG", "de"), ("GOPATH", "/go"), ("http_proxy", "x")]);
        let expected = map(&[
            ("HOME", "/home/sandbox"),
            ("PATH", "/h/.venv/bin:/h/.local/bin:/go/bin:/bin"),
            ("LANG", "de"),
            ("GOPATH", "/go"),
            ("http_proxy", "ours"),
        ]);
        assert_eq!(beneath(own, &image, "/h"), expected);
    }

    #[test]
    fn every_image_knows_who_commands_are() {
        let fittings = fittings();
        let lines: Vec<&str> = fittings.accounts.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[1].starts_with("sandbox:x:1000:1000:"), "{lines:?}");
        assert!(fittings.etc.iter().any(|(name, content)| name == "resolv.conf" && content.contains("nameserver")));
    }
}
