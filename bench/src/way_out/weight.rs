//! A cgroup for clients outside that weighs as much as all sandboxes together do: a sandbox stands back where processors
//! are scarce, and what is compared here are ways, not weights.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::program::CommandLine;

/// Percent of what one other process weighs; see `crates/sandbox-linux/src/cgroup.rs`.
const WEIGHT: u64 = 10;

/// The cgroup, for as long as this is there.
pub struct Weight {
    folder: PathBuf,
    members: &'static str,
}

impl Weight {
    /// Nothing where none can be made: as an ordinary user sandboxes have none either, unless it was delegated.
    pub fn make() -> Option<Self> {
        let name = format!("sandbox-bench-{}", std::process::id());
        let weighed = |parent: &str, file: &str, value: u64, members| {
            let folder = Path::new(parent).join(&name);
            fs::create_dir(&folder).ok()?;
            let made = Self { folder, members };
            fs::write(made.folder.join(file), value.to_string()).ok()?;
            Some(made)
        };
        weighed("/sys/fs/cgroup/cpu", "cpu.shares", 1024 * WEIGHT / 100, "tasks")
            .or_else(|| weighed("/sys/fs/cgroup", "cpu.weight", WEIGHT, "cgroup.procs"))
    }

    /// What a command line begins with that is to weigh so much.
    pub fn enter(&self) -> CommandLine {
        let script = format!("echo 0 >{} && exec \"$@\"", self.folder.join(self.members).display());
        CommandLine::new(["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()])
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}
