//! What an engine is and what it can do, as plain data: all that the plan has to know about it.

use std::collections::BTreeMap;

/// An engine, as it says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nature {
    /// Which one.
    pub kind: Kind,
    /// Its own version.
    pub version: String,
    /// The version of its interface that both sides speak.
    pub api: String,
    /// Where it is reached.
    pub address: String,
    /// Whether it runs on this machine, so that files and descriptors can be shared.
    pub here: bool,
    /// Whether an ordinary user runs it.
    pub rootless: bool,
    /// Whether root inside is somebody else outside.
    pub user_namespaces: bool,
    /// What its cgroups hold.
    pub holds: Holds,
    /// 1 or 2.
    pub cgroup: u8,
    /// The runtimes that it knows, by name.
    pub runtimes: BTreeMap<String, Runtime>,
    /// The one that it takes where none is named.
    pub default_runtime: String,
    /// How it stores layers, and on which file system.
    pub storage: Storage,
    /// The security modules that its containers are under.
    pub modules: Modules,
    /// Limits of processes that must be named, because the engine's own are above what its user may set.
    pub rlimits: Vec<(&'static str, i64)>,
    /// Whether we may enter the network of its containers: we are root on its machine.
    pub enters_networks: bool,
}

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    Docker,
    Podman,
}

impl Kind {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }
}

/// What cgroups hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Holds {
    pub memory: bool,
    pub cpu: bool,
    pub pids: bool,
}

/// A runtime of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// Its program.
    pub path: String,
    /// What the program is always told.
    pub arguments: Vec<String>,
}

/// How layers are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// The driver's name.
    pub driver: String,
    /// The file system that it stands on.
    pub backing: String,
}

/// Security modules of the kernel that the engine uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Modules {
    pub apparmor: bool,
    pub selinux: bool,
}

/// How an executor is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It dials a socket of ours, and descriptors pass.
    Socket,
    /// Through the engine: the standard streams of its container, and bridges.
    Streams,
}

impl Nature {
    /// The runtime that a container gets, with its name; nothing if the engine does not know it.
    pub fn runtime(&self, wanted: Option<&str>) -> Option<(&str, &Runtime)> {
        let name = wanted.unwrap_or(&self.default_runtime);
        self.runtimes.get_key_value(name).map(|(name, runtime)| (name.as_str(), runtime))
    }

    /// How an executor is reached under this runtime. A kernel of its own in between passes no descriptors.
    pub fn reach(&self, wanted: Option<&str>) -> Reach {
        let plain = self.runtime(wanted).is_none_or(|(name, runtime)| !has_own_kernel(name, runtime));
        if self.here && plain { Reach::Socket } else { Reach::Streams }
    }

    /// Whether the runtime puts a kernel of its own between a sandbox and this machine's.
    pub fn own_kernel(&self, wanted: Option<&str>) -> bool {
        self.runtime(wanted).is_some_and(|(name, runtime)| has_own_kernel(name, runtime))
    }

    /// Whether that kernel is gVisor's.
    pub fn is_gvisor(&self, wanted: Option<&str>) -> bool {
        let named = |text: &str| text.contains("runsc") || text.contains("gvisor");
        self.runtime(wanted).is_some_and(|(name, runtime)| named(name) || named(&runtime.path))
    }

    /// Whether the engine is told which system calls may be made. To a kernel of its own that means nothing, and Podman reads it
    /// from a file of its machine.
    pub fn is_told_filters(&self, wanted: Option<&str>) -> bool {
        !self.own_kernel(wanted) && (self.kind == Kind::Docker || self.here)
    }

    /// Whether the engine can give a container's own layer a size.
    pub fn sizes_layers(&self) -> bool {
        self.kind == Kind::Docker && self.storage.driver == "overlay2" && self.storage.backing == "xfs"
    }
}

fn has_own_kernel(name: &str, runtime: &Runtime) -> bool {
    let known = ["runsc", "gvisor", "kata", "krun", "firecracker"];
    known.iter().any(|part| name.contains(part) || runtime.path.contains(part))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Docker on this machine, as root, with what it usually has.
    pub fn docker() -> Nature {
        let runtime = |path: &str| Runtime { path: path.into(), arguments: Vec::new() };
        Nature {
            kind: Kind::Docker,
            version: "20.10.24".into(),
            api: "1.41".into(),
            address: "unix:///var/run/docker.sock".into(),
            here: true,
            rootless: false,
            user_namespaces: false,
            holds: Holds { memory: true, cpu: true, pids: true },
            cgroup: 2,
            runtimes: [("runc", "runc"), ("runsc", "/usr/bin/runsc"), ("kata", "kata-runtime")]
                .map(|(name, path)| (name.to_owned(), runtime(path)))
                .into(),
            default_runtime: "runc".into(),
            storage: Storage { driver: "overlay2".into(), backing: "extfs".into() },
            modules: Modules::default(),
            rlimits: Vec::new(),
            enters_networks: true,
        }
    }

    #[test]
    fn a_kernel_in_between_passes_no_descriptors() {
        let engine = docker();
        assert_eq!(engine.reach(None), Reach::Socket);
        assert_eq!(engine.reach(Some("runsc")), Reach::Streams);
        assert_eq!(engine.reach(Some("kata")), Reach::Streams);
        assert_eq!(Nature { here: false, ..engine.clone() }.reach(None), Reach::Streams);
        assert!(engine.own_kernel(Some("runsc")) && engine.own_kernel(Some("kata")) && !engine.own_kernel(None));
        assert_eq!(engine.runtime(Some("crun")), None);
    }
}
