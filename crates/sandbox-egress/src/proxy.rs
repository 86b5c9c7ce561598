//! For programs that know a proxy: HTTP (CONNECT and whole addresses) and SOCKS5, on one port.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http_body_util::{Either, Full};
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    header::{self, HeaderMap, HeaderName, HeaderValue},
    service::service_fn,
    upgrade::Upgraded,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    Engine, Opened, Reason, Refusal, Target, TargetError, own,
    places::Place,
    record::UNNAMED,
    secrets,
    socks::{self, Answer, SocksError},
    tunnel::{Carried, Errand},
};

/// Time to say what is wanted.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for a server to begin its answer; models think long.
const ANSWER: Duration = Duration::from_secs(900);
/// Room between a plain request and its connection.
const BETWEEN: usize = 64 << 10;
/// Read by whoever wants to know why, without reading words.
const WHY: HeaderName = HeaderName::from_static("x-sandbox-denied");

pub(crate) type Body = Either<Incoming, Full<Bytes>>;

impl Engine {
    /// Serves one connection of a program that takes us for its proxy.
    pub async fn serve_proxy(self: Arc<Self>, stream: TcpStream) {
        let Some(place) = self.place() else {
            self.record_refusal(UNNAMED, Reason::TooManyConnections);
            let _ = stream.set_zero_linger();
            return;
        };
        self.bound(&stream);
        let mut first = [0; 1];
        match tokio::time::timeout(PATIENCE, stream.peek(&mut first)).await {
            Ok(Ok(1)) if first[0] == socks::VERSION => self.serve_socks(stream, place).await,
            Ok(Ok(1)) => self.serve_http(stream, place).await,
            _ => {}
        }
    }

    pub(crate) async fn serve_http(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        place: Place,
    ) {
        let (closed, place) = (Arc::clone(&self), Arc::new(place));
        let respond = service_fn(move |request| {
            let engine = Arc::clone(&self);
            // What is connected may outlive the request: then the next one needs a place of its own.
            let place = match Arc::strong_count(&place) {
                1 => Some(Arc::clone(&place)),
                _ => engine.place().map(Arc::new),
            };
            async move { Ok::<_, Infallible>(engine.respond(request, place).await) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(BETWEEN)
            .preserve_header_case(true)
            .half_close(true);
        // A client that breaks off is its own concern.
        let serving = builder.serve_connection(TokioIo::new(stream), respond).with_upgrades();
        tokio::select! {
            _ = serving => {}
            () = closed.until_closed() => {}
        }
    }

    async fn respond(self: Arc<Self>, request: Request<Incoming>, place: Option<Arc<Place>>) -> Response<Body> {
        if own::is_meant(&request) {
            return match place {
                Some(place) => self.serve_own(request, place).await,
                None => page(StatusCode::SERVICE_UNAVAILABLE, Reason::TooManyConnections, "Close some connections.\n"),
            };
        }
        if secrets::is_meant(&request) {
            return match place {
                Some(place) => self.serve_service(request, place).await,
                None => page(StatusCode::SERVICE_UNAVAILABLE, Reason::TooManyConnections, "Close some connections.\n"),
            };
        }
        let target = match wanted(&request) {
            Ok(target) => target,
            Err(why) => {
                self.record_refusal(UNNAMED, Reason::NotARequest);
                return page(StatusCode::BAD_REQUEST, Reason::NotARequest, &why);
            }
        };
        let Some(place) = place else {
            self.record_refusal(&target, Reason::TooManyConnections);
            return self.denied(&target, &Refusal::new(Reason::TooManyConnections));
        };
        let opened = match self.open(target.clone()).await {
            Ok(opened) => opened,
            Err(refusal) => return self.denied(&target, &refusal),
        };
        if request.method() == Method::CONNECT {
            tokio::spawn(async move {
                let _place = place;
                if let Ok(upgraded) = hyper::upgrade::on(request).await {
                    self.carry_upgraded(upgraded, opened).await;
                }
            });
            return Response::new(Either::Right(Full::default()));
        }
        self.fetch(request, &target, opened, Errand::AsItComes, place).await
    }

    /// Sends one request to a target that was opened for it.
    pub(crate) async fn fetch(
        self: Arc<Self>,
        request: Request<Incoming>,
        target: &Target,
        opened: Opened,
        errand: Errand,
        place: Arc<Place>,
    ) -> Response<Body> {
        let (ours, theirs) = tokio::io::duplex(BETWEEN);
        let secure = matches!(errand, Errand::Service(number) if self.secrets().is_secure(number));
        let default_port = if secure { 443 } else { 80 };
        tokio::spawn(async move {
            let _place = place;
            self.carry_as(errand, theirs, opened).await
        });
        match tokio::time::timeout(ANSWER, forward(request, target, default_port, ours)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let what = format!("{target} did not answer as a web server does: {error}\n");
                page(StatusCode::BAD_GATEWAY, Reason::Unreachable, &what)
            }
            Err(_) => {
                page(StatusCode::GATEWAY_TIMEOUT, Reason::Unreachable, &format!("{target} did not answer in time\n"))
            }
        }
    }

    /// A tunnel of a client that spoke HTTP until now. What was broken off is reset, for which its socket is needed.
    async fn carry_upgraded(&self, upgraded: Upgraded, opened: Opened) {
        match upgraded.downcast::<TokioIo<TcpStream>>() {
            Ok(parts) => {
                let mut stream = parts.io.into_inner();
                if self.carry_socket(&mut stream, opened, parts.read_buf.into()).await != Carried::ToTheEnd {
                    let _ = stream.set_zero_linger();
                }
            }
            Err(upgraded) => drop(self.carry(TokioIo::new(upgraded), opened, Vec::new()).await),
        }
    }

    async fn serve_socks(self: Arc<Self>, mut stream: TcpStream, _place: Place) {
        let mut read = Vec::new();
        let asked = tokio::time::timeout(PATIENCE, ask(&mut stream, &mut read)).await;
        let answer = match asked {
            Ok(Ok(Ok(target))) => match self.open(target).await {
                Ok(opened) => {
                    if stream.write_all(&Answer::Connected.to_bytes()).await.is_ok()
                        && self.carry_socket(&mut stream, opened, read).await != Carried::ToTheEnd
                    {
                        let _ = stream.set_zero_linger();
                    }
                    return;
                }
                Err(refusal) => match refusal.reason {
                    Reason::Refused => Answer::Refused,
                    Reason::NoSuchName | Reason::NamesUnanswered | Reason::Unreachable => Answer::Unreachable,
                    _ => Answer::NotAllowed,
                },
            },
            Ok(Ok(Err(error))) => {
                self.record_refusal(UNNAMED, Reason::NotARequest);
                match error {
                    SocksError::Command => Answer::UnknownCommand,
                    SocksError::AddressKind => Answer::UnknownAddressKind,
                    _ => Answer::Failed,
                }
            }
            Ok(Err(_)) | Err(_) => return,
        };
        let _ = stream.write_all(&answer.to_bytes()).await;
    }
}

impl Engine {
    /// Answers somebody who was refused and takes us for the server.
    pub(crate) async fn explain(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        target: &Target,
        refusal: &Refusal,
    ) {
        let respond = service_fn(|_: Request<Incoming>| async { Ok::<_, Infallible>(self.denied(target, refusal)) });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false);
        let _ = tokio::time::timeout(PATIENCE, builder.serve_connection(TokioIo::new(stream), respond)).await;
    }

    pub(crate) fn denied(&self, target: &Target, refusal: &Refusal) -> Response<Body> {
        let Refusal { reason, rule, secret } = refusal;
        let by_rule = rule.as_ref().map(|rule| format!(" (rule `{rule}`)"));
        let by_secret = secret.as_ref().map(|secret| format!(" (secret `{secret}`)"));
        let (who, why) = (by_rule.or(by_secret).unwrap_or_default(), reason.in_words());
        let advice = self.advise(target, *reason, rule.as_deref(), secret.as_deref());
        let status = match reason {
            Reason::TooManyConnections => StatusCode::SERVICE_UNAVAILABLE,
            reason if reason.is_policy() => StatusCode::FORBIDDEN,
            _ => StatusCode::BAD_GATEWAY,
        };
        page(status, *reason, &format!("{target} was not reached: {why}{who}. {advice}.\n"))
    }
}

/// Hears what a SOCKS client wants. What it sent beyond that stays in `read`.
async fn ask(stream: &mut TcpStream, read: &mut Vec<u8>) -> std::io::Result<Result<Target, SocksError>> {
    let greeted = message(stream, read, socks::greeting).await?;
    stream.write_all(&socks::welcome(greeted)).await?;
    match greeted {
        Ok(()) => message(stream, read, socks::request).await,
        Err(error) => Ok(Err(error)),
    }
}

async fn message<T>(
    stream: &mut TcpStream,
    read: &mut Vec<u8>,
    parse: impl Fn(&[u8]) -> socks::Read<T>,
) -> std::io::Result<Result<T, SocksError>> {
    loop {
        match parse(read) {
            Ok(Some((found, length))) => {
                read.drain(..length);
                return Ok(Ok(found));
            }
            Ok(None) => {}
            Err(error) => return Ok(Err(error)),
        }
        if stream.read_buf(read).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The target of a request to a proxy; or what is wrong with it, for a person.
fn wanted(request: &Request<Incoming>) -> Result<Target, String> {
    let uri = request.uri();
    let in_words = |error: TargetError| format!("The address of this request cannot be used: {error}.\n");
    let authority = uri.authority().map(|authority| authority.as_str());
    match (*request.method() == Method::CONNECT, uri.scheme_str(), authority) {
        (true, _, Some(authority)) => Target::from_authority(authority, None).map_err(in_words),
        (false, Some("http"), Some(authority)) => Target::from_authority(authority, Some(80)).map_err(in_words),
        (false, Some(scheme), _) => {
            Err(format!("This proxy does not fetch {scheme} addresses itself; ask for a tunnel with CONNECT.\n"))
        }
        _ => Err("This is a proxy: ask for a tunnel with CONNECT, or for a whole address (http://…).\n".into()),
    }
}

async fn forward(
    mut request: Request<Incoming>,
    target: &Target,
    default_port: u16,
    stream: tokio::io::DuplexStream,
) -> hyper::Result<Response<Body>> {
    // To the server only its own part of the address is said, and who it is is what was checked.
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().unwrap_or(Uri::from_static("/"));
    strip(request.headers_mut());
    let host = if target.port == default_port { target.host.to_string() } else { target.to_string() };
    if let Ok(host) = HeaderValue::try_from(host) {
        request.headers_mut().insert(header::HOST, host);
    }
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(BETWEEN).preserve_header_case(true);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut response = sender.send_request(request).await?;
    strip(response.headers_mut());
    Ok(response.map(Either::Left))
}

/// What speaks of one connection only is not passed on (RFC 9110, 7.6.1).
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let always = [
        header::CONNECTION,
        header::PROXY_AUTHORIZATION,
        header::PROXY_AUTHENTICATE,
        header::TE,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    named.into_iter().chain(always).for_each(|name| drop(headers.remove(name)));
}

pub(crate) fn page<B>(status: StatusCode, reason: Reason, words: &str) -> Response<Either<B, Full<Bytes>>> {
    let mut response = Response::new(Either::Right(Full::new(Bytes::from(words.to_owned()))));
    *response.status_mut() = status;
    response.headers_mut().insert(WHY, HeaderValue::from_static(reason.code()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
