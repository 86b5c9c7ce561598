//! Secrets stay outside: a sandbox sees placeholders and loopback addresses, and the way out puts the real values in.
//!
//! A request to a host that a secret is for is read here, over plain HTTP or over TLS that was opened for it, and goes on with
//! the value in the place of the placeholder, or with a header that we set. TLS with all other hosts stays closed to us.
//! What comes back has the placeholder wherever the value stands plainly. Such hosts are asked for answers without
//! compression for that; a server that compresses all the same is not looked into, nor one that cuts, turns or encodes a
//! value before it sends it back: whoever a secret is for can always give it away. A placeholder on its way to anybody else
//! is stopped where it can be seen ([`find`]); elsewhere it is worth nothing.

mod account;
mod authority;
mod body;
mod budget;
mod error;
mod find;
mod follow;
mod hide;
mod loan;
mod opened;
mod passage;
mod put;
mod replace;
mod secret;
mod service;
mod spent;
mod trust;
mod vault;
mod written;

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use tokio::sync::Semaphore;

use self::{authority::Authority, find::Finder, secret::Held};
pub use self::{
    authority::AuthorityError,
    budget::Budget,
    error::SecretsError,
    find::FinderError,
    follow::{Follower, Leave, Leaving, NoLeave, Question},
    loan::Loan,
    secret::{Placed, PlainHttp, Secret, Usage, Value},
    service::{Scheme, Service, Upstream, UpstreamError},
    spent::{Basis, Spent},
    trust::{Trust, TrustError},
    vault::{Leak, OnLeak, OnSpent, Vault},
};
pub(crate) use self::{
    body::{Answer, Outgoing},
    loan::{Asked, Lent},
    passage::{Over, Passage, Stopped},
    service::{Serving, is_meant, is_own},
    trust::{HandshakeError, Verifier},
};
use crate::{Name, Reason, Refusal, Target};

/// Each takes some memory to be looked for.
const MOST: usize = 100;
/// Bodies that are held whole at the same time, so that something in them can be replaced.
const WHOLE_BODIES: usize = 16;

/// The secrets of one sandbox, ready for use. By default there are none, and nothing is looked at for their sake.
#[derive(Clone, Default)]
pub struct Secrets(Option<Arc<Kept>>);

/// Everything about the secrets of one sandbox.
pub(crate) struct Kept {
    held: Vec<Held>,
    services: Vec<Serving>,
    finder: Option<Finder>,
    authority: Option<Authority>,
    verifier: Verifier,
    whole_bodies: Arc<Semaphore>,
    on_leak: OnLeak,
    on_spent: OnSpent,
    budget: Budget,
    follower: Option<Arc<dyn Follower>>,
}

/// Why a connection was stopped for the sake of a secret, if it was.
pub(crate) type Alarm = Arc<OnceLock<Stopped>>;

impl Secrets {
    /// Checks everything, and makes placeholders and an authority for this sandbox.
    pub fn new(vault: Vault) -> Result<Self, SecretsError> {
        let Vault { secrets, placeholders, services, trust, on_leak, on_spent, budget, follower } = vault;
        if secrets.is_empty() && services.is_empty() {
            return Ok(Self::default());
        }
        if secrets.len() > MOST {
            return Err(SecretsError::TooMany);
        }
        let known = |secret: &Secret| placeholders.get(&secret.name).map(String::as_str);
        let hold = |secret: Secret| Held::new(secret.clone(), known(&secret));
        let held = secrets.into_iter().map(hold).collect::<Result<Vec<_>, _>>()?;
        let services =
            services.into_iter().map(|service| Serving::new(service, &held)).collect::<Result<Vec<_>, _>>()?;
        once_each(held.iter().map(|held| held.secret.name.as_str()))?;
        once_each(services.iter().map(|serving| serving.service.name.as_str()))?;
        let mark = |(number, held): (usize, &Held)| Some((number, held.mark.clone()?));
        let marks: Vec<_> = held.iter().enumerate().filter_map(mark).collect();
        let opens = held.iter().any(|held| !held.secret.hosts.is_empty());
        let authority = if opens { Some(Authority::new(&secret::random_mark()?[..8])?) } else { None };
        Ok(Self(Some(Arc::new(Kept {
            finder: Finder::new(&marks)?,
            held,
            services,
            authority,
            verifier: Verifier::new(trust)?,
            whole_bodies: Arc::new(Semaphore::new(WHOLE_BODIES)),
            on_leak,
            on_spent,
            budget,
            follower,
        }))))
    }

    /// What programs inside hold instead of values: name and placeholder of every secret that is used so.
    pub fn placeholders(&self) -> impl Iterator<Item = (&str, &str)> {
        let held = self.0.iter().flat_map(|kept| &kept.held).filter(|held| held.mark.is_some());
        held.map(|held| (held.secret.name.as_str(), held.placeholder.as_str()))
    }

    /// The certificate, in PEM form, that programs inside have to trust; none if TLS is never opened.
    pub fn authority(&self) -> Option<&str> {
        Some(self.0.as_ref()?.authority.as_ref()?.pem())
    }

    /// Names of the services, and where they are at the proxy's address inside.
    pub fn services(&self) -> impl Iterator<Item = (&str, String)> {
        let services = self.0.iter().flat_map(|kept| &kept.services);
        services.map(|serving| (serving.service.name.as_str(), serving.path()))
    }

    pub(crate) fn serving(&self, number: usize) -> Option<&Serving> {
        self.0.as_ref()?.services.get(number)
    }

    /// The service of this name.
    pub(crate) fn asked(&self, name: &str) -> Option<Asked> {
        let number = self.0.as_ref()?.services.iter().position(|serving| serving.service.name == name)?;
        Some(Asked { secrets: self.clone(), number })
    }

    fn is(&self, other: &Self) -> bool {
        matches!((&self.0, &other.0), (Some(one), Some(other)) if Arc::ptr_eq(one, other))
    }

    /// Whether TLS with this target is opened.
    pub(crate) fn opens(&self, target: &Target) -> bool {
        self.0.as_ref().is_some_and(|kept| kept.held.iter().any(|held| held.is_for(target)))
    }

    /// Why this name may not be said to anybody, if it may not: no host is called like a placeholder.
    pub(crate) fn leaving_in(&self, name: &Name, target: &dyn fmt::Display) -> Option<Refusal> {
        let kept = self.0.as_ref()?;
        let finder = kept.finder.as_ref()?;
        let name = name.as_str().as_bytes();
        let found = finder.look_once(name, Some).or_else(|| finder.look_once(&joined(name), Some));
        let stopped = kept.stop(found?, Reason::SecretLeaving, target);
        Some(Refusal { reason: stopped.reason, rule: None, secret: stopped.secret })
    }
}

impl Kept {
    /// A placeholder was found where it may not go.
    fn stop(&self, secret: usize, reason: Reason, target: &dyn fmt::Display) -> Stopped {
        let secret = self.held.get(secret).map(|held| held.secret.name.clone()).unwrap_or_default();
        if reason == Reason::SecretLeaving {
            (self.on_leak)(&Leak { secret: secret.clone(), target: target.to_string() });
        }
        Stopped { reason, secret: Some(secret), words: None }
    }
}

/// A name without what separates its parts: a long text is cut to fit into them.
fn joined(name: &[u8]) -> Vec<u8> {
    name.iter().copied().filter(|byte| !b".-".contains(byte)).collect()
}

fn once_each<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), SecretsError> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(SecretsError::Twice(pair[0].to_owned())),
        None => Ok(()),
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().flat_map(|kept| &kept.held).map(|held| &held.secret.name);
        f.write_str("Secrets ")?;
        f.debug_list().entries(names).finish()
    }
}
