//! Network namespaces: one for each sandbox, and one that the launcher makes its own sockets in.
//!
//! Making one is the slowest part of a birth, so some wait; and one in which nothing ever happened is used again.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags},
    thread::{LinkNameSpaceType, UnshareFlags},
};

use crate::{
    sys,
    wall::{self, Wall},
};

/// So many wait for a sandbox.
const POOL: usize = 8;
/// What the kernel counts in a network namespace, whoever asks: packets, refusals, and labels that outlive their socket.
const TRACES: [&str; 5] = ["dev", "snmp", "snmp6", "netstat", "ip6_flowlabel"];

/// The network namespaces of a launcher.
#[derive(Default)]
pub struct Networks {
    waiting: Vec<OwnedFd>,
    returned: Vec<OwnedFd>,
    own: Own,
    /// The traces in one that was just made.
    untouched: Option<[Option<String>; 5]>,
}

/// The one that the launcher makes its sockets in: a sandbox sees all that are made in its own.
#[derive(Default)]
enum Own {
    /// The one that it was started in. An ordinary user may leave that but not return.
    #[default]
    NeverLeft,
    /// One that it made since.
    Made { network: OwnedFd, away: bool },
    /// None: it is in a sandbox's.
    Lost,
}

/// Whether there was room for one more.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Stocked {
    More,
    Full,
}

impl Networks {
    /// Makes one more if there is room.
    pub fn stock(&mut self) -> io::Result<Stocked> {
        if self.waiting.len() >= POOL || !wall::stands(Wall::Network) {
            return Ok(Stocked::Full);
        }
        let network = self.own.leave(make)?;
        self.untouched.get_or_insert_with(traces);
        self.waiting.push(network);
        self.own.return_to()?;
        Ok(Stocked::More)
    }

    /// Enters a fresh one, which the next child inherits.
    pub fn enter(&mut self) -> io::Result<Option<OwnedFd>> {
        if !wall::stands(Wall::Network) {
            return Ok(None);
        }
        let entered = match self.waiting.pop() {
            Some(network) => self.own.leave(|| move_into(&network)).map(|()| network),
            None => self.own.leave(make),
        };
        entered.map(Some)
    }

    /// Leaves the one that was entered last.
    pub fn leave(&mut self) -> io::Result<()> {
        self.own.return_to()
    }

    /// Takes one back whose processes have all ended.
    pub fn take_back(&mut self, network: OwnedFd) {
        // Whoever has made no stock makes one sandbox and ends.
        if self.untouched.is_some() && self.waiting.len() + self.returned.len() < POOL {
            self.returned.push(network);
        }
    }

    /// Keeps those that were taken back and show no trace of anybody.
    pub fn inspect(&mut self) -> io::Result<()> {
        for network in std::mem::take(&mut self.returned) {
            self.own.leave(|| move_into(&network))?;
            if no_sockets() && self.untouched == Some(traces()) {
                self.waiting.push(network);
            }
        }
        self.own.return_to()
    }
}

impl Own {
    /// Does what leads elsewhere.
    fn leave<T>(&mut self, go: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let gone = go()?;
        match self {
            Self::Made { away, .. } => *away = true,
            Self::NeverLeft | Self::Lost => *self = Self::Lost,
        }
        Ok(gone)
    }

    fn return_to(&mut self) -> io::Result<()> {
        match self {
            _ if !wall::stands(Wall::OwnNetwork) => {}
            Self::NeverLeft | Self::Made { away: false, .. } => {}
            Self::Made { network, away } => {
                move_into(network)?;
                *away = false;
            }
            Self::Lost => *self = Self::Made { network: make()?, away: false },
        }
        Ok(())
    }
}

fn move_into(network: &OwnedFd) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn make() -> io::Result<OwnedFd> {
    sys::unshare(UnshareFlags::NEWNET)?;
    sys::loopback_up()?;
    Ok(rustix::fs::open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Those of the network namespace that this process is in; some are not there without IPv6.
fn traces() -> [Option<String>; 5] {
    TRACES.map(|name| fs::read_to_string(format!("/proc/self/net/{name}")).ok())
}

/// One on its way to somebody who is gone may live for a moment.
fn no_sockets() -> bool {
    fs::read_to_string("/proc/self/net/sockstat").is_ok_and(|text| text.starts_with("sockets: used 0\n"))
}
