//! Ways to a network. Addresses of the world are tried only where there is no interface that could carry the attempt.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{
        fd::AsRawFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as LocalAddress, UnixDatagram, UnixStream},
    },
    time::Duration,
};

use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("host_loopback_tcp", |arguments| tcp(arguments, "tcp4", Ipv4Addr::LOCALHOST.into())),
    ("host_loopback_tcp6", |arguments| tcp(arguments, "tcp6", Ipv6Addr::LOCALHOST.into())),
    ("host_loopback_udp", host_loopback_udp),
    ("host_loopback_other_names", host_loopback_other_names),
    ("host_abstract_socket", host_abstract_socket),
    ("host_path_socket", |arguments| {
        Outcome::first_breach(
            arguments.all("socket").map(|path| Outcome::of(format!("connecting to {path}"), UnixStream::connect(path))),
        )
    }),
    ("other_interfaces", other_interfaces),
    ("metadata_address", |_| {
        world(&["169.254.169.254:80", "169.254.170.2:80", "[fd00:ec2::254]:80", "100.100.100.200:80"])
    }),
    ("private_addresses", |_| {
        world(&["10.0.0.1:80", "172.17.0.1:80", "192.168.0.1:80", "100.64.0.1:80", "[fe80::1]:80", "[fc00::1]:80"])
    }),
    ("reserved_addresses", |_| world(&["192.0.2.1:443", "198.51.100.1:53", "203.0.113.1:22", "[2001:db8::1]:443"])),
    ("datagrams_out", datagrams_out),
    ("raw_icmp", |_| {
        Outcome::first_breach([(libc::AF_INET, 1), (libc::AF_INET, 255), (libc::AF_INET6, 58)].map(
            |(family, protocol)| {
                Outcome::of("a raw socket", call(libc::SYS_socket, [n(family), n(libc::SOCK_RAW), n(protocol)]))
            },
        ))
    }),
    ("low_ports", |_| Outcome::of("listening on port 80", TcpListener::bind("127.0.0.1:80"))),
    ("add_interface", |_| netlink("adding an interface", 16, 0x600, &add_interface())),
    ("add_address", |_| netlink("adding an address", 20, 0x600, &address())),
    ("add_route", |_| netlink("adding a route", 24, 0x600, &route())),
    ("change_loopback", |_| netlink("taking the loopback interface down", 16, 0, &loopback_down())),
    ("socket_privileges", socket_privileges),
    ("packet_filter", packet_filter),
    ("tunnel_device", tunnel_device),
    ("listen_for_host", listen_for_host),
];

const PATIENCE: Duration = Duration::from_millis(300);
/// A refusal comes at once, but a machine may be busy.
const REFUSAL: Duration = Duration::from_secs(5);

fn tcp(arguments: &Arguments, key: &str, host: std::net::IpAddr) -> Outcome {
    let port = arguments.number(key, 0) as u16;
    if port == 0 {
        return Outcome::NotApplicable("the machine has no such loopback".to_owned());
    }
    Outcome::of(
        "reaching a listener of the machine",
        TcpStream::connect_timeout(&SocketAddr::new(host, port), PATIENCE),
    )
}

fn host_loopback_udp(arguments: &Arguments) -> Outcome {
    let asked = || -> io::Result<usize> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect((Ipv4Addr::LOCALHOST, arguments.number("udp4", 0) as u16))?;
        socket.send(b"anybody there?")?;
        socket.recv(&mut [0; 16])
    };
    Outcome::of("an answer from the machine", asked())
}

/// The same loopback by its other spellings.
fn host_loopback_other_names(arguments: &Arguments) -> Outcome {
    let port = arguments.number("tcp4", 0);
    let names = ["0.0.0.0", "127.1.2.3", "127.255.255.254", "[::ffff:127.0.0.1]", "[::]", "[::ffff:0.0.0.0]"];
    let attempts = names.map(|name| match format!("{name}:{port}").parse() {
        Ok(address) => {
            Outcome::of(format!("reaching the machine by {name}"), TcpStream::connect_timeout(&address, PATIENCE))
        }
        Err(_) => Outcome::NotApplicable(format!("{name} is no address")),
    });
    Outcome::first_breach(attempts)
}

fn host_abstract_socket(arguments: &Arguments) -> Outcome {
    let mark = arguments.mark();
    let stream = LocalAddress::from_abstract_name(&mark).and_then(|address| UnixStream::connect_addr(&address));
    let datagram = LocalAddress::from_abstract_name(&mark)
        .and_then(|address| UnixDatagram::unbound().and_then(|socket| socket.connect_addr(&address)));
    Outcome::first_breach([
        Outcome::of("connecting to the machine's abstract socket", stream),
        Outcome::of("connecting to the machine's abstract socket", datagram),
    ])
}

/// Interfaces beyond loopback, and routes.
fn foreign_interfaces() -> Vec<String> {
    let devices = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names = devices.lines().skip(2).filter_map(|line| line.split(':').next()).map(|name| name.trim().to_owned());
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let routes =
        routes.lines().skip(1).filter_map(|line| line.split('\t').next()).map(|name| format!("route by {name}"));
    // The tunnel leads to the sandbox's own way out and nowhere else, where connections cannot be redirected to that.
    let names = names.filter(|name| !["lo", "sandbox"].contains(&name.as_str()));
    names.chain(routes.filter(|route| !["route by lo", "route by sandbox"].contains(&route.as_str()))).collect()
}

fn other_interfaces(_: &Arguments) -> Outcome {
    Outcome::of_list("interfaces and routes beyond loopback", foreign_interfaces())
}

/// An address beyond loopback. With an interface that is the breach, and nothing is sent.
fn world(addresses: &[&str]) -> Outcome {
    let ways = foreign_interfaces();
    if !ways.is_empty() {
        return Outcome::of_list("there is a way to other machines", ways);
    }
    let attempts =
        addresses.iter().filter_map(|text| text.parse::<SocketAddr>().ok()).map(|address| match answered(address) {
            Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                Outcome::BrokeThrough(format!("{address}: the attempt went somewhere, nobody answered"))
            }
            other => Outcome::of(format!("an answer from {address}"), other),
        });
    Outcome::first_breach(attempts.collect::<Vec<_>>())
}

/// What the way out says of itself to who speaks HTTP and was refused.
const REFUSED: &[u8] = b"x-sandbox-denied:";

/// Where connections are redirected, the kernel makes one to anywhere: only what comes back tells, and from whom.
fn answered(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(REFUSAL))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    let read = stream.take(4096).read_to_end(&mut answer);
    match answer.windows(REFUSED.len()).any(|part| part.eq_ignore_ascii_case(REFUSED)) {
        true => Err(io::ErrorKind::PermissionDenied.into()),
        false if answer.is_empty() => read.and(Err(io::ErrorKind::ConnectionReset.into())),
        false => Ok(()),
    }
}

fn datagrams_out(_: &Arguments) -> Outcome {
    let ways = foreign_interfaces();
    if !ways.is_empty() {
        return Outcome::of_list("there is a way to other machines", ways);
    }
    let attempts = ["192.0.2.1:53", "255.255.255.255:67", "224.0.0.251:5353", "[ff02::1]:5353", "169.254.169.253:53"]
        .map(|target| {
            let local = if target.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let answered = UdpSocket::bind(local).and_then(|socket| {
                socket.set_broadcast(true)?;
                socket.set_read_timeout(Some(PATIENCE))?;
                socket.send_to(b"x", target)?;
                socket.recv(&mut [0; 16])
            });
            Outcome::of(format!("an answer from {target}"), answered)
        });
    Outcome::first_breach(attempts)
}

/// Asks the kernel to change the network and reads its answer.
fn netlink(what: &str, kind: u16, flags: u16, body: &[u8]) -> Outcome {
    let asked = || -> io::Result<()> {
        let socket = call(libc::SYS_socket, [n(libc::AF_NETLINK), n(libc::SOCK_RAW), n(libc::NETLINK_ROUTE)])?;
        let request_and_acknowledge = 5;
        let mut message = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend((request_and_acknowledge | flags).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        call(libc::SYS_sendto, [n(socket), Argument::Bytes(&message), n(message.len() as i64), n(0), n(0), n(0)])?;
        let mut answer = [0u8; 512];
        call(libc::SYS_recvfrom, [n(socket), Argument::Buffer(&mut answer), n(512), n(0), n(0), n(0)])?;
        match i32::from_ne_bytes(answer[16..20].try_into().unwrap_or_default()) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    };
    // Who may not is told so before anything else is looked at.
    Outcome::of_door(what, asked())
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An interface of the kind `dummy`.
fn add_interface() -> Vec<u8> {
    let mut body = vec![0; 16];
    body.extend(attribute(3, b"attack0\0"));
    body.extend(attribute(18, &attribute(1, b"dummy\0")));
    body
}

/// 192.0.2.2 on loopback.
fn address() -> Vec<u8> {
    let mut body = vec![libc::AF_INET as u8, 32, 0, 0, 1, 0, 0, 0];
    body.extend(attribute(2, &[192, 0, 2, 2]));
    body.extend(attribute(1, &[192, 0, 2, 2]));
    body
}

/// 192.0.2.0/24 by loopback.
fn route() -> Vec<u8> {
    let mut body = vec![libc::AF_INET as u8, 24, 0, 0, 254, 3, 253, 1, 0, 0, 0, 0];
    body.extend(attribute(1, &[192, 0, 2, 0]));
    body.extend(attribute(4, &1u32.to_ne_bytes()));
    body
}

/// Interface 1 with the flag "up" cleared.
fn loopback_down() -> Vec<u8> {
    let mut body = vec![0; 16];
    body[4] = 1;
    body[12] = 1;
    body
}

/// Options of sockets that only who administers a network may set.
fn socket_privileges(_: &Arguments) -> Outcome {
    let socket = match UdpSocket::bind("127.0.0.1:0") {
        Ok(socket) => socket,
        Err(error) => return Outcome::NotApplicable(format!("no socket: {error}")),
    };
    let options = [
        ("SO_MARK", libc::SOL_SOCKET, libc::SO_MARK),
        ("SO_RCVBUFFORCE", libc::SOL_SOCKET, libc::SO_RCVBUFFORCE),
        ("SO_SNDBUFFORCE", libc::SOL_SOCKET, libc::SO_SNDBUFFORCE),
        ("SO_DEBUG", libc::SOL_SOCKET, libc::SO_DEBUG),
        ("IP_TRANSPARENT", libc::SOL_IP, 19),
        ("SO_PRIORITY", libc::SOL_SOCKET, libc::SO_PRIORITY),
    ];
    let set = options.into_iter().filter(|(_, level, option)| {
        call(
            libc::SYS_setsockopt,
            [n(socket.as_raw_fd()), n(*level), n(*option), Argument::Bytes(&7i32.to_ne_bytes()), n(4)],
        )
        .is_ok()
    });
    Outcome::of_list("options that could be set", set.map(|(name, _, _)| name.to_owned()).collect())
}

/// The old and the new interface to the kernel's packet filter.
fn packet_filter(_: &Arguments) -> Outcome {
    let old = || -> io::Result<i64> {
        let socket = call(libc::SYS_socket, [n(libc::AF_INET), n(libc::SOCK_RAW), n(255)])?;
        let information = 64;
        let mut table = [0u8; 84];
        table[..6].copy_from_slice(b"filter");
        call(
            libc::SYS_getsockopt,
            [n(socket), n(0), n(information), Argument::Buffer(&mut table), Argument::Buffer(&mut 84u32.to_ne_bytes())],
        )
    };
    let netfilter = 12;
    Outcome::first_breach([
        Outcome::of(
            "a netfilter socket",
            call(libc::SYS_socket, [n(libc::AF_NETLINK), n(libc::SOCK_RAW), n(netfilter)]),
        ),
        Outcome::of("reading the packet filter", old()),
    ])
}

fn tunnel_device(_: &Arguments) -> Outcome {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    Outcome::of("opening /dev/net/tun", opened)
}

/// Listens on loopback and says where, so that the suite can try from outside.
fn listen_for_host(_: &Arguments) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
    match listener {
        Ok((port, listener)) => {
            std::thread::spawn(move || {
                listener.incoming().flatten().for_each(|mut guest| drop(guest.write_all(b"inside")))
            });
            crate::exhaustion::hold(port.to_string(), ())
        }
        Err(error) => Outcome::NotApplicable(format!("no listener: {error}")),
    }
}
