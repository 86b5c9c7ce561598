//! What `/` is made of, for an image, a policy and what was prepared: layers, this machine's programs, places that may be
//! written, stubs. Pure.

use std::path::{Path, PathBuf};

use sandbox_core::{
    Image, SandboxSpec, Tool,
    policy::{Root, User},
};

use crate::{
    host::{Host, Top},
    ids::{IdSource, SANDBOX_ID},
    layers::Layers,
    plan::{Plan, RootSource},
    prepared::{Covered, Prepared},
    steps::{Access, Step},
    unavailable::{self, Cover},
    wall::{self, Wall},
};

/// What the root file system itself is.
pub fn source(spec: &SandboxSpec, host: &Host, prepared: &Prepared) -> RootSource {
    match (&spec.image, &prepared.ground) {
        (Image::Folder(folder), _) if needs_no_layer(spec, prepared) => {
            RootSource::Bound { folder: folder.clone(), map_ids: host.ids == IdSource::Ranges }
        }
        (Image::Folder(lower), _) => RootSource::Layers(layers(spec, host, "root", vec![lower.clone()])),
        (Image::Host, Some(ground)) => RootSource::Layers(layers(spec, host, "root", vec![ground.join("root")])),
        (Image::Host, None) | (Image::Reference(_), _) => RootSource::Empty,
    }
}

/// An image with a name was fitted with all mount points when it came, so where nothing of its root can be changed it can be
/// mounted as it is. That takes half the time of a layer.
fn needs_no_layer(spec: &SandboxSpec, prepared: &Prepared) -> bool {
    let frozen = spec.policy.filesystem.root == Root::ReadOnly && wall::stands(Wall::ReadOnlyRoot);
    // What is brought in from outside may need a place that the image does not have.
    prepared.named.is_some() && frozen && prepared.places.is_empty() && spec.tools.is_empty()
}

/// Steps that bring this machine's programs in, where they are the image.
pub fn programs(spec: &SandboxSpec, host: &Host, prepared: &Prepared) -> Vec<Step> {
    match (&spec.image, &prepared.ground) {
        (Image::Host, Some(ground)) => changeable_programs(spec, host, ground),
        (Image::Host, None) => bound_programs(host),
        (Image::Folder(_) | Image::Reference(_), _) => Vec::new(),
    }
}

/// This machine's programs, which nobody may change.
fn bound_programs(host: &Host) -> Vec<Step> {
    let open = |target: &str| Step::Folder { target: target.into(), mode: 0o755 };
    let mut steps: Vec<Step> = ["usr", "etc", "run", "var", "opt", "opt/sandbox", "root", "sys"].map(open).into();
    for top in &host.tops {
        match top {
            Top::Link { name, to } => steps.push(Step::Link { target: name.clone(), to: to.clone() }),
            Top::Folder { name } => {
                steps.push(open(name));
                steps.push(bind(Path::new("/").join(name), name, Access::Read));
            }
        }
    }
    steps.push(bind(host.etc.join("etc"), "etc", Access::Read));
    steps.push(bind(host.etc.join("opt"), "opt/sandbox", Access::Read));
    steps.push(Step::Link { target: "var/tmp".into(), to: "/tmp".into() });
    steps.push(Step::Link { target: "var/run".into(), to: "/run".into() });
    steps
}

/// This machine's programs beneath layers of the sandbox's own; all else is in the ground.
fn changeable_programs(spec: &SandboxSpec, host: &Host, ground: &Path) -> Vec<Step> {
    let over = |top: &Top| match top {
        Top::Link { .. } => None,
        Top::Folder { name } => {
            let theirs = Path::new("/").join(name);
            let lower = match host.ids {
                IdSource::Ranges => vec![theirs],
                _ => vec![ground.join("folders").join(name), theirs],
            };
            Some(Step::Layers { target: name.clone(), layers: layers(spec, host, name, lower) })
        }
    };
    host.tops.iter().filter_map(over).collect()
}

/// In an image the folder that is there; of this machine's own never that, but an empty one.
pub fn places(spec: &SandboxSpec, folder: &Path, prepared: &Prepared) -> Vec<Step> {
    let owner = match spec.policy.privileges.user {
        User::Sandbox => SANDBOX_ID,
        User::Root => 0,
    };
    let place = |(number, place): (usize, &String)| Step::Place {
        source: (spec.image == Image::Host).then(|| folder.join(format!("upper/place-{number}"))),
        target: relative(place),
        owner,
    };
    prepared.places.iter().enumerate().map(place).collect()
}

/// Programs from outside, where links of an image cannot lead them astray.
pub fn tools(spec: &SandboxSpec) -> Vec<Step> {
    let step = |tool: &Tool| Step::Tool { source: tool.source.clone(), target: relative(&tool.target) };
    spec.tools.iter().map(step).collect()
}

/// Stubs over the programs that the policy takes away. bwrap follows links, and would cover what they lead to.
pub fn covers(host: &Host, prepared: &Prepared) -> Vec<Step> {
    let can = |covered: &&Covered| {
        wall::stands(Wall::DeniedPrograms) && (host.bwrap.is_none() || covered.cover == Cover::File)
    };
    let step = |covered: &Covered| {
        let stub = host.etc.join(unavailable::STUB);
        Step::Cover { stub, target: relative(&covered.path) }
    };
    prepared.covered.iter().filter(can).map(step).collect()
}

/// The sandbox's own layers, and what the kernel needs beside each.
pub fn layer_folders(plan: &Plan, owner: u32) -> Vec<(String, u32)> {
    let names: Vec<&str> = plan.layers().map(|layers| layers.name.as_str()).collect();
    let kinds = if names.is_empty() { &[][..] } else { &["upper", "work"] };
    let folders = kinds.iter().flat_map(|kind| {
        let inner = names.iter().map(move |name| format!("{kind}/{name}"));
        std::iter::once((*kind).to_owned()).chain(inner)
    });
    folders.map(|name| (name, owner)).collect()
}

/// Folders of the sandbox's own at places that may be written, counted with its layers.
pub fn place_folders(plan: &Plan, owner: u32) -> Vec<(String, u32)> {
    let sources = plan.steps.iter().filter_map(|step| match step {
        Step::Place { source: Some(source), .. } => source.strip_prefix(&plan.folder).ok()?.to_str(),
        _ => None,
    });
    let mut folders: Vec<_> = sources.map(|name| (name.to_owned(), owner)).collect();
    if !folders.is_empty() {
        folders.insert(0, ("upper".to_owned(), 0));
    }
    folders
}

fn layers(spec: &SandboxSpec, host: &Host, name: &str, lower: Vec<PathBuf>) -> Layers {
    let map_ids = host.ids == IdSource::Ranges;
    Layers { name: name.into(), lower, map_ids, volatile: !spec.persistent }
}

fn bind(source: PathBuf, target: &str, access: Access) -> Step {
    Step::Bind { source, target: target.into(), access }
}

fn relative(path: &str) -> String {
    path.trim_start_matches('/').to_owned()
}
