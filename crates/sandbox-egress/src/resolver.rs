//! From names to addresses, on this machine's side.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use hickory_proto::rr::{RData, RecordType};
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolverConfig},
    net::runtime::TokioRuntimeProvider,
};

use crate::{
    host::Name,
    name_servers::NameServers,
    translator::{KNOWN_NAME, Translator},
};

/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(8);
/// Time to learn of translators; a network that has one answers at once.
const QUICK: Duration = Duration::from_secs(1);
/// For how long that is remembered, and for how long that nobody answered. A machine can move to another network.
const REMEMBERED: Duration = Duration::from_secs(600);
const REMEMBERED_SILENCE: Duration = Duration::from_secs(10);

/// The name of the machine that a sandbox runs on. Rules have to name it, and then its loopback is meant.
pub const THIS_MACHINE: &str = "host.internal";

/// Asks name servers.
#[derive(Clone)]
pub struct Resolver {
    servers: Arc<NameServers>,
    translators: Arc<Mutex<Option<Learned>>>,
}

struct Learned {
    translators: Arc<[Translator]>,
    until: Instant,
}

/// Why nobody can be asked.
#[derive(Debug, thiserror::Error)]
#[error("names cannot be looked up: {0}")]
pub struct ResolverError(String);

impl Resolver {
    /// The name servers of this machine, and its file of hosts.
    pub fn of_this_machine() -> Self {
        Self::new(NameServers::OfThisMachine(Mutex::default()))
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
        let built = builder.build().map(NameServers::Given);
        built.map(Self::new).map_err(|error| ResolverError(error.to_string()))
    }

    fn new(servers: NameServers) -> Self {
        Self { servers: Arc::new(servers), translators: Arc::default() }
    }

    /// Where a name leads now, if anywhere; nothing if nobody answers.
    pub async fn addresses(&self, name: &Name) -> Option<Vec<IpAddr>> {
        if name.as_str() == THIS_MACHINE {
            return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        // With the last dot it is not looked for in this machine's own domain.
        let servers = self.servers.current()?;
        match tokio::time::timeout(PATIENCE, servers.lookup_ip(format!("{name}."))).await.ok()? {
            Ok(found) => Some(found.iter().collect()),
            Err(error) if error.is_no_records_found() => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// The translators of this machine's network. It is not asked each time, and whoever is slow is not waited for.
    pub(crate) async fn translators(&self) -> Arc<[Translator]> {
        let known = |learned: &Option<Learned>| match learned {
            Some(learned) if Instant::now() < learned.until => Some(Arc::clone(&learned.translators)),
            _ => None,
        };
        if let Some(translators) = known(&self.translators.lock().unwrap_or_else(PoisonError::into_inner)) {
            return translators;
        }
        let Some(servers) = self.servers.current() else { return Arc::default() };
        let asked = tokio::time::timeout(QUICK, servers.lookup(KNOWN_NAME, RecordType::AAAA)).await;
        let (translators, remembered): (Arc<[_]>, _) = match asked {
            Ok(Ok(found)) => {
                let addresses = found.answers().iter().filter_map(|record| match &record.data {
                    RData::AAAA(address) => Some(address.0),
                    _ => None,
                });
                (addresses.flat_map(Translator::told_by).collect(), REMEMBERED)
            }
            Ok(Err(error)) if error.is_no_records_found() => (Arc::default(), REMEMBERED),
            Ok(Err(_)) | Err(_) => (Arc::default(), REMEMBERED_SILENCE),
        };
        let learned = Learned { translators: Arc::clone(&translators), until: Instant::now() + remembered };
        *self.translators.lock().unwrap_or_else(PoisonError::into_inner) = Some(learned);
        translators
    }
}
