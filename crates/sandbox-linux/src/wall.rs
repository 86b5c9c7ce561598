//! The walls of a sandbox, by name.
//!
//! Every place that builds one asks here first whether it should. It always should: only a program that was built with
//! the feature `breakable` reads the variable `SANDBOX_MCP_WITHOUT` (names with commas between), so that the attack
//! suite can be shown to notice a wall that is missing. No released program has that feature.

/// One wall. Names in the variable are these in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "breakable", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Wall {
    /// The filter for system calls.
    Seccomp,
    /// The second word about where may be written.
    Landlock,
    /// Mounts that cannot be written: the root, and this machine's programs.
    ReadOnlyRoot,
    /// No program that is executed gains anything.
    NoNewPrivs,
    /// What the first process may do at most.
    Capabilities,
    /// Programs that would run as their owner do not, on any mount.
    NoSetuid,
    /// Files of devices are nothing but files, on any mount.
    NoDevices,
    /// What tells about this machine in `/proc` is covered.
    Masks,
    /// What could be changed in `/proc` cannot.
    FrozenProc,
    /// The old root is gone from below the new one.
    OldRoot,
    /// No user namespace can be made inside.
    UserNamespaceCount,
    /// Few watches of files.
    InotifyCounts,
    /// A network of its own.
    Network,
    /// System V objects and message queues of its own.
    IpcNamespace,
    /// A host name of its own.
    UtsNamespace,
    /// A view of its own on cgroups.
    CgroupNamespace,
    /// A session of its own, away from the terminal of who started it.
    Session,
    /// Variables of its own.
    Environment,
    /// Number of processes.
    PidLimit,
    /// Memory.
    MemoryLimit,
    /// Memory that nobody would be asked for is refused.
    VisibleMemory,
    /// Processor time.
    CpuLimit,
    /// Less weight than the server has.
    CpuWeight,
    /// Files, watched.
    DiskWatch,
    /// The size of one file.
    FileSize,
    /// The size of `/tmp` and of the other file systems in memory.
    TmpSize,
    /// Number of open files.
    Descriptors,
    /// Number of signals that wait.
    QueuedSignals,
    /// Number of terminals.
    Terminals,
    /// Commands are another user than the executor.
    ExecutorIdentity,
    /// Commands are another user than those of other sandboxes.
    OwnUser,
    /// Sockets for a sandbox are not made in the network of another.
    OwnNetwork,
    /// Denied programs are covered.
    DeniedPrograms,
    /// Only listed programs can be executed.
    ProgramList,
    /// One that the executor builds: see its own list.
    #[cfg(feature = "breakable")]
    Dumpable,
    #[cfg(feature = "breakable")]
    #[allow(missing_docs, reason = "see above")]
    CommandCapabilities,
    #[cfg(feature = "breakable")]
    #[allow(missing_docs, reason = "see above")]
    OutputPipes,
}

/// Whether this wall is to be built.
#[cfg(not(feature = "breakable"))]
pub const fn stands(_: Wall) -> bool {
    true
}

/// Variables of the executor: none, but for tests that leave one of its own walls out.
#[cfg(not(feature = "breakable"))]
pub fn for_executor() -> Vec<std::ffi::CString> {
    Vec::new()
}

#[cfg(feature = "breakable")]
pub use breakable::{VARIABLE, for_executor, names, stands};

#[cfg(feature = "breakable")]
mod breakable {
    use std::{ffi::CString, sync::LazyLock};

    use serde::{
        Deserialize,
        de::{IntoDeserializer, value::Error},
    };

    use super::Wall;

    /// Names of walls that are left out.
    pub const VARIABLE: &str = sandbox_executor::boot::WITHOUT;

    static MISSING: LazyLock<Vec<Wall>> =
        LazyLock::new(|| missing(&std::env::var(VARIABLE).unwrap_or_default()).unwrap_or_else(|why| panic!("{why}")));

    /// Whether this wall is to be built.
    pub fn stands(wall: Wall) -> bool {
        !MISSING.contains(&wall)
    }

    /// Variables of the executor: the same.
    pub fn for_executor() -> Vec<CString> {
        let names = std::env::var(VARIABLE).unwrap_or_default();
        CString::new(format!("{VARIABLE}={names}")).into_iter().collect()
    }

    /// All names. What is told about a wrong one has them, so none can be forgotten here.
    pub fn names() -> Vec<String> {
        let told = missing("none of them").err().unwrap_or_default();
        told.split('`').skip(3).step_by(2).map(str::to_owned).collect()
    }

    fn missing(names: &str) -> Result<Vec<Wall>, String> {
        let names = names.split(',').filter(|name| !name.is_empty());
        let wall = |name: &str| {
            let known: Result<Wall, Error> = Wall::deserialize(name.into_deserializer());
            known.map_err(|error| format!("{VARIABLE}: {error}"))
        };
        names.map(wall).collect()
    }

    #[test]
    fn walls_are_left_out_by_name_and_a_wrong_name_is_told() {
        assert_eq!(missing("seccomp,old_root"), Ok(vec![Wall::Seccomp, Wall::OldRoot]));
        assert_eq!(missing(""), Ok(vec![]));
        assert!(missing("secomp").is_err_and(|why| why.contains("seccomp")));
        assert_eq!(names().first().map(String::as_str), Some("seccomp"));
        assert_eq!(names().last().map(String::as_str), Some("output_pipes"));
    }
}
