//! The network namespaces of the measurements. Nothing in them has a way to the world, and no rule of this machine is
//! changed.
//!
//! As root, everything is started in one of our own, whose loopback is the loopback that others are measured against; two
//! more hang on it, by a pair of virtual cards and by `slirp4netns`. Each is held by a `cat` that ends when we do.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::weight::Weight;
use crate::{program::CommandLine, results::Part};

/// The server by the pair of cards: an address that is rewritten on the way, as a container's connections are.
pub const BEHIND_VETH: &str = "198.51.100.1";
/// The server by `slirp4netns`: its name for the loopback of where it runs.
pub const BEHIND_SLIRP: &str = "10.0.2.2";

const OUTSIDE: &str = "10.111.0.1";
const INSIDE: &str = "10.111.0.2";

/// Where clients can be started.
pub struct Ground {
    /// Where servers run; this machine's own network if we may not make one.
    outside: Option<Held>,
    /// Behind a pair of virtual cards.
    pub veth: Part<Held>,
    /// Behind a network stack in a program.
    pub slirp: Part<Slirp>,
    weight: Option<Weight>,
}

/// A network namespace for as long as this is there.
pub struct Held {
    holder: Child,
    enter: &'static [&'static str],
}

/// The same, with the program that carries its packets.
pub struct Slirp {
    /// The namespace.
    pub held: Held,
    program: Child,
    _leash: Option<ChildStdin>,
}

impl Ground {
    /// All of it, as far as it can be had here.
    pub fn make() -> Result<Self> {
        if CommandLine::new(["id", "-u"]).output()? != "0" {
            let slirp = Slirp::start(None).map_err(in_one_line);
            return Ok(Self { outside: None, veth: Err("needs root".to_owned()), slirp, weight: None });
        }
        let outside = Held::make(&["--net"], &["--net"])?;
        outside.run(&["ip", "link", "set", "lo", "up"])?;
        let veth = veth(&outside).map_err(in_one_line);
        let slirp = Slirp::start(Some(&outside)).map_err(in_one_line);
        Ok(Self { outside: Some(outside), veth, slirp, weight: Weight::make() })
    }

    /// The namespace of the servers, if it is not our own.
    pub fn namespace(&self) -> Option<PathBuf> {
        let outside = self.outside.as_ref()?;
        Some(format!("/proc/{}/ns/net", outside.holder.id()).into())
    }

    /// What the command line of a client outside begins with: it weighs as much as one in a sandbox.
    pub fn client(&self, enter: CommandLine) -> CommandLine {
        self.weight.as_ref().map_or_else(|| enter.clone(), |weight| weight.enter().with(enter.words()))
    }

    /// What a command line begins with that is to run where the servers are.
    pub fn outside(&self) -> CommandLine {
        self.outside.as_ref().map_or_else(|| CommandLine::new(["env"]), Held::enter)
    }
}

impl Held {
    fn make(unshare: &[&str], enter: &'static [&'static str]) -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(unshare).args(["--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().context("starting unshare")?;
        // What comes back says that it is there.
        holder.stdin.as_mut().context("a pipe was asked for")?.write_all(b"\n")?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().context("a pipe was asked for")?).read_line(&mut line)?;
        ensure!(!line.is_empty(), "unshare made no network namespace");
        Ok(Self { holder, enter })
    }

    /// What a command line begins with that is to run in it.
    pub fn enter(&self) -> CommandLine {
        CommandLine::new(["nsenter", "--target", &self.holder.id().to_string()]).with(self.enter.iter().copied())
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        self.enter().with(words.iter().copied()).output().map(drop)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // End of input ends it.
        self.holder.stdin = None;
        let _ = self.holder.wait();
    }
}

/// A pair of cards and a rule, as a container has them, with nobody in between who decides.
fn veth(outside: &Held) -> Result<Held> {
    let inside = Held::make(&["--net"], &["--net"])?;
    let id = inside.holder.id().to_string();
    outside.run(&["ip", "link", "add", "outer", "type", "veth", "peer", "name", "inner", "netns", &id])?;
    outside.run(&["ip", "address", "add", &format!("{OUTSIDE}/30"), "dev", "outer"])?;
    outside.run(&["ip", "link", "set", "outer", "up"])?;
    inside.run(&["ip", "link", "set", "lo", "up"])?;
    inside.run(&["ip", "address", "add", &format!("{INSIDE}/30"), "dev", "inner"])?;
    inside.run(&["ip", "link", "set", "inner", "up"])?;
    inside.run(&["ip", "route", "add", "default", "via", OUTSIDE])?;
    let rule = format!(
        "add table ip bench; add chain ip bench out {{ type nat hook output priority -100; }}; \
         add rule ip bench out ip daddr {BEHIND_VETH} dnat to {OUTSIDE}"
    );
    inside.run(&["nft", &rule]).context("apt-get install nftables")?;
    Ok(inside)
}

/// For a table.
fn in_one_line(error: anyhow::Error) -> String {
    format!("{error:#}").lines().next().unwrap_or_default().to_owned()
}

impl Slirp {
    fn start(outside: Option<&Held>) -> Result<Self> {
        let held = match outside {
            Some(_) => Held::make(&["--net"], &["--net"])?,
            None => Held::make(&["--map-root-user", "--net"], &["--user", "--preserve-credentials", "--net"])?,
        };
        let line = outside.map_or_else(|| CommandLine::new(["env"]), Held::enter);
        let line = line.with(["slirp4netns", "--configure", "--mtu=65520", "--ready-fd=1", "--exit-fd=0"]);
        let mut command = line.with([&held.holder.id().to_string(), "tap0"]).command();
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut program = command.spawn().context("starting slirp4netns")?;
        let leash = program.stdin.take();
        let mut ready = BufReader::new(program.stdout.take().context("a pipe was asked for")?);
        let slirp = Self { held, program, _leash: leash };
        ensure!(!ready.fill_buf()?.is_empty(), "slirp4netns did not start (apt-get install slirp4netns)");
        Ok(slirp)
    }
}

impl Drop for Slirp {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
