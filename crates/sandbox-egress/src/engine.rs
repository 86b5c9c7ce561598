//! Where all ways out meet: a target goes in, and a connection to an address that was checked comes out, or a refusal.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{net::TcpStream, sync::watch};

use crate::{
    Adviser, Decision, Host, Limits, Name, Places, Reach, Reader, Reason, Refused, Resolver, Rules, Scope, StandIns,
    Target,
    address::{reach, translated},
    client_hello::Beginning,
    dial::dial,
    ledger::{Entry, Ledger},
    limits::Meter,
    own::{Own, OwnTools},
    places::{Place, Share},
    record::Record,
    secrets::{Alarm, Lent, Loan, Secrets, SecretsError, Vault},
    translator::{Others, Translators},
};

/// Room for each direction of a socket, where there are many.
const BOUNDED: usize = 128 << 10;

/// The way out of one sandbox.
pub struct Engine {
    rules: watch::Sender<Arc<Rules>>,
    resolver: Resolver,
    stand_ins: Mutex<StandIns>,
    share: Arc<Share>,
    dialled: Arc<Share>,
    pub(crate) meter: Meter,
    closed: watch::Sender<bool>,
    ledger: Arc<Ledger>,
    secrets: Secrets,
    lent: Lent,
    adviser: Adviser,
    own: Option<Own>,
}

/// What makes one sandbox's way out different from another's.
pub struct Setup {
    /// What it may reach.
    pub rules: Rules,
    /// Who knows the addresses of names.
    pub resolver: Resolver,
    /// How much of it.
    pub limits: Limits,
    /// Whom it shares the places for connections with; by default with all sandboxes of this process.
    pub places: Places,
    /// Told of whatever is connected or refused: of each connection once, of refusals that repeat together.
    pub recorder: Recorder,
    /// Told of every refusal at once, also of those that repeat. Must not wait.
    pub on_refusal: OnRefusal,
    /// What it may use and never see.
    pub secrets: Secrets,
    /// Who reads what is said about refusals.
    pub reader: Reader,
    /// What this program itself offers to programs inside, if anything.
    pub own: Option<OwnTools>,
}

impl Setup {
    /// With the usual limits, among the other sandboxes of this process, and without secrets.
    pub fn new(rules: Rules, resolver: Resolver, recorder: impl Fn(Record) + Send + Sync + 'static) -> Self {
        let (limits, places, secrets) = (Limits::default(), Places::default(), Secrets::default());
        let (recorder, on_refusal, reader) = (Box::new(recorder), Box::new(|_: &Record| {}), Reader::default());
        Self { rules, resolver, limits, places, recorder, on_refusal, secrets, reader, own: None }
    }
}

/// Whoever has to know of refusals while they happen.
pub type OnRefusal = Box<dyn Fn(&Record) + Send + Sync>;

/// Whoever writes down what happened.
pub type Recorder = Box<dyn Fn(Record) + Send + Sync>;

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
    pub(crate) entry: Entry,
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
        let Setup { rules, resolver, limits, places, recorder, on_refusal, secrets, reader, own } = setup;
        Arc::new(Self {
            rules: watch::Sender::new(Arc::new(rules)),
            resolver,
            stand_ins: Mutex::default(),
            share: places.share(limits.connections),
            dialled: places.dialled(),
            meter: Meter::new(&limits),
            closed: watch::Sender::new(false),
            ledger: Ledger::new(recorder, on_refusal),
            secrets,
            lent: Lent::default(),
            adviser: Adviser { reader, limits },
            own: own.map(Own::new),
        })
    }

    /// Ends every connection, and makes no more: the sandbox has ended.
    pub fn close(&self) {
        self.share.close();
        self.closed.send_replace(true);
        self.ledger.write_rest();
    }

    /// Connections that were made and have not ended, as far as they have come. When one ends it is recorded.
    pub fn open_connections(&self) -> Vec<Record> {
        self.ledger.open_connections()
    }

    /// What this program itself offers inside.
    pub(crate) fn own(&self) -> Option<&Own> {
        self.own.as_ref()
    }

    /// Returns when all is over.
    pub(crate) async fn until_closed(&self) {
        // It cannot be gone before us.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// A place for one connection of the sandbox, from when it is accepted to its end; nothing if it has too many,
    /// or all sandboxes together.
    pub(crate) fn place(&self) -> Option<Place> {
        self.share.take()
    }

    /// Small buffers for what a program does not take, if the sandbox has many connections already.
    pub(crate) fn bound(&self, socket: &TcpStream) {
        use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
        if self.share.is_crowded() {
            let _ = set_socket_recv_buffer_size(socket, BOUNDED);
            let _ = set_socket_send_buffer_size(socket, BOUNDED);
        }
    }

    /// Other rules from now on. What they do not allow any longer is ended.
    pub fn set_rules(&self, rules: Rules) {
        self.rules.send_replace(Arc::new(rules));
    }

    /// The rules as they are now.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.borrow().clone()
    }

    /// Returns when other rules no longer allow what was allowed before, with the reason.
    pub(crate) async fn until_denied(&self, target: &Target) -> Reason {
        let mut changes = self.rules.subscribe();
        loop {
            if let Decision::Denied { reason, .. } = changes.borrow_and_update().decide(target) {
                return reason;
            }
            // It cannot be gone before us.
            let _ = changes.changed().await;
        }
    }

    /// The secrets of this sandbox.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Lends the service of a vault, until the loan is dropped.
    pub fn lend(&self, vault: Vault) -> Result<Loan, SecretsError> {
        self.lent.lend(vault)
    }

    pub(crate) fn lent(&self) -> &Lent {
        &self.lent
    }

    /// What is meant by a target: the name, where its address stands for one.
    pub(crate) fn meant(&self, target: Target) -> Target {
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
            self.ledger.write(Record::refused(name.to_string(), &refusal, Duration::ZERO));
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
        let target = self.meant(target);
        let mut entry = Entry::new(&self.ledger, target.to_string());
        let tried = tokio::select! {
            tried = self.try_open(rules, &target) => tried,
            () = self.until_closed() => Err(Refusal::new(Reason::BrokenOff)),
        };
        match tried {
            Ok((stream, address, rule)) => {
                entry.opened(address, rule);
                Ok(Opened { stream, target, entry, alarm: Alarm::default() })
            }
            Err(refusal) => {
                entry.refused(&refusal);
                Err(refusal)
            }
        }
    }

    async fn try_open(&self, rules: &Rules, target: &Target) -> Result<(TcpStream, SocketAddr, String), Refusal> {
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
        if self.meter.is_used_up() {
            return Err(refuse(Reason::TransferUsedUp));
        }
        let dialling = self.dialled.wait().await;
        let addresses = self.admitted(&target.host, &scope).await.map_err(refuse)?;
        let (stream, address) = dial(&addresses, target.port).await.map_err(refuse)?;
        drop(dialling);
        self.bound(&stream);
        let _ = stream.set_nodelay(true);
        let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        Ok((stream, address, rule))
    }

    /// Addresses that may be dialled; or why there are none.
    async fn admitted(&self, host: &Host, scope: &Scope) -> Result<Vec<IpAddr>, Reason> {
        let found = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.resolver.addresses(name).await.ok_or(Reason::NamesUnanswered)?,
        };
        // Only what looks public can turn out to be something else.
        let translators = match found.iter().any(|address| address.is_ipv6() && reach(*address) == Reach::Public) {
            true => self.resolver.translators().await,
            false => Arc::new(Translators { others: Others::None, ..Translators::default() }),
        };
        let mut refused = Reason::NoSuchName;
        let mut admitted = Vec::new();
        for address in found {
            let becomes = behind(&translators, address);
            let own = [address].into_iter().chain(translated(address)).chain(becomes.iter().copied());
            // Loopback is this machine anyway, and it takes four calls to find out.
            let asked = own.filter(|&own| reach(own) != Reach::Loopback);
            let own: Vec<IpAddr> = asked.filter(|&own| is_own(own).unwrap_or(true)).collect();
            let behind = becomes.iter().try_for_each(|&address| scope.admits_behind_translator(address, &own));
            match scope.admits(address, &own).and(behind) {
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
        let rules = self.rules();
        let hidden = server.is_none() || *encrypted;
        match &target.host {
            Host::Name(_) if hidden && rules.ask_for_name(target) => Err(Reason::TlsNameHidden),
            Host::Name(name) => same_name(name, server.as_ref()),
            Host::Address(_) => {
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

    /// What to do about a refusal.
    pub(crate) fn advise(&self, target: &Target, reason: Reason, rule: Option<&str>, secret: Option<&str>) -> String {
        let target = target.to_string();
        self.adviser.advise(&Refused { reason, target: &target, rule, secret }, &self.rules())
    }

    /// Something was refused before it came to a wish to connect.
    pub(crate) fn record_refusal(&self, target: impl ToString, reason: Reason) {
        let refusal = Refusal::new(reason);
        self.ledger.write(Record::refused(target.to_string(), &refusal, Duration::ZERO));
    }
}

/// What an address becomes on its way.
fn behind(translators: &Translators, address: IpAddr) -> Vec<IpAddr> {
    match address {
        IpAddr::V6(address) => translators.behind(address).into_iter().map(IpAddr::V4).collect(),
        IpAddr::V4(_) => Vec::new(),
    }
}

/// Whether this machine itself has this address now: whoever would send there from there is there. An error if that cannot
/// be told.
fn is_own(address: IpAddr) -> std::io::Result<bool> {
    let unspecified: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = match std::net::UdpSocket::bind((unspecified, 0)) {
        // A machine that does not know such addresses has none.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => return Ok(false),
        bound => bound?,
    };
    // Without a way there, nobody here is meant.
    let local = socket.connect((address, 9)).and_then(|()| socket.local_addr());
    Ok(local.is_ok_and(|local| local.ip() == address))
}

fn same_name(wanted: &Name, said: Option<&Name>) -> Result<(), Reason> {
    if said.is_some_and(|name| name != wanted) { Err(Reason::TlsOtherName) } else { Ok(()) }
}
