//! TLS that is opened: we are the server to the program inside, and a client to the real one.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use hyper::{StatusCode, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use super::{Asked, Over, Passage, service::Scheme, trust::HandshakeError};
use crate::{
    Engine, Opened, Reason, Target,
    proxy::{self, Body},
    tunnel::Carried,
};

/// What is read of a request that is refused in any case.
const LARGEST_HEAD: usize = 64 << 10;
/// Time for a program to begin TLS with us.
const HANDSHAKE: Duration = Duration::from_secs(15);

impl Engine {
    /// Carries requests of a program that has begun TLS with a host that a secret is for.
    pub(crate) async fn carry_opened(
        &self,
        client: impl AsyncRead + AsyncWrite + Unpin + Send,
        opened: &mut Opened,
        counts: [&AtomicU64; 2],
    ) -> Carried {
        let Some(kept) = &self.secrets().0 else { return Carried::BrokenOff };
        let host = &opened.target.host;
        let Some(Ok(config)) = kept.authority.as_ref().map(|authority| authority.config(host)) else {
            return Carried::BrokenOff;
        };
        let accepting = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(client));
        let (client, server) = tokio::join!(accepting, kept.verifier.connect(&mut opened.stream, host));
        // A program that does not trust us, or does not speak HTTP/1.1.
        let Ok(Ok(client)) = client else { return Carried::BrokenOff };
        match server {
            Ok(server) => {
                let passage = Passage::new(self.secrets(), &opened.target, Over::Tls, &opened.alarm, None);
                self.carry_http(client, server, &passage, counts).await
            }
            Err(error) => refuse(client, &opened.target, &error).await,
        }
    }

    /// Carries requests to a service.
    pub(crate) async fn carry_service(
        &self,
        client: impl AsyncRead + AsyncWrite + Unpin + Send,
        opened: &mut Opened,
        asked: &Asked,
        counts: [&AtomicU64; 2],
    ) -> Carried {
        let (Some(kept), Some(serving)) = (&asked.secrets.0, asked.serving()) else { return Carried::BrokenOff };
        let passage = |over| Passage::new(&asked.secrets, &opened.target, over, &opened.alarm, Some(asked.number));
        // Of a service that is lent only the loan's own secret is known. A sandbox's placeholders are in its variables, so an
        // agent may tell its model of them, to which they are worth nothing.
        match serving.service.upstream.scheme {
            Scheme::Http => {
                let passage = passage(Over::Plain);
                self.carry_http(client, &mut opened.stream, &passage, counts).await
            }
            Scheme::Https => {
                let passage = passage(Over::Tls);
                match kept.verifier.connect(&mut opened.stream, &opened.target.host).await {
                    Ok(server) => self.carry_http(client, server, &passage, counts).await,
                    Err(error) => {
                        asked.unreached(&error.to_string());
                        refuse(client, &opened.target, &error).await
                    }
                }
            }
        }
    }
}

/// Says to whoever asks that the far end is not who it should be.
async fn refuse(
    client: impl AsyncRead + AsyncWrite + Unpin + Send,
    target: &Target,
    error: &HandshakeError,
) -> Carried {
    let reason = Reason::TlsUntrusted;
    let words: Arc<str> = format!("{target} was not asked: {}: {error}.\n", reason.in_words()).into();
    let respond = service_fn(|_| {
        let page: hyper::Response<Body> = proxy::page(StatusCode::BAD_GATEWAY, reason, &words);
        async { Ok::<_, std::convert::Infallible>(page) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).max_buf_size(LARGEST_HEAD).half_close(true);
    let _ = builder.serve_connection(TokioIo::new(client), respond).await;
    Carried::Denied(reason)
}
