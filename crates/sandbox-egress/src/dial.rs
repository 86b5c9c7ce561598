//! Reaching one of several addresses, exactly those that were checked.
//!
//! Where one does not answer, the next does not wait for it to be given up (RFC 8305): on many machines IPv6 leads nowhere,
//! and nothing says so.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use crate::Reason;

/// Time to reach one address, and for all of them.
const ONE: Duration = Duration::from_secs(5);
const ALL: Duration = Duration::from_secs(15);
/// How long an address is tried alone.
const HEAD_START: Duration = Duration::from_millis(250);
/// A name may have many addresses; each that is tried takes a descriptor.
const AT_ONCE: usize = 4;

/// The first that answers; or why none did.
pub async fn dial(addresses: &[IpAddr], port: u16) -> Result<(TcpStream, SocketAddr), Reason> {
    timeout(ALL, race(alternating(addresses), port)).await.unwrap_or(Err(Reason::Unreachable))
}

async fn race(addresses: Vec<IpAddr>, port: u16) -> Result<(TcpStream, SocketAddr), Reason> {
    let mut reason = Reason::Unreachable;
    let mut left = addresses.into_iter().peekable();
    // Whoever is still being tried when another has answered is given up.
    let mut tried = JoinSet::new();
    loop {
        if tried.len() < AT_ONCE
            && let Some(address) = left.next()
        {
            tried.spawn(connect(SocketAddr::new(address, port)));
        }
        let patience = if tried.len() < AT_ONCE && left.peek().is_some() { HEAD_START } else { ALL };
        match timeout(patience, tried.join_next()).await {
            Ok(Some(Ok(Ok(reached)))) => return Ok(reached),
            Ok(Some(Ok(Err(error)))) if error.kind() == io::ErrorKind::ConnectionRefused => reason = Reason::Refused,
            Ok(None) => return Err(reason),
            Ok(Some(_)) | Err(_) => {}
        }
    }
}

async fn connect(address: SocketAddr) -> io::Result<(TcpStream, SocketAddr)> {
    Ok((timeout(ONE, TcpStream::connect(address)).await??, address))
}

/// The two families in turns, in their order otherwise.
fn alternating(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let (first, second): (Vec<IpAddr>, Vec<IpAddr>) = addresses
        .iter()
        .partition(|address| addresses.first().is_some_and(|first| first.is_ipv6() == address.is_ipv6()));
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    std::iter::from_fn(|| match (first.next(), second.next()) {
        (None, None) => None,
        (one, other) => Some([one, other]),
    })
    .flatten()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

    use super::*;

    fn addresses(text: &str) -> Vec<IpAddr> {
        text.split(' ').map(|address| address.parse().expect(address)).collect()
    }

    #[test]
    fn families_take_turns() {
        for (given, expected) in [
            ("::1 ::2 ::3 1.1.1.1", "::1 1.1.1.1 ::2 ::3"),
            ("1.1.1.1 2.2.2.2", "1.1.1.1 2.2.2.2"),
            ("1.1.1.1 ::1 ::2 2.2.2.2 ::3", "1.1.1.1 ::1 2.2.2.2 ::2 ::3"),
        ] {
            assert_eq!(alternating(&addresses(given)), addresses(expected), "{given}");
        }
        assert!(alternating(&[]).is_empty());
    }

    #[tokio::test]
    async fn one_that_does_not_answer_is_not_waited_for() {
        // Its queue is full, so it answers nobody else.
        let silent = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&silent, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("bound");
        listen(&silent, 0).expect("listening");
        let address = SocketAddr::try_from(getsockname(&silent).expect("its name")).expect("an address");
        let _queued: Vec<_> = (0..4).map(|_| tokio::spawn(TcpStream::connect(address))).collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _good = std::net::TcpListener::bind(("127.0.0.2", address.port())).expect("listening");
        let start = Instant::now();
        let (_, reached) = dial(&addresses("127.0.0.1 127.0.0.2"), address.port()).await.expect("reached");
        assert_eq!(reached.ip().to_string(), "127.0.0.2");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn nobody_there_is_said_to_refuse() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let refused = dial(&addresses("127.0.0.1 127.0.0.2 127.0.0.3"), free.port()).await.err();
        assert_eq!(refused, Some(Reason::Refused));
        assert_eq!(dial(&[], 80).await.err(), Some(Reason::Unreachable));
    }
}
