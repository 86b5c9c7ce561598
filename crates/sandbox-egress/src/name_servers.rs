//! Who is asked for names: whoever this machine asks now. It may move to another network while sandboxes live.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    sync::{Mutex, PoisonError},
};

use hickory_resolver::TokioResolver;

/// Where this machine says whom it asks, and what it knows without asking.
const SETTINGS: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// Name servers.
pub(crate) enum NameServers {
    /// Those of this machine; none until somebody asks, since a machine without any still has sandboxes.
    OfThisMachine(Mutex<Option<Known>>),
    /// Others.
    Given(TokioResolver),
}

/// Whom to ask, and of which settings that was read; of none where they are given.
#[derive(Clone)]
pub(crate) struct Known {
    pub settings: Settings,
    pub servers: TokioResolver,
}

/// The files of settings as they were.
pub(crate) type Settings = [Option<Version>; 2];

/// A file as it was: device, number, and time of change.
type Version = (u64, u64, i64, i64);

impl NameServers {
    /// Whom to ask now. Settings that cannot be read leave those that there were.
    pub fn current(&self) -> Option<Known> {
        let known = match self {
            Self::Given(servers) => return Some(Known { settings: Settings::default(), servers: servers.clone() }),
            Self::OfThisMachine(known) => known,
        };
        let settings = SETTINGS.map(version);
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|known| known.settings != settings)
            && let Ok(servers) = TokioResolver::builder_tokio().and_then(|builder| builder.build())
        {
            *known = Some(Known { settings, servers });
        }
        known.clone()
    }
}

fn version(path: &str) -> Option<Version> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
}
