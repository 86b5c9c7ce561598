//! Registries: who they are, how they are reached and asked (the distribution API), and what they give to whom.

mod auth;
mod credentials;
mod endpoint;
pub(crate) mod fetch;
mod http;
mod onward;

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};

pub use endpoint::Endpoint;
pub use fetch::{Remote, Repository};

/// How long a connection may take to be there.
const CONNECT: Duration = Duration::from_secs(15);
/// How long nothing may come before a connection counts as dead.
const SILENCE: Duration = Duration::from_secs(45);

/// How an operator wants registries to be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registries {
    /// For a registry the addresses that are asked before it: `https://HOST[:PORT][/PATH]`.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Hosts, with a port or without, that may be reached without TLS. This machine's own may always.
    pub insecure: Vec<String>,
}

impl Registries {
    /// Whether a host may be reached without TLS.
    pub(crate) fn is_insecure(&self, host: &str, port: u16) -> bool {
        is_loopback(host) || self.insecure.iter().any(|listed| listed == host || *listed == format!("{host}:{port}"))
    }
}

/// Whether this is this machine by its name alone, so that nobody on the way can be somebody else.
pub(crate) fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
