//! The far end: a web server that writes down what arrived and answers as its path says; and the sandbox before it.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use http_body_util::BodyExt;
use hyper::{
    Request, Response,
    body::{Body, Bytes, Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use sandbox_egress::{Leak, PlainHttp, Secret, Secrets, Service, Spent, Trust, Usage, Value, Vault};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

use crate::support::{HERE, World, allow};

/// What nobody inside may ever see.
pub const VALUE: &str = "the-real-value/1234567890+abc=";

/// A server, over TLS and without.
pub struct Far {
    pub secure: u16,
    pub plain: u16,
    /// Whom one has to trust to believe it.
    pub root: String,
    /// Every request, as text.
    pub seen: Arc<Mutex<Vec<String>>>,
    /// What `/events` says next.
    pub events: Arc<Mutex<Option<mpsc::Receiver<Bytes>>>>,
    pub say: mpsc::Sender<Bytes>,
}

/// A body that comes when it comes.
pub struct Pieces(mpsc::Receiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

impl Far {
    pub async fn new() -> Self {
        let authority = KeyPair::generate().unwrap();
        let mut about = CertificateParams::default();
        about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = about.self_signed(&authority).unwrap().pem();
        let key = KeyPair::generate().unwrap();
        let names = ["a.example", "b.example", "c.example"].map(String::from);
        let certificate =
            CertificateParams::new(names).unwrap().signed_by(&key, &Issuer::new(about, authority)).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .unwrap();
        let (secure, plain) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (say, events) = mpsc::channel(1);
        let far = Self {
            secure: secure.local_addr().unwrap().port(),
            plain: plain.local_addr().unwrap().port(),
            root,
            seen: Arc::default(),
            events: Arc::new(Mutex::new(Some(events))),
            say,
        };
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (seen, events) = (Arc::clone(&far.seen), Arc::clone(&far.events));
        tokio::spawn(async move {
            while let Ok((stream, _)) = secure.accept().await {
                let (acceptor, seen, events) = (acceptor.clone(), Arc::clone(&seen), Arc::clone(&events));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream, seen, events).await;
                    }
                });
            }
        });
        let (seen, events) = (Arc::clone(&far.seen), Arc::clone(&far.events));
        tokio::spawn(async move {
            while let Ok((stream, _)) = plain.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&seen), Arc::clone(&events)));
            }
        });
        far
    }

    /// Everything that arrived since the last time.
    pub fn seen(&self) -> String {
        std::mem::take(&mut *self.seen.lock().unwrap()).join("\n")
    }
}

type Events = Arc<Mutex<Option<mpsc::Receiver<Bytes>>>>;

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, seen: Arc<Mutex<Vec<String>>>, events: Events) {
    let respond = service_fn(|request| respond(request, &seen, &events));
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), respond).await;
}

async fn respond(
    request: Request<Incoming>,
    seen: &Mutex<Vec<String>>,
    events: &Events,
) -> Result<Response<Pieces>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let mut text = format!("{} {}\n", head.method, head.uri);
    for (name, value) in &head.headers {
        text += &format!("{name}: {}\n", value.to_str().unwrap());
    }
    text += &format!("\n{}\n", String::from_utf8_lossy(&body));
    seen.lock().unwrap().push(text.clone());
    let (say, pieces) = mpsc::channel(8);
    let mut response = Response::builder();
    let path = head.uri.path();
    match path.rsplit('/').next().unwrap() {
        "redirect" => {
            let key = head.headers.get("x-key").map_or("none", |key| key.to_str().unwrap());
            response = response.status(302).header("location", format!("http://b.example/?key={key}"));
        }
        "split" => {
            tokio::spawn(async move {
                for piece in ["before ", &VALUE[..9], &VALUE[9..], " after"] {
                    say.send(piece.to_owned().into()).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(30)).await;
                }
            });
        }
        "events" => {
            response = response.header("content-type", "text/event-stream");
            let pieces = events.lock().unwrap().take().unwrap();
            return Ok(response.body(Pieces(pieces)).unwrap());
        }
        "message" => {
            response = response.header("content-type", "application/json");
            let answer = r#"{"model":"m-1","usage":{"input_tokens":11,"output_tokens":22}}"#;
            say.send(answer.into()).await.unwrap();
        }
        _ => {
            response = response.header("x-echo", head.headers.get("x-key").map_or("", |key| key.to_str().unwrap()));
            say.send(text.into()).await.unwrap();
        }
    }
    Ok(response.body(Pieces(pieces)).unwrap())
}

/// A sandbox, its secrets and the far end.
pub struct Scene {
    pub world: World,
    pub far: Far,
    pub leaks: Arc<Mutex<Vec<Leak>>>,
    pub spent: Arc<Mutex<Vec<Spent>>>,
}

/// A secret for a host, as a placeholder.
pub fn secret(name: &str, host: &str) -> Secret {
    Secret {
        name: name.into(),
        value: Value::new(VALUE),
        hosts: vec![host.parse().unwrap()],
        ports: Vec::new(),
        usage: Usage::Placeholder,
        placed: sandbox_egress::Placed::Anywhere,
        plain_http: PlainHttp::Refused,
    }
}

/// A secret for a host, as a header.
pub fn header(name: &str, host: &str, header: &str, format: &str) -> Secret {
    Secret { usage: Usage::Header { name: header.into(), format: format.into() }, ..secret(name, host) }
}

impl Scene {
    pub async fn new(secrets: Vec<Secret>) -> Self {
        Self::with(secrets, |_| Vec::new(), |vault| vault).await
    }

    pub async fn with(
        secrets: Vec<Secret>,
        services: impl FnOnce(&Far) -> Vec<Service>,
        change: impl FnOnce(Vault) -> Vault,
    ) -> Self {
        let far = Far::new().await;
        let (leaks, spent) = (Arc::default(), Arc::default());
        let trust = Trust::nobody().and(&far.root).unwrap();
        let mut vault = Vault { secrets, services: services(&far), ..Vault::new(trust) };
        vault.on_leak = {
            let leaks: Arc<Mutex<Vec<Leak>>> = Arc::clone(&leaks);
            Box::new(move |leak| leaks.lock().unwrap().push(leak.clone()))
        };
        vault.on_spent = {
            let spent: Arc<Mutex<Vec<Spent>>> = Arc::clone(&spent);
            Box::new(move |cost| spent.lock().unwrap().push(cost.clone()))
        };
        let secrets = Secrets::new(change(vault)).unwrap();
        let rules = vec![allow(&["*.example"], HERE), allow(&["127.0.0.1"], &[])];
        Self { world: World::with(rules, &["127.0.0.1"], secrets).await, far, leaks, spent }
    }

    /// What stands for a secret inside.
    pub fn placeholder(&self, name: &str) -> String {
        let mut found = self.world.engine.secrets().placeholders().filter(|(known, _)| *known == name);
        found.next().unwrap().1.to_owned()
    }

    /// Through the proxy, by CONNECT.
    pub async fn tunnel(&self, host: &str, port: u16) -> TcpStream {
        let mut stream = TcpStream::connect(self.world.proxy).await.unwrap();
        stream.write_all(format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        stream
    }

    /// TLS with a host, as a program inside that trusts its sandbox's authority.
    pub async fn tls(&self, host: &str) -> TlsStream<TcpStream> {
        let root = self.world.engine.secrets().authority().unwrap().to_owned();
        begin(self.tunnel(host, self.far.secure).await, host, &root, b"http/1.1").await.unwrap()
    }

    /// One request over such TLS; all that comes back.
    pub async fn ask(&self, host: &str, request: &str) -> String {
        finish(self.tls(host).await, request.as_bytes()).await
    }

    /// One request over plain HTTP in a tunnel.
    pub async fn ask_plainly(&self, host: &str, request: &[u8]) -> String {
        finish(self.tunnel(host, self.far.plain).await, request).await
    }
}

pub async fn begin<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    host: &str,
    root: &str,
    speaks: &[u8],
) -> std::io::Result<TlsStream<S>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![speaks.to_vec()];
    let name = ServerName::try_from(host.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Says this, and hears everything until the end.
pub async fn finish(mut stream: impl AsyncRead + AsyncWrite + Unpin, words: &[u8]) -> String {
    // Whoever is refused in the middle of it hears why all the same.
    let _ = stream.write_all(words).await;
    let _ = stream.flush().await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await.expect("it ends");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads until this was said.
pub async fn until(stream: &mut (impl AsyncRead + Unpin), words: &str) -> String {
    let mut answer = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&answer).contains(words) {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "{}", String::from_utf8_lossy(&answer));
        }
    };
    tokio::time::timeout(Duration::from_secs(5), reading).await.expect("it is said in time");
    String::from_utf8_lossy(&answer).into_owned()
}
