//! From names to addresses, on this machine's side.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    name_servers::{NameServers, Settings},
    translator::{KNOWN_NAME, Others, Translator, Translators},
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
    translators: Arc<Translators>,
    /// Of which name servers.
    settings: Settings,
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
        let servers = self.servers.current()?.servers;
        match tokio::time::timeout(PATIENCE, servers.lookup_ip(format!("{name}."))).await.ok()? {
            Ok(found) => Some(found.iter().collect()),
            Err(error) if error.is_no_records_found() => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// The translators of this machine's network. It is not asked each time, and whoever is slow is not waited for.
    pub(crate) async fn translators(&self) -> Arc<Translators> {
        let Some(current) = self.servers.current() else {
            return self.learned().as_ref().map(|learned| Arc::clone(&learned.translators)).unwrap_or_default();
        };
        let is_known = |learned: &&Learned| learned.settings == current.settings && Instant::now() < learned.until;
        if let Some(learned) = self.learned().as_ref().filter(is_known) {
            return Arc::clone(&learned.translators);
        }
        let told = ask(&current.servers).await;
        self.learn(told, current.settings)
    }

    /// Whoever can keep a name server from answering makes nobody forget what it has told.
    fn learn(&self, told: Option<Vec<Translator>>, settings: Settings) -> Arc<Translators> {
        let mut learned = self.learned();
        let before = learned.take();
        let (translators, remembered) = match (told, before) {
            (Some(known), _) => (Arc::new(Translators { known, others: Others::None }), REMEMBERED),
            (None, None) => (Arc::default(), REMEMBERED_SILENCE),
            (None, Some(before)) if before.settings == settings => (before.translators, REMEMBERED_SILENCE),
            // Another network may have others, and nobody has said that it does not have those as well.
            (None, Some(before)) => {
                let known = before.translators.known.clone();
                (Arc::new(Translators { known, others: Others::Perhaps }), REMEMBERED_SILENCE)
            }
        };
        let until = Instant::now() + remembered;
        *learned = Some(Learned { translators: Arc::clone(&translators), settings, until });
        translators
    }

    fn learned(&self) -> MutexGuard<'_, Option<Learned>> {
        self.translators.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whom the network tells of; nothing if nobody answers.
async fn ask(servers: &TokioResolver) -> Option<Vec<Translator>> {
    match tokio::time::timeout(QUICK, servers.lookup(KNOWN_NAME, RecordType::AAAA)).await.ok()? {
        Ok(found) => {
            let addresses = found.answers().iter().filter_map(|record| match &record.data {
                RData::AAAA(address) => Some(address.0),
                _ => None,
            });
            Some(addresses.flat_map(Translator::told_by).collect())
        }
        Err(error) if error.is_no_records_found() => Some(Vec::new()),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::Message,
        rr::{Record, rdata},
    };
    use tokio::net::UdpSocket;

    use super::*;

    /// A name server that tells of a translator once, and then never says anything.
    async fn answer_once(socket: UdpSocket) {
        let mut buffer = [0; 1024];
        let (length, from) = socket.recv_from(&mut buffer).await.expect("a question");
        let question = Message::from_vec(&buffer[..length]).expect("a question");
        let query = question.queries[0].clone();
        let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
        let address: Ipv6Addr = "2a00:1098:2c:1::192.0.0.171".parse().expect("an address");
        reply.add_answers([Record::from_rdata(query.name().clone(), 0, RData::AAAA(rdata::AAAA(address)))]);
        reply.add_query(query);
        socket.send_to(&reply.to_vec().expect("a reply"), from).await.expect("sent");
        while socket.recv_from(&mut buffer).await.is_ok() {}
    }

    async fn resolver() -> (Resolver, UdpSocket) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
        (Resolver::with_server(socket.local_addr().expect("its address")).expect("a resolver"), socket)
    }

    #[tokio::test]
    async fn a_name_server_that_falls_silent_makes_nobody_forget_a_translator() {
        let (resolver, socket) = resolver().await;
        tokio::spawn(answer_once(socket));
        let told = resolver.translators().await;
        assert_eq!((told.known.len(), told.others), (1, Others::None));
        let expire = || resolver.learned().iter_mut().for_each(|learned| learned.until = Instant::now());
        expire();
        assert_eq!(resolver.translators().await, told);
        expire();
        resolver.learned().iter_mut().for_each(|learned| learned.settings = [Some((1, 2, 3, 4)), None]);
        let moved = resolver.translators().await;
        assert_eq!((&moved.known, moved.others), (&told.known, Others::Perhaps), "another network tells nothing");
    }

    #[tokio::test]
    async fn other_name_servers_are_asked_before_the_time_is_over() {
        let (resolver, socket) = resolver().await;
        tokio::spawn(answer_once(socket));
        let settings = [Some((1, 2, 3, 4)), None];
        resolver.learn(Some(Vec::new()), settings);
        assert_eq!(resolver.translators().await.known.len(), 1);
    }

    #[tokio::test]
    async fn while_nobody_has_ever_answered_there_may_be_translators() {
        let (resolver, _silent) = resolver().await;
        assert_eq!(*resolver.translators().await, Translators { known: Vec::new(), others: Others::Perhaps });
    }
}
