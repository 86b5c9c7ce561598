//! From names to addresses, on this machine's side.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolverConfig},
    net::runtime::TokioRuntimeProvider,
};

use crate::host::Name;

/// The name of the machine that a sandbox runs on. Rules have to name it, and then its loopback is meant.
pub const THIS_MACHINE: &str = "host.internal";

/// Asks name servers.
#[derive(Clone)]
pub struct Resolver(TokioResolver);

/// Why nobody can be asked.
#[derive(Debug, thiserror::Error)]
#[error("names cannot be looked up on this machine: {0}. See /etc/resolv.conf")]
pub struct ResolverError(String);

impl Resolver {
    /// The name servers of this machine, and its file of hosts.
    pub fn of_this_machine() -> Result<Self, ResolverError> {
        let built = TokioResolver::builder_tokio().and_then(|builder| builder.build());
        built.map(Self).map_err(|error| ResolverError(error.to_string()))
    }

    /// A name server of one's own.
    pub fn with_server(server: SocketAddr) -> Result<Self, ResolverError> {
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
            connection.port = server.port();
            connection
        });
        let server = NameServerConfig::new(server.ip(), true, connections.into());
        let config = ResolverConfig::from_name_servers(vec![server]);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        builder.options_mut().attempts = 1;
        builder.build().map(Self).map_err(|error| ResolverError(error.to_string()))
    }

    /// Where a name leads now; nothing if it does not exist or nobody answers.
    pub async fn addresses(&self, name: &Name) -> Vec<IpAddr> {
        if name.as_str() == THIS_MACHINE {
            return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        }
        // With the last dot it is not looked for in this machine's own domain.
        match self.0.lookup_ip(format!("{name}.")).await {
            Ok(found) => found.iter().collect(),
            Err(_) => Vec::new(),
        }
    }
}
