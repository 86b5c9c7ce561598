//! A connection of the host's own to a service, with its secret: what works outside a sandbox asks models through it.
//!
//! The secret's value goes into one header here and nowhere else: no request, answer or error that leaves this file holds it.

use std::{
    fmt,
    io::ErrorKind,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1::{self, SendRequest},
    header::{self, HeaderName, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::{
    Host, Trust, TrustError, Upstream, Value,
    secrets::{HandshakeError, Scheme, Verifier},
};

/// Time for a connection to come about, for each address of the service.
const CONNECTING: Duration = Duration::from_secs(10);
/// What is shown where the value stood.
const HIDDEN: &str = "[hidden]";

/// One service, reached from the host's side.
pub struct Outward {
    upstream: Upstream,
    credential: Option<(HeaderName, HeaderValue, Value)>,
    verifier: Option<Verifier>,
    /// A connection that is not in use.
    kept: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// A secret and the header that carries it.
pub struct Credential {
    /// What is never shown.
    pub value: Value,
    /// Such as `x-api-key`.
    pub header: &'static str,
    /// What stands before the value, such as `Bearer `.
    pub before: &'static str,
}

/// Why a service was not reached.
#[derive(Debug, thiserror::Error)]
pub enum OutwardError {
    /// TLS cannot be used at all.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The value cannot be sent.
    #[error("the key holds characters that no request can carry: is it whole, and nothing else in it?")]
    Key,
    /// Nobody has this name, or nobody answers there.
    #[error("{target} cannot be reached: {why}")]
    Unreachable {
        /// Who.
        target: String,
        /// Why not.
        why: String,
    },
    /// The machine is there, and nobody listens at that port.
    #[error("{target} cannot be reached: nothing listens there")]
    Absent {
        /// Who.
        target: String,
    },
    /// It is not who it should be.
    #[error("{target} cannot be trusted: {why}")]
    Untrusted {
        /// Who.
        target: String,
        /// Why not.
        why: String,
    },
    /// The connection broke before an answer came.
    #[error("{target} broke off: {why}")]
    Broken {
        /// Who.
        target: String,
        /// How.
        why: String,
    },
}

impl Outward {
    /// Nothing is connected yet. Whom to trust is asked only where TLS is spoken.
    pub fn new(
        upstream: Upstream,
        credential: Option<Credential>,
        trust: impl FnOnce() -> Trust,
    ) -> Result<Self, OutwardError> {
        let verifier = match upstream.scheme {
            Scheme::Https => Some(Verifier::new(trust())?),
            Scheme::Http => None,
        };
        let header = |Credential { value, header, before }: Credential| {
            let mut carried =
                HeaderValue::from_str(&format!("{before}{}", value.as_str())).map_err(|_| OutwardError::Key)?;
            carried.set_sensitive(true);
            Ok::<_, OutwardError>((HeaderName::from_static(header), carried, value))
        };
        let credential = credential.map(header).transpose()?;
        Ok(Self { upstream, credential, verifier, kept: Mutex::default() })
    }

    /// Who is asked.
    pub fn target(&self) -> String {
        self.upstream.target.to_string()
    }

    /// Sends JSON and gives back the answer as soon as it begins.
    pub async fn post(
        &self,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, OutwardError> {
        let body = Bytes::from(body);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut sender) = kept.filter(|sender| !sender.is_closed())
            && sender.ready().await.is_ok()
            && let Ok(answer) = sender.send_request(self.request(path, headers, body.clone())?).await
        {
            self.keep(sender);
            return Ok(answer);
        }
        // The connection that was kept had ended meanwhile, or there was none.
        let mut sender = self.connect().await?;
        let answer = sender.send_request(self.request(path, headers, body)?).await;
        let answer = answer.map_err(|error| self.broken(&error))?;
        self.keep(sender);
        Ok(answer)
    }

    /// Asks for what is at a path, and gives back the answer as soon as it begins. Always over a connection of its own.
    pub async fn get(&self, path: &str, headers: &[(&'static str, &str)]) -> Result<Response<Incoming>, OutwardError> {
        let mut sender = self.connect().await?;
        let mut request = self.request(path, headers, Bytes::new())?;
        *request.method_mut() = Method::GET;
        request.headers_mut().remove(header::CONTENT_TYPE);
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        sender.send_request(request).await.map_err(|error| self.broken(&error))
    }

    /// Text without the value, should anybody have put it there.
    pub fn scrubbed(&self, text: &str) -> String {
        match &self.credential {
            Some((_, _, value)) if !value.as_str().is_empty() => text.replace(value.as_str(), HIDDEN),
            _ => text.to_owned(),
        }
    }

    fn keep(&self, sender: SendRequest<Full<Bytes>>) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }

    fn request(
        &self,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, OutwardError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", self.upstream.path))
            .header(header::HOST, self.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "text/event-stream, application/json")
            .header(header::USER_AGENT, concat!("sandbox-mcp/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some((name, value, _)) = &self.credential {
            request = request.header(name, value);
        }
        let unreachable = |why: hyper::http::Error| self.unreachable(&why);
        request.body(Full::new(body)).map_err(unreachable)
    }

    fn authority(&self) -> String {
        let target = &self.upstream.target;
        let usual = match self.upstream.scheme {
            Scheme::Https => 443,
            Scheme::Http => 80,
        };
        match (&target.host, target.port == usual) {
            (Host::Name(name), true) => name.to_string(),
            _ => target.to_string(),
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, OutwardError> {
        let stream = self.dial().await?;
        match &self.verifier {
            None => self.begin(stream).await,
            Some(verifier) => match verifier.connect(stream, &self.upstream.target.host).await {
                Ok(stream) => self.begin(stream).await,
                Err(error @ (HandshakeError::Slow | HandshakeError::Name)) => Err(self.unreachable(&error)),
                Err(error) => Err(OutwardError::Untrusted { target: self.target(), why: error.to_string() }),
            },
        }
    }

    async fn dial(&self) -> Result<TcpStream, OutwardError> {
        let target = &self.upstream.target;
        let found = match &target.host {
            Host::Address(address) => vec![(*address, target.port).into()],
            Host::Name(name) => {
                let looked_up = tokio::net::lookup_host((name.to_string(), target.port)).await;
                looked_up.map_err(|error| self.unreachable(&error))?.collect::<Vec<_>>()
            }
        };
        let (mut last, mut absent) = ("its name leads nowhere".to_owned(), !found.is_empty());
        for address in found {
            match tokio::time::timeout(CONNECTING, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {}
                Ok(Err(error)) => (last, absent) = (error.to_string(), false),
                Err(_) => (last, absent) = (format!("no answer within {} s", CONNECTING.as_secs()), false),
            }
        }
        Err(if absent { OutwardError::Absent { target: self.target() } } else { self.unreachable(&last) })
    }

    async fn begin<S>(&self, stream: S) -> Result<SendRequest<Full<Bytes>>, OutwardError>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let begun = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = begun.map_err(|error| self.broken(&error))?;
        // It ends when the sender and the last answer are dropped.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn unreachable(&self, why: &impl fmt::Display) -> OutwardError {
        OutwardError::Unreachable { target: self.target(), why: why.to_string() }
    }

    fn broken(&self, why: &hyper::Error) -> OutwardError {
        OutwardError::Broken { target: self.target(), why: why.to_string() }
    }
}

impl fmt::Debug for Outward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outward({})", self.upstream.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_in_no_text_that_leaves() {
        let credential = Credential { value: Value::new("sk-very-secret"), header: "x-api-key", before: "" };
        let upstream = "http://127.0.0.1:9/v1".parse().expect("an address");
        let outward = Outward::new(upstream, Some(credential), Trust::nobody).expect("a client");
        assert_eq!(outward.scrubbed("your key sk-very-secret is wrong"), "your key [hidden] is wrong");
        let request = outward.request("/messages", &[], Bytes::new()).expect("a request");
        assert_eq!(
            (request.uri().path(), &request.headers()["host"]),
            ("/v1/messages", &"127.0.0.1:9".parse().expect("a value"))
        );
        assert!(!format!("{outward:?} {request:?}").contains("very"));
    }
}
