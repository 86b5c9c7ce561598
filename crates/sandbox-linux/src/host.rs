//! What this machine offers, looked at once: ids, cgroups, where its programs are.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sandbox_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup::CgroupHost, counts::Inotify, etc, ids::IdSource, security_module::SecurityModule, stage::Stage,
    way_out::Reach,
};

/// `/usr`, or what is beside it with programs in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Top {
    Link { name: String, to: String },
    Folder { name: String },
}

/// This machine, as far as making sandboxes goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The state folder.
    pub state: PathBuf,
    /// Ids that sandboxes can have.
    pub ids: IdSource,
    /// Cgroups that sandboxes can have.
    pub cgroup: CgroupHost,
    /// Where this machine's programs are.
    pub tops: Vec<Top>,
    /// The folder with the made-up `/etc`.
    pub etc: PathBuf,
    /// Whether the kernel can hold which programs are executed.
    pub landlock: bool,
    /// How many watches of files a user of this machine has.
    pub inotify: Inotify,
    /// The program that starts sandboxes for us, where we may not do it ourselves.
    pub bwrap: Option<PathBuf>,
    /// What the way out of sandboxes is like, where that was looked at and there can be one.
    pub way_out: Option<Reach>,
    /// A second wall, where the kernel has one.
    pub security: SecurityModule,
}

impl Host {
    /// Looks at this machine from the launcher's stage.
    pub fn look(state: &Path, stage: Stage) -> Result<Self> {
        let etc = etc::prepare(state).map_err(Error::io(format!("preparing /etc in {}", state.display())))?;
        let (ids, bwrap) = (stage.ids, stage.bwrap);
        let security = if bwrap.is_some() { SecurityModule::OutOfReach } else { SecurityModule::look() };
        // bwrap mounts, which nobody may who is restricted already.
        let landlock = bwrap.is_none() && crate::landlock::holds_execution();
        let (cgroup, inotify) = (CgroupHost::find(), Inotify::of_user());
        // bwrap makes networks itself, so there nothing is redirected; else making one tells.
        let way_out = bwrap.is_some().then(|| Reach::Proxy { why: "bwrap makes the network".into() });
        Ok(Self { state: state.into(), ids, cgroup, tops: tops(), etc, landlock, inotify, bwrap, way_out, security })
    }
}

/// `/usr`, and beside it whatever this distribution has: links into it, or folders of their own.
fn tops() -> Vec<Top> {
    let look = |name: &str| {
        let path = Path::new("/").join(name);
        let found = fs::symlink_metadata(&path).ok()?;
        if let (true, Ok(to)) = (found.is_symlink(), fs::read_link(&path)) {
            return Some(Top::Link { name: name.into(), to: to.to_string_lossy().into_owned() });
        }
        found.is_dir().then(|| Top::Folder { name: name.into() })
    };
    ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"].into_iter().filter_map(look).collect()
}
