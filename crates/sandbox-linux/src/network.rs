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
use sandbox_core::Door;
use serde::{Deserialize, Serialize};

use crate::{
    sys,
    wall::{self, Wall},
    way_out::{self, Reach},
};

/// So many of each kind wait for a sandbox.
const POOL: usize = 8;
/// What the kernel counts in a network namespace, whoever asks: packets, refusals, and labels that outlive their socket.
const TRACES: [&str; 5] = ["dev", "snmp", "snmp6", "netstat", "ip6_flowlabel"];

/// What a network is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Loopback, and nothing else.
    Sealed,
    /// Loopback, and doors to a way out.
    Wired,
}

/// The network of one sandbox.
pub struct Network {
    /// None where somebody else made it: then it is theirs.
    namespace: Option<OwnedFd>,
    kind: Kind,
    /// Whether it has all that its kind has.
    finished: bool,
    /// Sockets in it that belong to us.
    pub doors: Vec<(Door, OwnedFd)>,
}

impl Network {
    /// One that bwrap made, with the door that was opened inside.
    pub fn of_bwrap(door: OwnedFd) -> Self {
        Self { namespace: None, kind: Kind::Wired, finished: true, doors: vec![(Door::Proxy, door)] }
    }

    /// Whether something in it wanted to go where no route leads. This process is in it then, so it is for one that ends.
    pub fn was_too_small(&self) -> bool {
        self.kind == Kind::Sealed && self.enter().is_ok() && without_route() > 0
    }

    fn enter(&self) -> io::Result<()> {
        self.namespace.as_ref().map_or_else(|| Err(io::ErrorKind::NotFound.into()), move_into)
    }
}

/// The network namespaces of a launcher.
#[derive(Default)]
pub struct Networks {
    sealed: Pool,
    wired: Pool,
    returned: Vec<Network>,
    own: Own,
    /// What the way out of wired ones is like; known when the first was made.
    reach: Option<Reach>,
    /// The kind that was wanted last.
    wanted: Option<Kind>,
}

/// Those of one kind that nobody uses.
#[derive(Default)]
struct Pool {
    waiting: Vec<Network>,
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
    /// What the way out of sandboxes is like here. Makes a network to find out.
    pub fn reach(&mut self) -> io::Result<Reach> {
        if !wall::stands(Wall::Network) {
            return Ok(Reach::Everything);
        }
        if self.reach.is_none() {
            self.stock_with(Kind::Wired)?;
        }
        self.reach.clone().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Makes one more of the kind that was wanted last, if there is room.
    pub fn stock(&mut self) -> io::Result<Stocked> {
        let Some(kind) = self.wanted.filter(|_| wall::stands(Wall::Network)) else { return Ok(Stocked::Full) };
        if self.pool(kind).waiting.len() >= POOL {
            return Ok(Stocked::Full);
        }
        self.stock_with(kind).map(|()| Stocked::More)
    }

    fn stock_with(&mut self, kind: Kind) -> io::Result<()> {
        let mut network = self.make(kind)?;
        self.finish(&mut network)?;
        let pool = self.pool(kind);
        pool.untouched.get_or_insert_with(traces);
        pool.waiting.push(network);
        self.own.return_to()
    }

    /// Enters a fresh one, which the next child inherits. Before that child does anything in it, [`Self::finish`] it.
    pub fn enter(&mut self, kind: Kind) -> io::Result<Option<Network>> {
        if !wall::stands(Wall::Network) {
            return Ok(None);
        }
        self.wanted = Some(kind);
        match self.pool(kind).waiting.pop() {
            Some(network) => self.own.leave(|| network.enter()).map(|()| Some(network)),
            None => self.make(kind).map(Some),
        }
    }

    /// Makes the one that was entered last what it should be; meanwhile others may do something else.
    pub fn finish(&mut self, network: &mut Network) -> io::Result<()> {
        if network.finished {
            return Ok(());
        }
        sys::loopback_up()?;
        let mut tunnel = None;
        if network.kind == Kind::Wired {
            let (reach, made) = way_out::wire()?;
            (self.reach, tunnel) = (Some(reach), made);
        }
        network.doors = self.doors(network.kind)?;
        network.doors.extend(tunnel);
        network.finished = true;
        Ok(())
    }

    /// Leaves the one that was entered last.
    pub fn leave(&mut self) -> io::Result<()> {
        self.own.return_to()
    }

    /// Takes one back whose processes have all ended.
    pub fn take_back(&mut self, mut network: Network) {
        // What went through a tunnel leaves its traces, and without the tunnel there is no way out.
        if network.doors.iter().any(|(door, _)| *door == Door::Packets) {
            return;
        }
        network.doors.clear();
        let returned = self.returned.iter().filter(|other| other.kind == network.kind).count();
        let pool = self.pool(network.kind);
        // Whoever has made no stock makes one sandbox and ends.
        if network.namespace.is_some() && pool.untouched.is_some() && pool.waiting.len() + returned < POOL {
            self.returned.push(network);
        }
    }

    /// Keeps those that were taken back and show no trace of anybody.
    pub fn inspect(&mut self) -> io::Result<()> {
        for mut network in std::mem::take(&mut self.returned) {
            self.own.leave(|| network.enter())?;
            if !no_sockets() || self.pool(network.kind).untouched != Some(traces()) {
                continue;
            }
            network.doors = self.doors(network.kind)?;
            self.pool(network.kind).waiting.push(network);
        }
        self.own.return_to()
    }

    /// Makes one with nothing in it, and is in it then.
    fn make(&mut self, kind: Kind) -> io::Result<Network> {
        let namespace = Some(self.own.leave(make)?);
        Ok(Network { namespace, kind, finished: false, doors: Vec::new() })
    }

    fn doors(&self, kind: Kind) -> io::Result<Vec<(Door, OwnedFd)>> {
        match (kind, &self.reach) {
            (Kind::Wired, Some(reach)) => way_out::open_doors(reach),
            _ => Ok(Vec::new()),
        }
    }

    fn pool(&mut self, kind: Kind) -> &mut Pool {
        match kind {
            Kind::Sealed => &mut self.sealed,
            Kind::Wired => &mut self.wired,
        }
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
            Self::Lost => {
                let network = make()?;
                sys::loopback_up()?;
                *self = Self::Made { network, away: false };
            }
        }
        Ok(())
    }
}

fn move_into(network: &OwnedFd) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn make() -> io::Result<OwnedFd> {
    sys::unshare(UnshareFlags::NEWNET)?;
    Ok(rustix::fs::open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Those of the network namespace that this process is in; some are not there without IPv6.
fn traces() -> [Option<String>; 5] {
    TRACES.map(|name| fs::read_to_string(format!("/proc/self/net/{name}")).ok())
}

/// Packets that had no route, which the kernel counts in the network namespace that this process is in.
fn without_route() -> u64 {
    let told = |name: &str| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
    packets_without_route(&told("snmp"), &told("snmp6"))
}

/// For IPv4 a line of names and a line of numbers, for IPv6 a line for each (proc_pid_net(5)).
pub fn packets_without_route(snmp: &str, snmp6: &str) -> u64 {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, numbers) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let four =
        names.split(' ').zip(numbers.split(' ')).find(|(name, _)| *name == "OutNoRoutes").map(|(_, found)| found);
    let six = snmp6.lines().find_map(|line| line.strip_prefix("Ip6OutNoRoutes"));
    [four, six].into_iter().flatten().filter_map(|found| found.trim().parse::<u64>().ok()).fold(0, u64::saturating_add)
}

/// One on its way to somebody who is gone may live for a moment.
fn no_sockets() -> bool {
    fs::read_to_string("/proc/self/net/sockstat").is_ok_and(|text| text.starts_with("sockets: used 0\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_without_a_route_are_read_of_both_protocols() {
        let snmp = "Ip: Forwarding OutNoRoutes OutTransmits\nIp: 1 3 0\nIcmp: InMsgs\nIcmp: 7\n";
        let snmp6 = "Ip6OutDiscards                  \t9\nIp6OutNoRoutes                  \t2\n";
        assert_eq!(packets_without_route(snmp, snmp6), 5);
        assert_eq!(packets_without_route(snmp, ""), 3);
        assert_eq!(packets_without_route("", "Ip6OutNoRoutes x"), 0);
    }
}
