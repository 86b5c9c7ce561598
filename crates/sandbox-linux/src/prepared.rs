//! What has to be looked up or made on this machine for one sandbox, before it can be planned.

use std::{fs, path::PathBuf};

use sandbox_core::{Error, Image, Result, SandboxSpec, policy::Root};

use crate::{
    bwrap,
    ground::{self, Folders},
    host::{Host, Top},
    ids::IdSource,
};

/// What the plan of one sandbox needs to know beyond [`Host`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// What a root of this machine's programs that can be changed stands on.
    pub ground: Option<PathBuf>,
}

impl Prepared {
    /// Whether nothing of this machine has to be touched for such a sandbox.
    pub fn is_trivial(spec: &SandboxSpec) -> bool {
        !needs_ground(spec)
    }

    /// Looks, and makes what is missing. That may take a second or two, once for a state of this machine.
    pub fn for_spec(spec: &SandboxSpec, host: &Host) -> Result<Self> {
        if host.bwrap.is_some() {
            bwrap::check(spec)?;
        }
        let ground = needs_ground(spec).then(|| ground(spec, host)).transpose()?;
        Ok(Self { ground })
    }
}

fn needs_ground(spec: &SandboxSpec) -> bool {
    spec.image == Image::Host && spec.policy.filesystem.root == Root::Writable
}

fn ground(spec: &SandboxSpec, host: &Host) -> Result<PathBuf> {
    let folders = if host.ids == IdSource::Ranges { Folders::Mapped } else { Folders::Own };
    if folders == Folders::Own
        && let Some(point) = mounted_beneath(host)
    {
        return Err(Error::Unavailable {
            what: format!("the policy `{}` with the image `host`", spec.policy.name),
            why: format!(
                "something is mounted on {point}, and an ordinary user cannot put a layer over a folder with mounts in it"
            ),
            fix: "Use an image of your own (the path of a folder with a root file system), a policy with a read-only root such as yolo-3, or start as root".into(),
        });
    }
    ground::prepare(&host.state, &host.tops, folders)
        .map_err(Error::io(format!("preparing a root that can be changed in {}", host.state.display())))
}

/// A mount inside a folder with programs, if there is one.
fn mounted_beneath(host: &Host) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let inside = |point: &&str| {
        host.tops.iter().any(|top| match top {
            Top::Folder { name } => point.starts_with(&format!("/{name}/")),
            Top::Link { .. } => false,
        })
    };
    points.find(inside).map(str::to_owned)
}
