//! Services that a sandbox has for a while only: lent for a task, and gone with it.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Scheme, Secrets, SecretsError, Serving, Vault, secret};

/// What is lent now.
#[derive(Default)]
pub(crate) struct Lent(Arc<Mutex<Vec<Secrets>>>);

/// A service that is lent until this is dropped. Requests that began before are not ended; whoever follows them can
/// refuse further ones.
#[must_use]
pub struct Loan {
    lent: Arc<Mutex<Vec<Secrets>>>,
    secrets: Secrets,
    path: String,
}

/// A service that somebody asks, and the secrets that it belongs to.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) secrets: Secrets,
    pub(crate) number: usize,
}

impl Lent {
    /// Lends the only service of a vault, under a name that nobody else has.
    pub(crate) fn lend(&self, mut vault: Vault) -> Result<Loan, SecretsError> {
        for service in &mut vault.services {
            service.name = format!("{}-{}", service.name, &secret::random_mark()?[..12]);
        }
        let secrets = Secrets::new(vault)?;
        let path = secrets.services().next().map(|(_, path)| path).unwrap_or_default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(secrets.clone());
        Ok(Loan { lent: Arc::clone(&self.0), secrets, path })
    }

    pub(crate) fn called(&self, name: &str) -> Option<Asked> {
        let lent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lent.iter().find_map(|secrets| secrets.asked(name))
    }
}

impl Loan {
    /// Where the service is, at the proxy's address inside.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !other.is(&self.secrets));
    }
}

impl Asked {
    pub(crate) fn serving(&self) -> Option<&Serving> {
        self.secrets.serving(self.number)
    }

    /// Whether it is spoken to over TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.serving().is_some_and(|serving| serving.service.upstream.scheme == Scheme::Https)
    }

    /// Tells whoever follows that nobody could be asked.
    pub(crate) fn unreached(&self, why: &str) {
        if let Some(follower) = self.secrets.0.as_ref().and_then(|kept| kept.follower.as_ref()) {
            follower.unreached(why);
        }
    }
}
