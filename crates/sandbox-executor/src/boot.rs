//! What an executor is told when it starts, once, by whoever starts it.
//!
//! A MessagePack [`Boot`] is read to its end from descriptor [`BOOT_FD`]. The other descriptors are at fixed
//! numbers too, so that nothing has to be looked for.

use std::{collections::BTreeMap, time::Duration};

use sandbox_core::{
    Bytes,
    exec::{DiskTrouble, Exec},
};
use serde::{Deserialize, Serialize};

/// Holds the encoded [`Boot`].
pub const BOOT_FD: i32 = 3;
/// A listening local socket (`SOCK_SEQPACKET`), for [`Attachment::Listen`].
pub const LISTENER_FD: i32 = 4;
/// Written to once: a [`BootReport`], for a single command its [`sandbox_core::exec::Exit`] at the end instead, both
/// MessagePack. Nobody reads it again after that. With [`Boot::proxy`] it is a packet socket, and a single command's first
/// report comes too.
pub const STATUS_FD: i32 = 5;
/// The kernel's count of out-of-memory kills in this sandbox's cgroup, for [`OomCounter`].
pub const OOM_FD: i32 = 6;
/// A page that the supervisor outside writes and the executor may only read, see [`Verdicts`].
pub const VERDICTS_FD: i32 = 7;
/// The kernel's count of processes that it refused in this sandbox's cgroup, if [`Boot::refused_processes`] says so.
pub const PIDS_FD: i32 = 8;
/// The executor's own `oom_score_adj`, open for writing, where its folder in `/proc` is covered.
pub const SCORE_FD: i32 = 9;
/// Descriptors from here on are closed by the executor when it starts.
pub const FIRST_FREE_FD: i32 = 10;

/// Names a variable of the executor, with names of walls in it that are left out.
#[cfg(feature = "breakable")]
pub const WITHOUT: &str = "SANDBOX_MCP_WITHOUT";

/// Everything that an executor needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    /// How servers reach it.
    pub attachment: Attachment,
    /// Who commands and file operations are.
    pub user: Identity,
    /// Capabilities of commands whose user is not root, as a bit set. Root inside has what the executor has.
    #[serde(default)]
    pub capabilities: u64,
    /// Commands start here, and relative paths too.
    pub workspace: String,
    /// Roots beneath which file requests may act. The workspace is one of them.
    pub places: Vec<String>,
    /// Variables of every command. There are no others.
    pub env: BTreeMap<String, String>,
    /// End when no server was connected for so long.
    pub lease: Option<Duration>,
    /// Kept output of each job.
    pub history: Bytes,
    /// Processes and threads that the sandbox's user may have; set for commands where given.
    pub pids: Option<u32>,
    /// Largest private memory of each process; set for commands where given.
    pub process_memory: Option<Bytes>,
    /// Largest file that any command may write.
    pub file_size: Option<Bytes>,
    /// Descriptors that a command may have, and how many it may ask for. The executor keeps what it was given, which is
    /// more: where the kernel counts what is on its way for several sandboxes together, it still gets its own through.
    #[serde(default)]
    pub descriptors: Option<(u64, u64)>,
    /// How to tell an out-of-memory kill from another.
    pub oom: OomCounter,
    /// Whether the kernel counts processes that it refused, as a file of `key value` lines; the line `max` counts.
    #[serde(default)]
    pub refused_processes: bool,
    /// Whether a supervisor writes [`Verdicts`].
    pub supervised: bool,
    /// Files in `/proc/sys/user` that the executor sets first of all, where whoever started it had no way to. It is given
    /// the one capability for that, and gives it up.
    #[serde(default)]
    pub counts: Vec<(String, u64)>,
    /// Whether the executor is killed when the thread that started it ends. Whoever starts it may have asked the kernel
    /// for that already, but becoming the user undoes it, so the executor asks again.
    #[serde(default)]
    pub die_with_parent: bool,
    /// The port of loopback on which the way out's proxy listens, where nobody but the executor can make that listener:
    /// whoever started it has no power over the network here. It comes with [`BootReport::Ready`], and the executor keeps
    /// no copy.
    #[serde(default)]
    pub proxy: Option<u16>,
    /// What the executor does itself, where an engine started it that knows nothing of us.
    #[serde(default)]
    pub itself: Itself,
}

/// Processes that gVisor may count for the commands' user. That count is exact, where the one of its cgroup comes late, but it
/// leaves out the first process of a command, which the executor starts; as root the executor is one of them itself.
pub fn processes_of_user(limit: u32, user_is_executors: bool) -> u32 {
    if user_is_executors { limit + 1 } else { limit.saturating_sub(1).max(1) }
}

/// What an executor does for itself before anything runs, where whoever started it could not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Itself {
    /// Folders that are made over to the commands' user.
    #[serde(default)]
    pub own: Vec<String>,
    /// Folders in memory that everybody may write to. Some runtimes give them the mode of what the image has there.
    #[serde(default)]
    pub shared: Vec<String>,
    /// Capabilities that it keeps, as a bit set; all others are given up.
    #[serde(default)]
    pub keep: Option<u64>,
    /// A filter for system calls, as the kernel reads it, 8 bytes for each instruction; none if empty.
    #[serde(default, with = "serde_bytes")]
    pub filter: Vec<u8>,
    /// What the folders of `own` may hold together. The executor looks at them, and ends all commands when it is more.
    #[serde(default)]
    pub disk: Option<Bytes>,
    /// Whether what was changed of the root counts too.
    #[serde(default)]
    pub root: bool,
    /// What whoever comes over a bridge must know; nobody may come that way where it is empty. For [`Attachment::Call`] it is
    /// what we say first on each connection: it comes on standard input, since commands might read a file.
    #[serde(default, with = "serde_bytes")]
    pub token: Vec<u8>,
    /// Processes and threads of commands, held by a cgroup of the sandbox's own kernel (gVisor's) that the executor makes and
    /// nobody sees afterwards. It starts with the power to do so, which is not among what it keeps.
    #[serde(default)]
    pub pids: Option<u32>,
    /// A file inside that stands for [`VERDICTS_FD`].
    #[serde(default)]
    pub verdicts: Option<String>,
    /// A way out where nobody else can listen in the sandbox's network.
    #[serde(default)]
    pub outward: Option<Outward>,
}

/// The executor listens for programs that know a proxy, and carries bytes to whoever listens outside. It looks at none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outward {
    /// The port of loopback on which programs look for the proxy.
    pub port: u16,
    /// The socket inside behind which the proxy is.
    pub path: String,
}

/// The first argument of an executor that an engine starts: it connects to the socket that the second argument names, and is
/// sent what to do.
pub const DIAL_ROLE: &str = "dial";
/// The first argument of one that reads what to do from standard input: its length (4 bytes, big endian), then a [`Boot`].
/// Its report comes in the same form on standard output.
pub const STREAMS_ROLE: &str = "streams";
/// The first argument of one that finds what to do in the file that the second argument names.
pub const FILE_ROLE: &str = "file";
/// The first argument of a process that an engine starts beside an executor: whatever comes on its standard input goes to that
/// executor, and back. The first bytes are [`Itself::token`].
pub const BRIDGE_ROLE: &str = "bridge";
/// Where bridges meet the executor: a name in its own network, not a file.
pub const BRIDGE_NAME: &[u8] = b"sandbox-mcp-executor";
/// Bytes of [`Itself::token`].
pub const TOKEN: usize = 32;

/// Begins a packet for an executor that has dialled: a descriptor with the [`Boot`] comes along, and further ones as the
/// letters after it say.
pub const PACKET_BOOT: u8 = b'B';
/// The kernel's count of out-of-memory kills comes along.
pub const LETTER_OOM: u8 = b'o';
/// The kernel's count of refused processes comes along.
pub const LETTER_PIDS: u8 = b'p';
/// A packet for an executor that has dialled: the descriptor that comes along is a connection of a server.
pub const PACKET_CONNECTION: u8 = b'C';
/// The same: the descriptor that comes along is what both sides use from now on. It has no name that a sandbox could see.
pub const PACKET_LINE: u8 = b'L';

/// How an executor is reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Attachment {
    /// It accepts connections on [`LISTENER_FD`]; descriptors can be passed.
    Listen,
    /// It has dialled a server's socket, and does so again whenever that server is gone; connections are passed to it there.
    Dial,
    /// One multiplexed stream on standard input and output. With [`Itself::token`] bridges may come too, and it outlives
    /// the stream.
    Streams,
    /// It connects to a local socket that somebody outside listens on, and keeps one connection waiting there for whoever
    /// comes next.
    Call {
        /// Where the socket is, inside.
        path: String,
        /// What it carries.
        carries: Carries,
    },
    /// Nobody: it runs this one command with its own standard streams and ends with it.
    Single(Box<Exec>),
}

/// What a socket that an executor calls carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carries {
    /// Packets, and descriptors with them (`SOCK_SEQPACKET`).
    Descriptors,
    /// Bytes only: descriptors do not pass between kernels.
    Bytes,
}

/// Who commands are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Identity {
    /// The executor is root of its namespace; commands become this user.
    Drop {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
    /// There is only one id; commands share it with the executor.
    Same,
}

/// Where out-of-memory kills are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OomCounter {
    /// Nowhere.
    None,
    /// A file of `key value` lines; the line `oom_kill` counts (both cgroup versions).
    Cgroup,
}

/// How the start went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BootReport {
    /// Connections are answered from now on, or the single command starts. The listener of [`Boot::proxy`] comes along.
    Ready,
    /// It cannot work; it ends.
    Failed(String),
}

/// What a supervisor outside has killed so far, as little-endian 64-bit numbers at the start of the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Kills because of memory.
    pub memory: u64,
    /// Bytes of memory that were used at the last of them.
    pub memory_used: u64,
    /// Kills because of disk space.
    pub disk: u64,
    /// Bytes of files at the last of them; the greatest number where that was not known.
    pub disk_used: u64,
    /// What else was wrong with the files then.
    pub trouble: Option<DiskTrouble>,
}

/// As numbers, from one on.
const TROUBLES: [DiskTrouble; 4] =
    [DiskTrouble::TooDeep, DiskTrouble::TooManyOpen, DiskTrouble::Unreadable, DiskTrouble::DiskFull];

impl Verdicts {
    /// Size of the encoded form.
    pub const SIZE: usize = 40;

    /// As it stands in the page.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let trouble =
            TROUBLES.iter().position(|known| Some(*known) == self.trouble).map_or(0, |index| index as u64 + 1);
        let numbers = [self.memory, self.memory_used, self.disk, self.disk_used, trouble];
        let mut bytes = [0; Self::SIZE];
        bytes.chunks_exact_mut(8).zip(numbers).for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
        bytes
    }

    /// From the page.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let number = |at: usize| bytes[8 * at..][..8].iter().rev().fold(0, |sum, &byte| (sum << 8) | u64::from(byte));
        let trouble = usize::try_from(number(4)).ok().and_then(|number| TROUBLES.get(number.checked_sub(1)?).copied());
        Self { memory: number(0), memory_used: number(1), disk: number(2), disk_used: number(3), trouble }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_come_back_as_they_were() {
        for trouble in TROUBLES.map(Some).into_iter().chain([None]) {
            let verdicts = Verdicts { memory: 1, memory_used: 1 << 40, disk: 3, disk_used: u64::MAX, trouble };
            assert_eq!(Verdicts::from_bytes(verdicts.to_bytes()), verdicts);
        }
    }
}
