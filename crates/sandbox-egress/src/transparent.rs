//! For programs that know no proxy: every connection that they make ends here, whatever address it was for.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::net::TcpStream;

use crate::{Engine, Host, Reach, reach, tunnel::Carried};

/// Where names are asked for.
const DNS: u16 = 53;
/// The longest message over TCP.
const LONGEST: usize = 4096;

impl Engine {
    /// Serves one connection that was redirected.
    pub async fn serve_redirected(self: Arc<Self>, mut stream: TcpStream) {
        let Ok(wanted) = original_destination(&stream) else { return reset(&stream) };
        if wanted.port() == DNS {
            return self.serve_dns(stream).await;
        }
        let target = self.target_at(wanted);
        // Our own listener inside, reached directly: that must not become a way to this machine's loopback.
        if matches!(target.host, Host::Address(address) if reach(address) == Reach::Loopback) {
            return reset(&stream);
        }
        match self.open(target).await {
            Ok(opened) => {
                let _ = stream.set_nodelay(true);
                // What ended in order ends in order; what was broken off is reset, and the program notices.
                if self.carry(&mut stream, opened, Vec::new()).await != Carried::ToTheEnd {
                    reset(&stream);
                }
            }
            Err(_) => reset(&stream),
        }
    }

    /// DNS over TCP: each message has its length before it.
    async fn serve_dns(&self, mut stream: TcpStream) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok(length) = stream.read_u16().await {
            if usize::from(length) > LONGEST {
                return reset(&stream);
            }
            let mut message = vec![0; usize::from(length)];
            if stream.read_exact(&mut message).await.is_err() {
                return;
            }
            let Some(reply) = self.answer_dns(&message) else { return reset(&stream) };
            let Ok(length) = u16::try_from(reply.len()) else { return reset(&stream) };
            if stream.write_all(&[&length.to_be_bytes()[..], &reply].concat()).await.is_err() {
                return;
            }
        }
    }
}

/// The address that a program inside wanted, before it was redirected.
fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let socket = rustix::net::sockopt::ip_original_dst(stream).map(SocketAddr::V4);
    Ok(socket.or_else(|_| rustix::net::sockopt::ipv6_original_dst(stream).map(SocketAddr::V6))?)
}

/// The other side learns at once that nothing will come.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}
