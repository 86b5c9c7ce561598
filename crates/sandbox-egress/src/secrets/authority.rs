//! The authority that programs inside trust, so that TLS can be opened for the hosts that secrets are for.
//!
//! Each sandbox has its own, and its key is nowhere but in this process' memory: what one sandbox trusts is of no use
//! against another, and nothing is left of it when the process has ended.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::NoServerSessionStorage,
};

use crate::Host;

/// The only language that is spoken once TLS was opened.
pub(super) const ALPN: &[u8] = b"http/1.1";
/// Hosts whose certificates are remembered; a secret for `*.example.com` could be asked for under any number of names.
const MOST: usize = 256;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Longer than any sandbox lives without its server being started anew.
const VALID: Duration = DAY.saturating_mul(10 * 365);

/// Signs certificates for one sandbox.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    /// One key for all hosts: it never leaves this process either.
    key: KeyPair,
    configs: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// None could be made.
    #[error("no certificate could be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// It cannot be used.
    #[error("TLS could not be prepared: {0}")]
    Tls(#[from] rustls::Error),
}

impl Authority {
    /// A new one. What is told apart by it is its name, so that two of them in one list do not stand for each other.
    pub(crate) fn new(distinction: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut about = dated(CertificateParams::default());
        about.distinguished_name.push(DnType::CommonName, format!("sandbox-mcp way out {distinction}"));
        about.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        about.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = about.self_signed(&key)?;
        Ok(Self {
            pem: certificate.pem(),
            certificate: certificate.der().clone(),
            issuer: Issuer::new(about, key),
            key: KeyPair::generate()?,
            configs: Mutex::default(),
        })
    }

    /// Its certificate, for the trust of programs inside.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// How we speak TLS as this host.
    pub(crate) fn config(&self, host: &Host) -> Result<Arc<ServerConfig>, AuthorityError> {
        let known = self.configs.lock().unwrap_or_else(PoisonError::into_inner).get(host).cloned();
        if let Some(config) = known {
            return Ok(config);
        }
        let config = Arc::new(self.make(host)?);
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        if configs.len() >= MOST {
            configs.clear();
        }
        configs.insert(host.clone(), Arc::clone(&config));
        Ok(config)
    }

    fn make(&self, host: &Host) -> Result<ServerConfig, AuthorityError> {
        let name = match host {
            Host::Name(name) => name.to_string(),
            Host::Address(address) => address.to_string(),
        };
        let mut about = dated(CertificateParams::new(vec![name])?);
        about.distinguished_name.push(DnType::CommonName, "opened by sandbox-mcp");
        about.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        about.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        about.use_authority_key_identifier_extension = true;
        let certificate = about.signed_by(&self.key, &self.issuer)?;
        let chain = vec![certificate.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::Pkcs8(self.key.serialize_der().into());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Nothing is remembered of clients: they could fill that memory.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

/// Valid from yesterday on: clocks differ.
fn dated(mut about: CertificateParams) -> CertificateParams {
    let now = SystemTime::now();
    about.not_before = (now - DAY).into();
    about.not_after = (now + VALID).into();
    about.distinguished_name = rcgen::DistinguishedName::new();
    about
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_made_once_and_only_so_many_are_kept() {
        let authority = Authority::new("x").expect("an authority");
        let host = |number: usize| format!("n{number}.example").parse::<Host>().expect("a host");
        let first = authority.config(&host(0)).expect("a certificate");
        assert!(Arc::ptr_eq(&first, &authority.config(&host(0)).expect("the same")));
        for number in 0..MOST + 5 {
            authority.config(&host(number)).expect("a certificate");
        }
        assert!(authority.configs.lock().expect("nobody panicked").len() <= MOST);
        assert!(authority.config(&"[2001:db8::1]".parse().expect("a host")).is_ok());
        assert!(authority.pem().starts_with("-----BEGIN CERTIFICATE-----") && !authority.pem().contains("PRIVATE"));
    }
}
