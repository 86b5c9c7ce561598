//! Where a registry may send us: to another address for a layer, or to a server that gives tokens. It is a stranger who says so,
//! and we are where it is not: on this machine, in its network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hyper::Response;
use tokio::net::TcpStream;
use url::Url;

use super::http::host_of;

/// Which addresses a request may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Any: a person named the host, or it is where the one is that they named.
    Any,
    /// Only what everybody can reach.
    Public,
}

impl Reach {
    /// Of these, those that it may go to.
    pub fn admitted(self, addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
        addresses.into_iter().filter(|address| self == Self::Any || is_public(address.ip())).collect()
    }
}

/// Who has answered: the address itself, since what a name leads to is said by whoever owns the name, each time anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(Option<IpAddr>);

impl Peer {
    /// At the other end.
    pub fn at(stream: &TcpStream) -> Self {
        Self(stream.peer_addr().ok().map(|address| address.ip()))
    }

    /// Who gave this answer.
    pub fn of<T>(response: &Response<T>) -> Self {
        response.extensions().get().copied().unwrap_or(Self(None))
    }
}

/// How far a registry at `from` may send us to `to`; words if not at all. Names are judged by what they lead to, when they are
/// connected to.
pub fn allowed(from: &Url, peer: Peer, to: &Url) -> Result<Reach, String> {
    if from.scheme() == "https" && to.scheme() != "https" {
        return Err(format!("{}, which has no TLS", host_of(to)));
    }
    // A registry in a private network has its servers there too.
    let inner = peer.0.is_some_and(|address| !is_public(address));
    Ok(if inner { Reach::Any } else { Reach::Public })
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(inner) => is_public_v4(inner),
            // Everything that is given out to anybody is within 2000::/3.
            None => address.segments()[0] & 0xe000 == 0x2000,
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let own = address.is_loopback() || address.is_private() || address.is_link_local() || a == 0;
    let shared = (a == 100 && b & 0xc0 == 64) || (a == 198 && b & 0xfe == 18) || (a, b, c) == (192, 0, 0);
    !own && !shared && !address.is_multicast() && a < 240
}

/// The address of the old kind that one of the new kind stands for: mapped, NAT64, 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = address.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match segments {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(of(high, low)),
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_of_this_machine_and_of_private_networks_are_known_in_every_form() {
        for inner in [
            "127.0.0.1",
            "127.8.8.8",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "::7f00:1",
        ] {
            assert!(!is_public(inner.parse().unwrap()), "{inner}");
        }
        for public in ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    /// With the registry's own password.
    #[test]
    fn a_registry_elsewhere_sent_us_to_this_machine_for_a_token() {
        let judged = |from: &str, to: &str| {
            let (from, to) = (Url::parse(from).unwrap(), Url::parse(to).unwrap());
            let peer = Peer(from.host_str().unwrap().parse().ok());
            allowed(&from, peer, &to)
        };
        let local = vec!["127.0.0.1:80".parse().unwrap(), "1.1.1.1:80".parse().unwrap()];
        let reach = judged("https://1.1.1.1/v2/", "https://127.0.0.1:8080/token").unwrap();
        assert_eq!(reach, Reach::Public);
        assert_eq!(reach.admitted(local.clone()), local[1..]);
        assert_eq!(judged("http://127.0.0.1:5000/v2/", "http://127.0.0.1:5001/token"), Ok(Reach::Any));
        assert_eq!(judged("https://10.0.0.5/v2/", "https://10.0.0.6/token"), Ok(Reach::Any));
        assert!(judged("https://1.1.1.1/v2/", "http://1.1.1.1/token").is_err(), "no TLS any more");
    }
}
