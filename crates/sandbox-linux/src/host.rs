//! What this machine offers, looked at once: ids, cgroups, where its programs are.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sandbox_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup::CgroupHost,
    etc,
    ids::IdSource,
    plan::{Access, Step},
    security_module::SecurityModule,
    stage::Stage,
};

/// This machine, as far as making sandboxes goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The state folder.
    pub state: PathBuf,
    /// Ids that sandboxes can have.
    pub ids: IdSource,
    /// Cgroups that sandboxes can have.
    pub cgroup: CgroupHost,
    /// Steps that bring this machine's programs in.
    pub programs: Vec<Step>,
    /// The folder with the made-up `/etc`.
    pub etc: PathBuf,
    /// The program that starts sandboxes for us, where we may not do it ourselves.
    pub bwrap: Option<PathBuf>,
    /// A second wall, where the kernel has one.
    pub security: SecurityModule,
}

impl Host {
    /// Looks at this machine from the launcher's stage.
    pub fn look(state: &Path, stage: Stage) -> Result<Self> {
        let etc = etc::prepare(state).map_err(Error::io(format!("preparing /etc in {}", state.display())))?;
        let (ids, bwrap) = (stage.ids, stage.bwrap);
        let security = if bwrap.is_some() { SecurityModule::OutOfReach } else { SecurityModule::look() };
        Ok(Self { state: state.into(), ids, cgroup: CgroupHost::find(), programs: programs(), etc, bwrap, security })
    }
}

/// `/usr`, and beside it whatever this distribution has: links into it, or folders of their own.
fn programs() -> Vec<Step> {
    let mut steps = Vec::new();
    for name in ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = Path::new("/").join(name);
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        if let (true, Ok(to)) = (found.is_symlink(), fs::read_link(&path)) {
            steps.push(Step::Link { target: name.into(), to: to.to_string_lossy().into_owned() });
        } else if found.is_dir() {
            steps.push(Step::Folder { target: name.into(), mode: 0o755 });
            steps.push(Step::Bind { source: path, target: name.into(), access: Access::Read });
        }
    }
    steps
}
