//! Where all ways out meet: a target goes in, and a connection to an address that was checked comes out, or a refusal.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
};

use crate::{
    Decision, Host, Name, Reason, Resolver, Rules, Scope, StandIns, Target,
    client_hello::Beginning,
    record::{Record, Verdict},
    secrets::{Alarm, Secrets},
};

/// Time to reach one address, and for all of them.
const ONE: Duration = Duration::from_secs(5);
const ALL: Duration = Duration::from_secs(15);
/// Time for a name server's answer.
const RESOLVE: Duration = Duration::from_secs(8);

/// The way out of one sandbox.
pub struct Engine {
    rules: RwLock<Arc<Rules>>,
    resolver: Resolver,
    stand_ins: Mutex<StandIns>,
    room: Arc<Semaphore>,
    closed: watch::Sender<bool>,
    recorder: Recorder,
    secrets: Secrets,
}

/// What makes one sandbox's way out different from another's.
pub struct Setup {
    /// What it may reach.
    pub rules: Rules,
    /// Who knows the addresses of names.
    pub resolver: Resolver,
    /// How much of it.
    pub limits: Limits,
    /// Told of whatever is connected or refused.
    pub recorder: Recorder,
    /// What it may use and never see.
    pub secrets: Secrets,
}

/// Whoever writes down what happened.
pub type Recorder = Box<dyn Fn(Record) + Send + Sync>;

/// How much one sandbox may use of the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 1024 }
    }
}

/// Why nothing was connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The rule that said so, if one did.
    pub rule: Option<String>,
    /// The secret that it is about, if it is.
    pub secret: Option<String>,
}

/// A connection that was made.
pub struct Opened {
    /// To the far end.
    pub stream: TcpStream,
    /// What it was wanted for.
    pub target: Target,
    pub(crate) address: SocketAddr,
    pub(crate) rule: String,
    pub(crate) since: Instant,
    pub(crate) alarm: Alarm,
}

impl Refusal {
    /// Without a rule.
    pub(crate) fn new(reason: Reason) -> Self {
        Self { reason, rule: None, secret: None }
    }
}

impl Engine {
    /// Ready to be served.
    pub fn new(setup: Setup) -> Arc<Self> {
        let Setup { rules, resolver, limits, recorder, secrets } = setup;
        Arc::new(Self {
            rules: RwLock::new(Arc::new(rules)),
            resolver,
            stand_ins: Mutex::default(),
            room: Arc::new(Semaphore::new(limits.connections)),
            closed: watch::Sender::new(false),
            recorder,
            secrets,
        })
    }

    /// Ends every connection, and makes no more: the sandbox has ended.
    pub fn close(&self) {
        self.room.close();
        self.closed.send_replace(true);
    }

    /// Returns when all is over.
    pub(crate) async fn until_closed(&self) {
        // It cannot be gone before us.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// A place for one connection of the sandbox, from when it is accepted to its end; nothing if it has too many.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_owned().ok()
    }

    /// Other rules from now on, for connections that are made from now on.
    pub fn set_rules(&self, rules: Rules) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    /// The rules as they are now.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The secrets of this sandbox.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// What is meant by a target: the name, where its address stands for one.
    fn meant(&self, target: Target) -> Target {
        let Host::Address(address) = target.host else { return target };
        let stand_ins = self.stand_ins.lock().unwrap_or_else(PoisonError::into_inner);
        match stand_ins.name(address) {
            Some(name) => Target { host: Host::Name(name.clone()), ..target },
            None => target,
        }
    }

    /// Answers a question for a name.
    pub fn answer_dns(&self, message: &[u8]) -> Option<Vec<u8>> {
        let rules = self.rules();
        let mut stand_ins = self.stand_ins.lock().unwrap_or_else(PoisonError::into_inner);
        let mut leaving = None;
        let allowed = |name: &Name| {
            leaving = self.secrets.leaving_in(name, name);
            leaving.is_none() && rules.may_allow(name)
        };
        let (asked, reply) = crate::dns::answer(message, allowed, &mut stand_ins);
        drop(stand_ins);
        if let crate::dns::Asked::Denied(name) | crate::dns::Asked::TooMany(name) = asked {
            let refusal = leaving.unwrap_or_else(|| Refusal::new(Reason::NameDenied));
            (self.recorder)(Record::refused(name.to_string(), &refusal, Duration::ZERO));
        }
        reply
    }

    /// Connects to a target, if it may be.
    pub async fn open(&self, target: Target) -> Result<Opened, Refusal> {
        let rules = self.rules();
        self.open_by(&rules, target).await
    }

    /// Connects to a target, if it may be by these rules.
    pub(crate) async fn open_by(&self, rules: &Rules, target: Target) -> Result<Opened, Refusal> {
        let since = Instant::now();
        let target = self.meant(target);
        match self.try_open(rules, &target, since).await {
            Ok(opened) => Ok(opened),
            Err(refusal) => {
                self.record_refusal(&target, &refusal, since);
                Err(refusal)
            }
        }
    }

    async fn try_open(&self, rules: &Rules, target: &Target, since: Instant) -> Result<Opened, Refusal> {
        if let Host::Name(name) = &target.host
            && let Some(refusal) = self.secrets.leaving_in(name, target)
        {
            return Err(refusal);
        }
        let (rule, scope) = match rules.decide(target) {
            Decision::Allowed { rule, scope } => (rule.to_owned(), scope),
            Decision::Denied { rule, reason } => {
                return Err(Refusal { rule: rule.map(str::to_owned), ..Refusal::new(reason) });
            }
        };
        let refuse = |reason| Refusal { rule: Some(rule.clone()), ..Refusal::new(reason) };
        let addresses = self.admitted(&target.host, &scope).await.map_err(refuse)?;
        let (stream, address) = dial(&addresses, target.port).await.map_err(refuse)?;
        let _ = stream.set_nodelay(true);
        let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        Ok(Opened { stream, target: target.clone(), address, rule, since, alarm: Alarm::default() })
    }

    /// Addresses that may be dialled; or why there are none.
    async fn admitted(&self, host: &Host, scope: &Scope) -> Result<Vec<IpAddr>, Reason> {
        let found = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => tokio::time::timeout(RESOLVE, self.resolver.addresses(name)).await.unwrap_or_default(),
        };
        let mut refused = Reason::NoSuchName;
        let mut admitted = Vec::new();
        for address in found {
            let own = if is_own(address) { &[address][..] } else { &[] };
            match scope.admits(address, own) {
                Ok(()) => admitted.push(address),
                Err(reason) => refused = reason,
            }
        }
        if admitted.is_empty() { Err(refused) } else { Ok(admitted) }
    }

    /// Whether a client that begins like this may go on.
    pub(crate) fn check_beginning(&self, target: &Target, beginning: &Beginning) -> Result<(), Reason> {
        let Beginning::Hello { server, encrypted } = beginning else {
            return if *beginning == Beginning::Broken { Err(Reason::TlsBroken) } else { Ok(()) };
        };
        match &target.host {
            Host::Name(_) if *encrypted => Err(Reason::TlsNameHidden),
            Host::Name(name) => same_name(name, server.as_ref()),
            Host::Address(_) => {
                let rules = self.rules();
                let hidden = server.is_none() || *encrypted;
                let denied = |name: &Name| {
                    let decision = rules.decide(&Target { host: Host::Name(name.clone()), ..target.clone() });
                    matches!(decision, Decision::Denied { reason: Reason::DeniedByRule, .. })
                };
                match server {
                    _ if hidden && rules.denies_names() => Err(Reason::TlsNameHidden),
                    Some(name) if denied(name) => Err(Reason::DeniedByRule),
                    _ => Ok(()),
                }
            }
        }
    }

    fn record_refusal(&self, target: &Target, refusal: &Refusal, since: Instant) {
        (self.recorder)(Record::refused(target.to_string(), refusal, since.elapsed()));
    }

    /// A connection has ended.
    pub(crate) fn record_end(&self, opened: &Opened, verdict: Verdict, sent: u64, received: u64) {
        (self.recorder)(Record {
            target: opened.target.to_string(),
            address: Some(opened.address),
            rule: Some(opened.rule.clone()),
            secret: opened.alarm.get().and_then(|stopped| stopped.secret.clone()),
            verdict,
            sent,
            received,
            duration: opened.since.elapsed(),
        });
    }
}

/// Whether this machine itself has this address now: whoever would send there from there is there.
fn is_own(address: IpAddr) -> bool {
    let unspecified: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let local = std::net::UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    local.is_ok_and(|local| local.ip() == address)
}

fn same_name(wanted: &Name, said: Option<&Name>) -> Result<(), Reason> {
    match said {
        Some(name) if name == wanted => Ok(()),
        Some(_) => Err(Reason::TlsOtherName),
        None => Err(Reason::TlsNameHidden),
    }
}

/// One after the other, exactly those that were checked.
async fn dial(addresses: &[IpAddr], port: u16) -> Result<(TcpStream, SocketAddr), Reason> {
    let all = async {
        let mut refused = Reason::Unreachable;
        for &address in addresses {
            let address = SocketAddr::new(address, port);
            match tokio::time::timeout(ONE, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok((stream, address)),
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => refused = Reason::Refused,
                Ok(Err(_)) | Err(_) => {}
            }
        }
        Err(refused)
    };
    tokio::time::timeout(ALL, all).await.unwrap_or(Err(Reason::Unreachable))
}
