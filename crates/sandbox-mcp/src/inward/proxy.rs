//! One connection of a client: its requests are checked, cleaned and said again inside, one after the other.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http_body_util::Either;
use hyper::{
    Method, Request, Response, StatusCode, Uri, Version,
    body::Incoming,
    client::conn::http1::{Builder as Asking, SendRequest},
    header::{ACCEPT, HOST, HeaderValue},
    server::conn::http1::Builder as Answering,
    service::service_fn,
    upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpStream, task::JoinSet};

use super::{
    Unreachable, headers,
    listener::Preview,
    page::{self, Body, Form},
};

/// How long a client may take to say what it wants, also after its last answer: strangers can connect too.
const HEAD: Duration = Duration::from_secs(15);
/// The longest head of a request or an answer.
const LONGEST_HEAD: usize = 64 << 10;
/// How long the connection inside is waited for after an answer, before another one is made.
const REUSE: Duration = Duration::from_secs(1);

/// A connection, and what leads on from it.
struct Exchange {
    preview: Arc<Preview>,
    from: IpAddr,
    authority: HeaderValue,
    /// The connection inside, used again while both sides keep it.
    inside: tokio::sync::Mutex<Option<SendRequest<Incoming>>>,
    /// What moves the bytes of connections inside; ends with the exchange.
    drivers: Mutex<JoinSet<()>>,
    /// Both sides of a connection that speaks WebSocket from now on.
    changed: Mutex<Option<[OnUpgrade; 2]>>,
}

/// Serves a connection to its end.
pub(super) async fn serve(stream: TcpStream, from: IpAddr, preview: Arc<Preview>) {
    let _ = stream.set_nodelay(true);
    let Ok(authority) = HeaderValue::from_str(&preview.name.authority(preview.outside)) else { return };
    let exchange = Exchange {
        preview,
        from,
        authority,
        inside: tokio::sync::Mutex::default(),
        drivers: Mutex::default(),
        changed: Mutex::default(),
    };
    let respond = |request| async { Ok::<_, Infallible>(exchange.respond(request).await) };
    let mut answering = Answering::new();
    answering.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(LONGEST_HEAD);
    answering.preserve_header_case(true).auto_date_header(false);
    let served = answering.serve_connection(TokioIo::new(stream), service_fn(respond)).with_upgrades().await;
    let changed = exchange.changed.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let (Ok(()), Some([client, inside])) = (served, changed) {
        carry(client, inside).await;
    }
}

/// Carries bytes both ways until both directions have ended.
async fn carry(client: OnUpgrade, inside: OnUpgrade) {
    let (Ok(client), Ok(inside)) = tokio::join!(client, inside) else { return };
    let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(inside)).await;
}

impl Exchange {
    async fn respond(&self, mut request: Request<Incoming>) -> Response<Body> {
        if !self.names_this(&request) {
            return page::misdirected();
        }
        if request.method() == Method::CONNECT {
            return page::no_tunnel();
        }
        let form = form(&request);
        let asked = headers::becomes_websocket(request.headers()).then(|| hyper::upgrade::on(&mut request));
        headers::clean_request(request.headers_mut(), &self.authority, self.from);
        *request.version_mut() = Version::HTTP_11;
        *request.uri_mut() = path_of(request.uri());
        match self.ask(request).await {
            Ok(answer) => self.pass_on(answer, asked),
            Err(Unreachable::NobodyListens) => page::nobody_listens(self.preview.inside.port(), form),
            Err(Unreachable::Failed(words)) => page::failed(&words),
        }
    }

    /// Whether the request is for this preview and no other, in all places where it says for whom.
    fn names_this(&self, request: &Request<Incoming>) -> bool {
        let is_named = |told: &[u8]| self.preview.name.is_named(self.preview.outside, told);
        let mut hosts = request.headers().get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        is_named(host.as_bytes()) && request.uri().authority().is_none_or(|told| is_named(told.as_str().as_bytes()))
    }

    fn pass_on(&self, mut answer: Response<Incoming>, asked: Option<OnUpgrade>) -> Response<Body> {
        self.preview.inside.used();
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(client), true) = (asked, headers::becomes_websocket(answer.headers())) else {
                return page::failed("it changed to a protocol that nobody asked for");
            };
            let inside = hyper::upgrade::on(&mut answer);
            *self.changed.lock().unwrap_or_else(PoisonError::into_inner) = Some([client, inside]);
        }
        headers::clean_response(answer.headers_mut());
        *answer.version_mut() = Version::HTTP_11;
        answer.map(Either::Left)
    }

    /// Says a request inside, on the connection of the last one if it still stands.
    async fn ask(&self, request: Request<Incoming>) -> Result<Response<Incoming>, Unreachable> {
        let mut kept = self.inside.lock().await;
        let mut request = request;
        if let Some(mut sender) = kept.take()
            && matches!(tokio::time::timeout(REUSE, sender.ready()).await, Ok(Ok(())))
        {
            match sender.try_send_request(request).await {
                Ok(answer) => {
                    *kept = Some(sender);
                    return Ok(answer);
                }
                // It was closed meanwhile. What comes back was not sent.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(no_http(&error.into_error())),
                },
            }
        }
        let mut sender = self.connect().await?;
        let answer = sender.send_request(request).await.map_err(|error| no_http(&error))?;
        *kept = Some(sender);
        Ok(answer)
    }

    async fn connect(&self) -> Result<SendRequest<Incoming>, Unreachable> {
        let stream = self.preview.inside.dial().await?;
        let mut asking = Asking::new();
        asking.preserve_header_case(true).max_buf_size(LONGEST_HEAD);
        let (sender, connection) = asking.handshake(TokioIo::new(stream)).await.map_err(|error| no_http(&error))?;
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        while drivers.try_join_next().is_some() {}
        drivers.spawn(async move { drop(connection.with_upgrades().await) });
        Ok(sender)
    }
}

/// What a program is asked for; where is ours to know.
fn path_of(uri: &Uri) -> Uri {
    uri.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()))
}

fn form(request: &Request<Incoming>) -> Form {
    let accept = request.headers().get(ACCEPT).map(HeaderValue::as_bytes).unwrap_or_default();
    let html = accept.windows(9).any(|part| part.eq_ignore_ascii_case(b"text/html"));
    if html { Form::Html } else { Form::Text }
}

fn no_http(error: &hyper::Error) -> Unreachable {
    let words = match error {
        error if error.is_parse() => "what answers there does not speak HTTP",
        error if error.is_incomplete_message() || error.is_closed() || error.is_canceled() => {
            "the program closed the connection before it had answered"
        }
        _ => "the connection broke before the answer was there",
    };
    Unreachable::Failed(words.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::inward::{Inside, Name};
    use sandbox_core::{Duplex, SessionId, UserId};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    /// Answers every request with the same bytes, whatever they are, and closes.
    struct Hostile(Vec<u8>);

    #[async_trait::async_trait]
    impl Inside for Hostile {
        fn port(&self) -> u16 {
            80
        }

        async fn dial(&self) -> Result<Box<dyn Duplex>, Unreachable> {
            let (ours, mut theirs) = tokio::io::duplex(1 << 20);
            let bytes = self.0.clone();
            tokio::spawn(async move {
                let _ = theirs.read(&mut [0; 4096]).await;
                let _ = theirs.write_all(&bytes).await;
            });
            Ok(Box::new(ours))
        }

        fn used(&self) {}
    }

    /// What a client gets from a sandbox that answers so, for this many requests on one connection.
    async fn told(bytes: &[u8], requests: usize) -> String {
        let session = SessionId::random(&UserId::local()).unwrap();
        let name = Name::random(&session).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let outside = listener.local_addr().unwrap().port();
        let preview = Arc::new(Preview { name, outside, inside: Arc::new(Hostile(bytes.to_vec())) });
        let mut client = TcpStream::connect(("127.0.0.1", outside)).await.unwrap();
        let (stream, from) = listener.accept().await.unwrap();
        let authority = preview.name.authority(outside);
        tokio::spawn(serve(stream, from.ip(), preview));
        for request in 1..=requests {
            let last = if request == requests { "Connection: close\r\n" } else { "" };
            let asked = format!("GET / HTTP/1.1\r\nHost: {authority}\r\n{last}\r\n");
            client.write_all(asked.as_bytes()).await.unwrap();
        }
        let mut told = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(10), client.read_to_end(&mut told)).await;
        let _ = read.expect("it ends");
        String::from_utf8_lossy(&told).into_owned()
    }

    #[tokio::test]
    async fn nonsense_from_inside_becomes_an_answer_in_words() {
        let endless = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 1 << 20]].concat();
        let nonsense: [&[u8]; 7] = [
            b"",
            b"SSH-2.0-OpenSSH\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Le",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nmine now",
            b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
            &endless,
        ];
        for bytes in nonsense {
            let told = told(bytes, 1).await;
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]);
            assert!(told.starts_with("HTTP/1.1 502") && told.contains("gave no answer"), "{shown:?}: {told:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_inside_is_made_anew() {
        let told = told(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 3).await;
        assert_eq!(told.matches("HTTP/1.1 200 OK").count(), 3, "{told}");
    }

    #[tokio::test]
    async fn content_that_breaks_off_is_not_taken_for_whole() {
        let told = told(b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\nhalf", 2).await;
        assert!(told.matches("HTTP/1.1").count() == 1 && told.ends_with("half"), "{told}");
    }
}
