//! Requests over HTTP, with TLS wherever the other side is not this machine. One connection each: a pull makes few, and
//! most of them are long.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    header,
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use url::Url;

use super::{
    CONNECT, Registries, SILENCE,
    onward::{Peer, Reach},
};
use crate::ImageError;

/// What is sent along.
pub type Body = Full<Bytes>;

/// Sends requests.
#[derive(Clone)]
pub struct Client {
    registries: Registries,
    tls: TlsConnector,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Client {
    /// Trusts whom this machine trusts.
    pub fn new(registries: &Registries) -> Result<Self, ImageError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| ImageError::NoSource(format!("TLS cannot be used: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { registries: registries.clone(), tls: TlsConnector::from(Arc::new(config)) })
    }

    /// Sends a request and gives the beginning of its answer.
    pub async fn send(
        &self,
        url: &Url,
        reach: Reach,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, ImageError> {
        let failed = |why: String| ImageError::Unreachable { registry: host_of(url), why };
        let host = url.host_str().ok_or_else(|| failed("the address has no host".into()))?;
        let port = url.port_or_known_default().ok_or_else(|| failed("the address has no port".into()))?;
        let secure = match url.scheme() {
            "https" => true,
            "http" if self.registries.is_insecure(host, port) => false,
            _ => return Err(failed(format!("{url} has no TLS, and the host is not listed in `insecure_registries`"))),
        };
        let stream = connect(host, port, reach).await.map_err(failed)?;
        let peer = Peer::at(&stream);
        let stream: Box<dyn Stream> = match secure {
            true => Box::new(self.secure(host, stream).await.map_err(failed)?),
            false => Box::new(stream),
        };
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        *request.uri_mut() = path.parse().map_err(|error| failed(format!("{path} cannot be asked for: {error}")))?;
        let headers = request.headers_mut();
        let value = |text: &str| header::HeaderValue::from_str(text).map_err(|error| failed(error.to_string()));
        let shown = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        headers.insert(header::HOST, value(&shown)?);
        headers.insert(header::USER_AGENT, value(concat!("sandbox-mcp/", env!("CARGO_PKG_VERSION")))?);
        let answered = within(SILENCE, async move {
            let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
                .max_buf_size(1 << 20)
                .handshake(TokioIo::new(stream))
                .await?;
            tokio::spawn(connection);
            sender.send_request(request).await
        });
        let mut answered = answered.await.map_err(failed)?;
        answered.extensions_mut().insert(peer);
        Ok(answered)
    }

    async fn secure(&self, host: &str, stream: TcpStream) -> Result<impl Stream + use<>, String> {
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(|error| error.to_string())?;
        within(CONNECT, self.tls.connect(name, stream)).await.map_err(|error| format!("TLS: {error}"))
    }

    /// The whole answer, which may not be longer than this.
    pub async fn read(&self, url: &Url, response: Response<Incoming>, most: u64) -> Result<Vec<u8>, ImageError> {
        let mut body = response.into_body();
        let mut content = Vec::new();
        while let Some(more) = next(&mut body).await {
            let more = more.map_err(|why| ImageError::Unreachable { registry: host_of(url), why })?;
            if content.len() as u64 + more.len() as u64 > most {
                let what = format!("{} answers with more than {most} bytes where it should be short", host_of(url));
                return Err(ImageError::malformed(what));
            }
            content.extend_from_slice(&more);
        }
        Ok(content)
    }
}

/// More of an answer; nothing at its end.
pub async fn next(body: &mut Incoming) -> Option<Result<Bytes, String>> {
    loop {
        let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
            Ok(None) => return None,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Some(Err(words(&error))),
            Err(_) => return Some(Err(format!("nothing came for {SILENCE:?}"))),
        };
        if let Ok(data) = frame.into_data() {
            return Some(Ok(data));
        }
    }
}

/// Exactly to an address that was looked at.
async fn connect(host: &str, port: u16, reach: Reach) -> Result<TcpStream, String> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> = within(CONNECT, tokio::net::lookup_host((bare, port))).await?.collect();
    let admitted = reach.admitted(found);
    if admitted.is_empty() {
        return Err("a registry sends us there, and it leads to this machine or a private network".into());
    }
    let stream = within(CONNECT, TcpStream::connect(&admitted[..])).await?;
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

async fn within<T, E: std::error::Error>(
    patience: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match tokio::time::timeout(patience, work).await {
        Ok(done) => done.map_err(|error| words(&error)),
        Err(_) => Err(format!("no answer within {patience:?}")),
    }
}

/// An error with what is behind it.
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut behind = error.source();
    while let Some(cause) = behind {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        behind = cause.source();
    }
    text
}

/// Whom an address is of.
pub fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}
