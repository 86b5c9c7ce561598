//! For programs that know no proxy: every connection that they make ends here, whatever address it was for.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{Engine, Host, Reach, Reason, Refusal, Target, proxy::explain, reach, tunnel::Carried};

/// Where names are asked for.
const DNS: u16 = 53;
/// The longest message over TCP.
const LONGEST: usize = 4096;
/// Time for the next question, and to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for the first word of somebody who is refused.
const A_MOMENT: Duration = Duration::from_millis(100);

impl Engine {
    /// Serves one connection that was redirected.
    pub async fn serve_redirected(self: Arc<Self>, mut stream: TcpStream) {
        let Ok(wanted) = original_destination(&stream) else { return reset(&stream) };
        let target = self.meant(Target::tcp(Host::from_address(wanted.ip()), wanted.port()));
        let Some(_place) = self.place() else {
            self.record_refusal(&target, Reason::TooManyConnections);
            return reset(&stream);
        };
        if wanted.port() == DNS {
            return self.serve_dns(stream).await;
        }
        // Our own listener inside, reached directly: that must not become a way to this machine's loopback.
        if matches!(target.host, Host::Address(address) if reach(address) == Reach::Loopback) {
            self.record_refusal(&target, Reason::Loopback);
            return reset(&stream);
        }
        match self.open(target.clone()).await {
            Ok(opened) => {
                let _ = stream.set_nodelay(true);
                // What ended in order ends in order; what was broken off is reset, and the program notices.
                if self.carry(&mut stream, opened, Vec::new()).await != Carried::ToTheEnd {
                    reset(&stream);
                }
            }
            Err(refusal) => refuse(stream, &target, &refusal).await,
        }
    }

    /// DNS over TCP: each message has its length before it.
    async fn serve_dns(&self, mut stream: TcpStream) {
        while let Ok(Ok(message)) = tokio::time::timeout(PATIENCE, question(&mut stream)).await {
            let reply = self.answer_dns(&message);
            let Some((length, reply)) = reply.and_then(|reply| Some((u16::try_from(reply.len()).ok()?, reply))) else {
                return reset(&stream);
            };
            let reply = [&length.to_be_bytes()[..], &reply].concat();
            if !matches!(tokio::time::timeout(PATIENCE, stream.write_all(&reply)).await, Ok(Ok(()))) {
                return reset(&stream);
            }
        }
    }
}

async fn question(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
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

/// Who speaks HTTP gets a page that says why; all others are reset. Whoever speaks first does it at once.
async fn refuse(stream: TcpStream, target: &Target, refusal: &Refusal) {
    let mut first = [0; 8];
    match tokio::time::timeout(A_MOMENT, stream.peek(&mut first)).await {
        Ok(Ok(length)) if begins_request(&first[..length]) => explain(stream, target, refusal).await,
        _ => reset(&stream),
    }
}

/// A method in capitals, and a blank.
fn begins_request(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    (3..=7).contains(&method) && bytes.get(method) == Some(&b' ')
}

/// The other side learns at once that nothing will come.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}
