//! Whom we believe that it is who it says: the far end of TLS that was opened, before any secret is sent there.

use std::{fmt, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::authority::ALPN;
use crate::Host;

/// Time for the far end to prove who it is.
const HANDSHAKE: Duration = Duration::from_secs(15);

/// The authorities that certificates of servers are verified with. Reading them takes a while; clones share them.
#[derive(Clone)]
pub struct Trust(Arc<RootCertStore>);

/// Why nobody can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// No certificates in that.
    #[error("these are no certificates in PEM form")]
    Certificates,
    /// TLS does not work.
    #[error("TLS could not be prepared: {0}")]
    Tls(#[from] rustls::Error),
}

/// Why the far end is not spoken with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("it did not begin TLS in time")]
    Slow,
    #[error("it has no name that a certificate could be for")]
    Name,
    #[error("{}", in_words(.0))]
    Tls(std::io::Error),
}

/// What went wrong with TLS, for somebody who does not know the library.
fn in_words(error: &std::io::Error) -> String {
    use rustls::{CertificateError as Certificate, Error as Tls};
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Tls>());
    let words = match tls {
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => "it broke off in the middle of the handshake",
        None => return error.to_string(),
        Some(Tls::InvalidCertificate(certificate)) => match certificate {
            Certificate::Expired | Certificate::ExpiredContext { .. } => "its certificate has expired",
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => "its certificate is not valid yet",
            Certificate::Revoked => "its certificate was revoked",
            Certificate::UnknownIssuer => "its certificate is from an authority that this machine does not trust",
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
                "its certificate is for another name"
            }
            // What a library adds has no other form than this.
            other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
                "its certificate is that of an authority, not of a server: make one for the server (without CA:TRUE)"
            }
            _ => "its certificate cannot be verified",
        },
        Some(Tls::InvalidMessage(_)) => "what it sent is no TLS; does it speak plain HTTP on this port?",
        Some(Tls::AlertReceived(_)) => "it refused the handshake",
        Some(Tls::PeerIncompatible(_)) => "it speaks no TLS that is new enough (1.2 or 1.3)",
        Some(_) => "the handshake failed",
    };
    words.to_owned()
}

impl Trust {
    /// Those that this machine trusts; where it has none, those that browsers trust.
    pub fn of_this_machine() -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        Self(Arc::new(roots))
    }

    /// Nobody.
    pub fn nobody() -> Self {
        Self(Arc::new(RootCertStore::empty()))
    }

    /// These authorities too.
    pub fn and(self, pem: &str) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::clone(&self.0);
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|_| TrustError::Certificates)?;
            roots.add(certificate).map_err(|_| TrustError::Certificates)?;
            count += 1;
        }
        if count == 0 { Err(TrustError::Certificates) } else { Ok(Self(Arc::new(roots))) }
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({} authorities)", self.0.len())
    }
}

/// Begins TLS with far ends.
pub(crate) struct Verifier(TlsConnector);

impl Verifier {
    pub(crate) fn new(trust: Trust) -> Result<Self, TrustError> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(trust.0)
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::in_memory_sessions(64);
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Only if the far end proves that it is this host.
    pub(crate) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        host: &Host,
    ) -> Result<TlsStream<S>, HandshakeError> {
        let name = match host {
            Host::Name(name) => ServerName::try_from(name.to_string()).map_err(|_| HandshakeError::Name)?,
            Host::Address(address) => ServerName::IpAddress((*address).into()),
        };
        let connecting = self.0.connect(name, stream);
        match tokio::time::timeout(HANDSHAKE, connecting).await {
            Ok(connected) => connected.map_err(HandshakeError::Tls),
            Err(_) => Err(HandshakeError::Slow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_certificate_is_said_in_words() {
        use rustls::{CertificateError, Error, OtherError};
        let said = |error: Error| HandshakeError::Tls(std::io::Error::other(error)).to_string();
        assert!(said(Error::InvalidCertificate(CertificateError::UnknownIssuer)).contains("does not trust"));
        let other = OtherError(Arc::new(rustls::Error::General("CaUsedAsEndEntity".into())));
        let told = said(Error::InvalidCertificate(CertificateError::Other(other)));
        assert!(told.contains("that of an authority") && !told.contains("OtherError"), "{told}");
    }
}
