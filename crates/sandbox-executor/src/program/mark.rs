//! Which limit carries the marks of jobs: one that every process inherits, that anyone may read, and that means nothing here.

use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit, setrlimit};

/// A limit that means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Bytes in message queues, which no command can make.
    MessageQueues,
    /// Resident memory, which no kernel limits by it. gVisor lets nobody change the other one.
    Resident,
}

impl Carrier {
    /// The one that can be set here.
    pub fn here() -> Self {
        static HERE: OnceLock<Carrier> = OnceLock::new();
        *HERE.get_or_init(|| {
            let same = getrlimit(Resource::Msgqueue);
            if setrlimit(Resource::Msgqueue, same).is_ok() { Self::MessageQueues } else { Self::Resident }
        })
    }

    /// As it stands in `/proc/PID/limits`.
    pub fn name(self) -> &'static str {
        match self {
            Self::MessageQueues => "Max msgqueue size",
            Self::Resident => "Max resident set",
        }
    }

    /// For asking.
    pub fn resource(self) -> Resource {
        match self {
            Self::MessageQueues => Resource::Msgqueue,
            Self::Resident => Resource::Rss,
        }
    }

    /// As the kernel counts.
    #[allow(clippy::unnecessary_cast, reason = "the numbers are signed in one C library and unsigned in the other")]
    pub fn number(self) -> u32 {
        match self {
            Self::MessageQueues => libc::RLIMIT_MSGQUEUE as u32,
            Self::Resident => libc::RLIMIT_RSS as u32,
        }
    }
}
