//! For programs that know no proxy: every connection that they make ends here, whatever address it was for.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use crate::{Engine, Host, Reach, Reason, Refusal, Target, engine::Opened, places::Place, reach, tunnel::Carried};

/// Where names are asked for.
const DNS: u16 = 53;
/// The longest message over TCP.
const LONGEST: usize = 4096;
/// Time for the next question, and to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for the first word of somebody who is refused.
const A_MOMENT: Duration = Duration::from_millis(100);

/// A connection with a program inside, however it came to us.
pub(crate) trait Inside: AsyncRead + AsyncWrite + Unpin + Send {
    /// The program learns at once that nothing will come: this does not end in order.
    fn reset(&self);

    /// Carries bytes between it and what was opened for it.
    fn carried_by(&mut self, engine: &Engine, opened: Opened) -> impl Future<Output = Carried> + Send;
}

impl Inside for TcpStream {
    fn reset(&self) {
        let _ = self.set_zero_linger();
    }

    async fn carried_by(&mut self, engine: &Engine, opened: Opened) -> Carried {
        engine.carry_socket(self, opened, Vec::new()).await
    }
}

impl Engine {
    /// Serves one connection that was redirected.
    pub async fn serve_redirected(self: Arc<Self>, stream: TcpStream) {
        let Ok(wanted) = original_destination(&stream) else { return stream.reset() };
        let Some(_place) = self.place_for(wanted) else { return stream.reset() };
        let _ = stream.set_nodelay(true);
        self.bound(&stream);
        self.serve_connection(stream, wanted).await;
    }

    /// A place for a connection to this address. If there is none, that is written down.
    pub(crate) fn place_for(&self, wanted: SocketAddr) -> Option<Place> {
        let place = self.place();
        if place.is_none() {
            self.record_too_many(wanted);
        }
        place
    }

    /// There is no room for a connection to this address.
    pub(crate) fn record_too_many(&self, wanted: SocketAddr) {
        self.record_refusal(self.target(wanted), Reason::TooManyConnections);
    }

    /// Serves one connection that was for this address.
    pub(crate) async fn serve_connection(&self, mut stream: impl Inside, wanted: SocketAddr) {
        if wanted.port() == DNS {
            return self.serve_dns(stream).await;
        }
        let target = self.target(wanted);
        // Our own listener inside, reached directly: that must not become a way to this machine's loopback.
        if matches!(target.host, Host::Address(address) if reach(address) == Reach::Loopback) {
            self.record_refusal(&target, Reason::Loopback);
            return stream.reset();
        }
        match self.open(target.clone()).await {
            // What ended in order ends in order; what was broken off is reset, and the program notices.
            Ok(opened) => {
                if stream.carried_by(self, opened).await != Carried::ToTheEnd {
                    stream.reset();
                }
            }
            Err(refusal) => self.refuse(stream, &target, &refusal).await,
        }
    }

    /// Who speaks HTTP gets a page that says why; all others are reset. Whoever speaks first does it at once.
    async fn refuse(&self, mut stream: impl Inside, target: &Target, refusal: &Refusal) {
        let mut first = [0; 8];
        match tokio::time::timeout(A_MOMENT, stream.read(&mut first)).await {
            Ok(Ok(length)) if begins_request(&first[..length]) => {
                let (reader, writer) = tokio::io::split(stream);
                let stream = tokio::io::join(AsyncReadExt::chain(&first[..length], reader), writer);
                self.explain(stream, target, refusal).await;
            }
            _ => stream.reset(),
        }
    }

    fn target(&self, wanted: SocketAddr) -> Target {
        self.meant(Target::tcp(Host::from_address(wanted.ip()), wanted.port()))
    }

    /// DNS over TCP: each message has its length before it.
    async fn serve_dns(&self, mut stream: impl Inside) {
        while let Ok(Ok(message)) = tokio::time::timeout(PATIENCE, question(&mut stream)).await {
            let reply = self.answer_dns(&message);
            let Some((length, reply)) = reply.and_then(|reply| Some((u16::try_from(reply.len()).ok()?, reply))) else {
                return stream.reset();
            };
            let reply = [&length.to_be_bytes()[..], &reply].concat();
            if !matches!(tokio::time::timeout(PATIENCE, stream.write_all(&reply)).await, Ok(Ok(()))) {
                return stream.reset();
            }
        }
    }
}

async fn question(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// The address that a program inside wanted, before it was redirected.
fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let socket = rustix::net::sockopt::ip_original_dst(stream).map(SocketAddr::V4);
    Ok(socket.or_else(|_| rustix::net::sockopt::ipv6_original_dst(stream).map(SocketAddr::V6))?)
}

/// A method in capitals, and a blank.
fn begins_request(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    (3..=7).contains(&method) && bytes.get(method) == Some(&b' ')
}
