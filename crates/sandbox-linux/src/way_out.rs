//! The only way out of a sandbox's network: listeners of ours in it.
//!
//! The network has a loopback interface and nothing else. Every address is made local, and what is sent to any other than
//! loopback's own is redirected to the listeners, which belong to the server outside. So a program that knows no proxy
//! works as it is, and what no rule catches goes nowhere: there is no route. Where the kernel redirects nothing, a tunnel
//! to that server takes its place ([`crate::tunnel`]); where there is none either, the proxy is all there is.
//!
//! Made by the launcher in a network namespace that it has just made; nobody inside has the right to change it.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink};
use sandbox_core::Door;
use serde::{Deserialize, Serialize};

use crate::{
    netlink::{Attributes, Message, tell},
    nft, tunnel,
};

/// The proxy, for programs that know one.
pub const PROXY_PORT: u16 = 3128;
/// Whatever was redirected.
const REDIRECTED_PORT: u16 = 3129;
/// Questions for names.
const DNS_PORT: u16 = 3153;
/// Where names are asked for. No answer comes from there: it is redirected as everything.
pub const DNS_SERVER: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 53);
/// The sandbox's own addresses, beside loopback's.
const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd73, 0x616e, 0x6462, 0x6f78, 1, 0, 0, 1);

/// Which programs find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    /// All.
    Everything,
    /// All, packet by packet, because connections cannot be redirected here.
    Packets {
        /// What the kernel answered.
        why: String,
    },
    /// Those that know a proxy, because connections cannot be redirected here, and there is no tunnel either.
    Proxy {
        /// What the kernel answered.
        why: String,
    },
}

/// With this variable set nothing is redirected, as where the kernel's packet filter is missing.
pub const WITHOUT_FILTERS: &str = "SANDBOX_MCP_NO_NFTABLES";

/// Prepares the network namespace that this process is in; loopback is up. It has no doors yet, but where everything goes
/// through a tunnel, that is one.
pub fn wire() -> io::Result<(Reach, Option<(Door, OwnedFd)>)> {
    let six = has_ipv6();
    let own = [&OWN_V4.octets()[..], &OWN_V6.octets()];
    let own = if six { &own[..] } else { &own[..1] };
    // All of the filters or none: without them there are no routes either, and nothing goes anywhere.
    let filtered = match std::env::var_os(WITHOUT_FILTERS) {
        Some(_) => Err(io::ErrorKind::Unsupported.into()),
        None => tell(Some(netlink::NETFILTER), &filters()),
    };
    let addresses = own.iter().map(|bytes| address(bytes));
    let Err(refusal) = filtered else {
        tell(None, &addresses.chain(own.iter().map(|bytes| local_default(bytes))).collect::<Vec<_>>())?;
        return Ok((Reach::Everything, None));
    };
    tell(None, &addresses.collect::<Vec<_>>())?;
    Ok(match tunnel::open(own) {
        Ok(tunnel) => (Reach::Packets { why: refusal.to_string() }, Some((Door::Packets, tunnel))),
        Err(error) => (Reach::Proxy { why: format!("{refusal}; no tunnel can be made: {error}") }, None),
    })
}

/// Opens the doors in a network namespace that is prepared. While somebody still has earlier ones, this fails.
pub fn open_doors(reach: &Reach) -> io::Result<Vec<(Door, OwnedFd)>> {
    let (four, six) = (std::net::IpAddr::from(Ipv4Addr::LOCALHOST), std::net::IpAddr::from(Ipv6Addr::LOCALHOST));
    let mut wanted = vec![(Door::Proxy, four, PROXY_PORT)];
    if *reach == Reach::Everything {
        let families: &[_] = if has_ipv6() { &[four, six] } else { &[four] };
        let both = |&address| [(Door::Redirected, address, REDIRECTED_PORT), (Door::Names, address, DNS_PORT)];
        wanted.extend(families.iter().flat_map(both));
    }
    wanted.into_iter().map(|(door, address, port)| Ok((door, bind(door, SocketAddr::new(address, port))?))).collect()
}

/// A door that was opened inside by somebody else, if it is what it should be: the proxy's listener and nothing else.
pub fn checked_door(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    use rustix::net::{getsockname, sockopt};
    let proxy = SocketAddr::from((Ipv4Addr::LOCALHOST, PROXY_PORT));
    let is_it = sockopt::socket_domain(&descriptor)? == AddressFamily::INET
        && sockopt::socket_type(&descriptor)? == SocketType::STREAM
        && sockopt::socket_protocol(&descriptor)? == Some(rustix::net::ipproto::TCP)
        && sockopt::socket_acceptconn(&descriptor)?
        && SocketAddr::try_from(getsockname(&descriptor)?).is_ok_and(|address| address == proxy);
    if is_it { Ok(descriptor) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn has_ipv6() -> bool {
    std::path::Path::new("/proc/self/net/if_inet6").exists()
        && bind(Door::Names, SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0)).is_ok()
}

fn bind(door: Door, address: SocketAddr) -> io::Result<OwnedFd> {
    let kind = if door == Door::Names { SocketType::DGRAM } else { SocketType::STREAM };
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    rustix::net::bind(&socket, &address)?;
    if kind == SocketType::STREAM {
        rustix::net::listen(&socket, 1024)?;
    }
    Ok(socket)
}

/// The loopback interface is the first of every network namespace.
const LOOPBACK: u32 = 1;

/// A message for the loopback interface to have this address; see rtnetlink(7).
fn address(bytes: &[u8]) -> Message {
    let head = [family(bytes), (bytes.len() * 8) as u8, libc::IFA_F_NODAD as u8, 0];
    let attributes = Attributes::default().with(libc::IFA_LOCAL, bytes).with(libc::IFA_ADDRESS, bytes);
    let body = [&head[..], &LOOPBACK.to_ne_bytes(), attributes.bytes()].concat();
    Message { kind: libc::RTM_NEWADDR, flags: CREATE, answered: true, body }
}

/// A message that makes every address local, with this one as the sender's.
fn local_default(source: &[u8]) -> Message {
    let scope = if source.len() == 4 { libc::RT_SCOPE_HOST } else { libc::RT_SCOPE_UNIVERSE };
    let head = [family(source), 0, 0, 0, libc::RT_TABLE_LOCAL, libc::RTPROT_BOOT, scope, libc::RTN_LOCAL];
    let attributes = Attributes::default().with(libc::RTA_OIF, &LOOPBACK.to_ne_bytes()).with(libc::RTA_PREFSRC, source);
    let body = [&head[..], &[0; 4], attributes.bytes()].concat();
    Message { kind: libc::RTM_NEWROUTE, flags: CREATE, answered: true, body }
}

/// Which of the two families these bytes are an address of.
pub fn family(address: &[u8]) -> u8 {
    (if address.len() == 4 { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// What is made must not be there yet.
pub const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
/// In nft's words:
///
/// ```text
/// table inet sandbox {
///   chain out { type nat hook output priority -100
///     ip daddr 127.0.0.0/8 accept; ip daddr OWN accept; ip6 daddr ::1 accept; ip6 daddr OWN accept
///     meta l4proto tcp redirect to :3129
///     udp dport 53 redirect to :3153 }
///   chain in { type filter hook input priority 0; policy drop
///     (the same four); ct state established,related accept; reject }
/// }
/// ```
fn filters() -> Vec<Message> {
    let ours = || {
        [
            nft::to_v4(Ipv4Addr::new(127, 0, 0, 0), [255, 0, 0, 0]),
            nft::to_v4(OWN_V4, [255; 4]),
            nft::to_v6(Ipv6Addr::LOCALHOST),
            nft::to_v6(OWN_V6),
        ]
        .map(|matching| [matching, vec![nft::accept()]].concat())
    };
    let mut messages =
        vec![nft::edge(nft::BEGIN), nft::table(), nft::chain("out", "nat", nft::OUTPUT, -100, nft::ACCEPT)];
    messages.push(nft::chain("in", "filter", nft::INPUT, 0, nft::DROP));
    messages.extend(ours().iter().map(|expressions| nft::rule("out", expressions)));
    let tcp = [nft::over(libc::IPPROTO_TCP), nft::redirect(REDIRECTED_PORT)].concat();
    let dns = [nft::over(libc::IPPROTO_UDP), nft::port(53), nft::redirect(DNS_PORT)].concat();
    messages.extend([nft::rule("out", &tcp), nft::rule("out", &dns)]);
    messages.extend(ours().iter().map(|expressions| nft::rule("in", expressions)));
    messages.push(nft::rule("in", &[nft::belongs_to_known(), vec![nft::accept()]].concat()));
    messages.push(nft::rule("in", &[nft::reject()]));
    messages.push(nft::edge(nft::END));
    messages
}

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        net::{TcpListener, TcpStream, UdpSocket},
        process::Command,
        time::Duration,
    };

    use super::*;

    /// Says that this process is in a network of its own.
    const INSIDE: &str = "SANDBOX_TEST_INSIDE";

    /// Runs a test in a network namespace of its own, as anybody may make one.
    fn inside(name: &str, test: impl FnOnce()) {
        if std::env::var_os(INSIDE).is_some() {
            return test();
        }
        let own = std::env::current_exe().expect("this program");
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net"]).arg(own).args(["--exact", "--nocapture", name]).env(INSIDE, "1");
        let output = command.output().expect("unshare is part of every Linux");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }

    fn made() -> Vec<(Door, OwnedFd)> {
        crate::sys::loopback_up().expect("loopback");
        let (reach, tunnel) = wire().expect("wired");
        assert_eq!((&reach, tunnel.is_none()), (&Reach::Everything, true));
        let doors = open_doors(&reach).expect("doors");
        assert!(open_doors(&reach).is_err(), "two have the same doors");
        doors
    }

    fn of(doors: &[(Door, OwnedFd)], wanted: Door) -> Vec<OwnedFd> {
        let found = doors.iter().filter(|(door, _)| *door == wanted);
        found.map(|(_, socket)| socket.try_clone().expect("a descriptor")).collect()
    }

    #[test]
    fn every_connection_ends_at_our_listener_and_nothing_else_goes_anywhere() {
        inside("way_out::tests::every_connection_ends_at_our_listener_and_nothing_else_goes_anywhere", || {
            let doors = made();
            let (redirected, dns) = (of(&doors, Door::Redirected), of(&doors, Door::Names));
            for (socket, wanted) in redirected.into_iter().zip(["8.8.8.8:443", "[2606:4700::1111]:22"]) {
                let listener = TcpListener::from(socket);
                listener.set_nonblocking(false).expect("blocking");
                let wanted: SocketAddr = wanted.parse().expect("an address");
                let mut client = TcpStream::connect(wanted).expect("connected");
                let (mut served, _) = listener.accept().expect("accepted");
                let original = if wanted.is_ipv4() {
                    rustix::net::sockopt::ip_original_dst(&served).map(SocketAddr::V4)
                } else {
                    rustix::net::sockopt::ipv6_original_dst(&served).map(SocketAddr::V6)
                };
                assert_eq!(original.expect("where it was for"), wanted);
                client.write_all(b"out").expect("sent");
                served.write_all(b"in").expect("sent");
                let mut answer = [0; 3];
                served.read_exact(&mut answer).expect("read");
                client.read_exact(&mut answer[..2]).expect("read");
                assert_eq!(&answer, b"int");
                assert_ne!(client.local_addr().expect("own").ip(), wanted.ip());
            }
            for (socket, server) in dns.into_iter().zip(["198.19.0.53:53", "[2606:4700::1111]:53"]) {
                let responder = UdpSocket::from(socket);
                responder.set_nonblocking(false).expect("blocking");
                let client =
                    UdpSocket::bind(if server.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" }).expect("bound");
                client.send_to(b"question", server).expect("sent");
                let mut buffer = [0; 20];
                let (_, from) = responder.recv_from(&mut buffer).expect("received");
                responder.send_to(b"answer", from).expect("answered");
                client.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
                let (length, from) = client.recv_from(&mut buffer).expect("an answer");
                assert_eq!((&buffer[..length], from.to_string().as_str()), (&b"answer"[..], server));
            }
            // Other datagrams are refused at once, and do not come to somebody who listens inside.
            let listening = UdpSocket::bind("0.0.0.0:4000").expect("bound");
            listening.set_nonblocking(true).expect("not blocking");
            for wanted in ["8.8.8.8:4000", "[2606:4700::1111]:4000", "224.0.0.1:4000"] {
                let client =
                    UdpSocket::bind(if wanted.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" }).expect("bound");
                client.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
                let sent =
                    client.connect(wanted).and_then(|()| client.send(b"x")).and_then(|_| client.recv(&mut [0; 9]));
                assert!(sent.is_err(), "{wanted}: {sent:?}");
                assert_eq!(
                    listening.recv(&mut [0; 9]).map_err(|error| error.kind()),
                    Err(ErrorKind::WouldBlock),
                    "{wanted}"
                );
            }
            // Loopback and the own address stay what they are.
            for own in ["127.0.0.1:5000", "198.19.0.1:5000"] {
                assert_eq!(
                    TcpStream::connect(own).map_err(|error| error.kind()).err(),
                    Some(ErrorKind::ConnectionRefused)
                );
                let listener = TcpListener::bind(own).expect("bound");
                let client = TcpStream::connect(own).expect("connected");
                assert_eq!(listener.accept().expect("accepted").1, client.local_addr().expect("own"));
            }
            drop(doors);
        });
    }

    /// The first packet that comes out, of those with this protocol: its whole content.
    fn first_packet(tunnel: &OwnedFd, protocol: i32) -> Vec<u8> {
        let mut packet = vec![0; 65_535];
        loop {
            let length = rustix::io::read(tunnel, &mut packet).expect("a packet");
            let found = if packet[0] >> 4 == 4 { packet[9] } else { packet[6] };
            if i32::from(found) == protocol {
                packet.truncate(length);
                return packet;
            }
        }
    }

    #[test]
    fn without_filters_everything_comes_out_of_a_tunnel() {
        inside("way_out::tests::without_filters_everything_comes_out_of_a_tunnel", || {
            crate::sys::loopback_up().expect("loopback");
            let own = [&OWN_V4.octets()[..], &OWN_V6.octets()];
            tell(None, &own.map(address)).expect("addresses");
            let tunnel = match tunnel::open(&own) {
                Ok(tunnel) => tunnel,
                Err(error) => return eprintln!("skipped: no tunnel can be made here: {error}"),
            };
            assert_eq!(
                rustix::io::read(&tunnel, &mut [0; 99]),
                Err(rustix::io::Errno::AGAIN),
                "it says something by itself"
            );
            for wanted in ["8.8.8.8:443", "[2606:4700::1111]:443"] {
                let wanted: SocketAddr = wanted.parse().expect("an address");
                let connected = TcpStream::connect_timeout(&wanted, Duration::from_millis(100));
                assert!(connected.is_err(), "nobody answered");
                let packet = first_packet(&tunnel, libc::IPPROTO_TCP);
                match wanted.ip() {
                    std::net::IpAddr::V4(to) => assert_eq!(packet[12..20], [OWN_V4.octets(), to.octets()].concat()),
                    std::net::IpAddr::V6(to) => assert_eq!(packet[8..40], [OWN_V6.octets(), to.octets()].concat()),
                }
                let any = if wanted.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let asked = UdpSocket::bind(any).and_then(|socket| socket.send_to(&[7; 30_000], wanted));
                assert_eq!(asked.expect("sent"), 30_000);
                assert!(first_packet(&tunnel, libc::IPPROTO_UDP).ends_with(&[7; 30_000]), "in parts");
            }
            for own in ["127.0.0.1:5000", "198.19.0.1:5000"] {
                let listener = TcpListener::bind(own).expect("bound");
                let client = TcpStream::connect(own).expect("connected");
                assert_eq!(listener.accept().expect("accepted").1, client.local_addr().expect("own"));
            }
        });
    }

    #[test]
    fn only_the_proxy_s_listener_is_taken_for_a_door() {
        inside("way_out::tests::only_the_proxy_s_listener_is_taken_for_a_door", || {
            crate::sys::loopback_up().expect("loopback");
            let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let connecting = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
            let others = [
                TcpListener::bind(at(PROXY_PORT + 1)).expect("another port").into(),
                TcpListener::bind(("::1", PROXY_PORT)).expect("another family").into(),
                UdpSocket::bind(at(PROXY_PORT)).expect("datagrams").into(),
                connecting,
                std::fs::File::open("/dev/null").expect("no socket at all").into(),
            ];
            assert!(others.into_iter().all(|other| checked_door(other).is_err()));
            let listener = bind(Door::Proxy, at(PROXY_PORT)).expect("the listener");
            assert!(checked_door(listener).is_ok());
        });
    }

    #[test]
    fn nobody_is_connected_to_our_ports_from_outside() {
        let ours = [PROXY_PORT, REDIRECTED_PORT, DNS_PORT];
        assert_eq!(ours, sandbox_executor::protocol::WAY_OUT_PORTS);
    }
}
