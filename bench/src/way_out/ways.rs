//! What is compared: from where, by which client, and how it gets to the server.

use anyhow::{Context, Result};

use super::{
    client::{How, Job},
    ground::{BEHIND_SLIRP, BEHIND_VETH, Ground},
    inside::{CLIENT, Inside, SERVER},
};
use crate::program::CommandLine;

/// Names of what is compared.
pub mod names {
    #![allow(missing_docs, reason = "the names say it")]
    pub const LOOPBACK: &str = "no sandbox, loopback";
    pub const LOOPBACK_HTTP: &str = "the same, HTTP";
    pub const VETH: &str = "veth and DNAT, nobody decides";
    pub const SLIRP: &str = "`slirp4netns`";
    pub const TRANSPARENT: &str = "sandbox, transparent";
    pub const TRANSPARENT_HTTP: &str = "the same, HTTP, every request read";
    pub const TUNNEL: &str = "sandbox, proxy, CONNECT";
    pub const PROXY_HTTP: &str = "sandbox, proxy, HTTP";
    pub const CURL: &str = "`curl`, no sandbox";
    pub const CURL_TRANSPARENT: &str = "`curl`, sandbox, transparent";
    pub const CURL_PROXY: &str = "`curl`, sandbox, proxy";
}
use names::*;

const LOCAL: &str = "127.0.0.1";

/// One way to the server.
pub struct Way {
    /// Shown in the tables.
    pub name: &'static str,
    from: From,
    host: &'static str,
    port: u16,
    by: By,
}

/// Those that could not be measured, and why.
pub type Missing = Vec<(&'static str, String)>;

/// Where a client is started.
enum From {
    /// By this command line.
    Here(CommandLine),
    /// In the sandbox.
    Sandbox,
}

/// Which client.
#[derive(Clone, Copy)]
enum By {
    /// Ours.
    Client(How),
    /// `curl`, which knows the proxy by its variables.
    Curl,
    /// `curl`, which is told to use none.
    CurlWithoutProxy,
}

/// Those that can be measured, and those that cannot with the reason.
pub fn ways(ground: &Ground, port: u16) -> Result<(Vec<Way>, Missing)> {
    let program = std::env::current_exe()?.display().to_string();
    let ours = |enter: CommandLine| From::Here(ground.client(enter).with([program.as_str()]));
    let straight = By::Client(How::Straight);
    let mut missing = Vec::new();
    let mut all = vec![
        (LOOPBACK, ours(ground.outside()), LOCAL, straight),
        (LOOPBACK_HTTP, ours(ground.outside()), LOCAL, By::Client(How::StraightHttp)),
    ];
    match &ground.veth {
        Ok(held) => all.push((VETH, ours(held.enter()), BEHIND_VETH, straight)),
        Err(why) => missing.push((VETH, why.clone())),
    }
    match &ground.slirp {
        Ok(slirp) => all.push((SLIRP, ours(slirp.held.enter()), BEHIND_SLIRP, straight)),
        Err(why) => missing.push((SLIRP, why.clone())),
    }
    all.extend([
        (TRANSPARENT, From::Sandbox, SERVER, straight),
        (TRANSPARENT_HTTP, From::Sandbox, SERVER, By::Client(How::StraightHttp)),
        (TUNNEL, From::Sandbox, SERVER, By::Client(How::Tunnel)),
        (PROXY_HTTP, From::Sandbox, SERVER, By::Client(How::ProxyHttp)),
        (CURL, From::Here(ground.client(ground.outside())), LOCAL, By::CurlWithoutProxy),
        (CURL_TRANSPARENT, From::Sandbox, SERVER, By::CurlWithoutProxy),
        (CURL_PROXY, From::Sandbox, SERVER, By::Curl),
    ]);
    let way = |(name, from, host, by)| Way { name, from, host, port, by };
    Ok((all.into_iter().map(way).collect(), missing))
}

impl Way {
    /// Does it, and says how many seconds it took; nothing if this client does no such thing.
    pub fn run(&self, inside: &mut Inside, job: Job, count: usize, bytes: u64) -> Result<Vec<f64>> {
        let server = format!("{}:{}", self.host, self.port);
        let words = match self.by {
            By::Client(how) => client_words(how, &server, job, count, bytes),
            By::Curl | By::CurlWithoutProxy if job != Job::Download || count != 1 => return Ok(Vec::new()),
            By::Curl => curl_words(&server, bytes, ""),
            By::CurlWithoutProxy => curl_words(&server, bytes, self.host),
        };
        let said = match (&self.from, self.by) {
            (From::Here(line), _) => line.with(words).output()?,
            (From::Sandbox, By::Client(_)) => inside.run(&format!("{CLIENT} {}", words.join(" ")))?,
            (From::Sandbox, _) => inside.run(&words.join(" "))?,
        };
        said.split_whitespace().map(|time| time.parse().with_context(|| format!("not a time: {said}"))).collect()
    }
}

fn client_words(how: How, server: &str, job: Job, count: usize, bytes: u64) -> Vec<String> {
    let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
    let (job, how) = (clap::ValueEnum::to_possible_value(&job), clap::ValueEnum::to_possible_value(&how));
    let choice = [name(job), name(how)].into_iter().flatten();
    let rest = [server.to_owned(), count.to_string(), bytes.to_string()];
    ["client".to_owned()].into_iter().chain(choice).chain(rest).collect()
}

fn curl_words(server: &str, bytes: u64, no_proxy_for: &str) -> Vec<String> {
    let mut words = vec!["curl", "--silent", "--show-error", "--fail", "--output", "/dev/null"];
    words.extend(["--write-out", "%{time_total}"]);
    if !no_proxy_for.is_empty() {
        words.extend(["--noproxy", no_proxy_for]);
    }
    let address = format!("http://{server}/{bytes}");
    words.into_iter().map(str::to_owned).chain([address]).collect()
}
