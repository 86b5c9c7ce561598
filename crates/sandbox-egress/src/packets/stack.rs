//! The TCP/IP stack of one sandbox's packets: it takes every connection, wherever it is for.
//!
//! What it holds is bounded: so many connections, each with buffers of a fixed size, and one packet at a time. A connection
//! has its place before anything is kept for it; one without a place is refused at once.

use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    phy::{self, Checksum, DeviceCapabilities, Medium},
    socket::{tcp, udp},
    wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint},
};

use super::packet::{self, Seen};
use crate::places::Place;

/// As the tunnel's inner end has it, see `sandbox-linux/src/way_out.rs`; nothing longer comes.
const LONGEST: usize = 65_535;
const MTU: usize = 65_000;
/// Connections at once, also those that are about to end.
const MOST: usize = 256;
/// Bytes of a connection that are on their way, in each direction: two packets.
const BUFFER: usize = 128 << 10;
/// Questions for names that wait.
const QUESTIONS: usize = 16;
const NAMES: u16 = 53;
/// Time for a connection that nobody uses any more to end in order.
const FAREWELL: Duration = Duration::from_secs(30);

/// A connection that was taken.
pub(super) struct Arrival {
    pub handle: SocketHandle,
    /// Whom it is for.
    pub wanted: SocketAddr,
    pub place: Place,
}

pub(super) struct Stack {
    tunnel: Tunnel,
    interface: Interface,
    sockets: SocketSet<'static>,
    names: SocketHandle,
    connections: usize,
    /// Those that nobody uses any more, and until when they may stay.
    leaving: Vec<(SocketHandle, Instant)>,
}

impl Stack {
    /// Packets go out over this descriptor.
    pub fn new(outgoing: OwnedFd) -> Self {
        let mut tunnel = Tunnel { incoming: vec![0; LONGEST], length: 0, outgoing, scratch: Vec::new() };
        let mut seed = [0; 8];
        // Without chance the numbers of connections can be guessed, by nobody but the sandbox itself.
        let _ = getrandom::fill(&mut seed);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from_ne_bytes(seed);
        let mut interface = Interface::new(config, &mut tunnel, now());
        interface.set_any_ip(true);
        interface.update_ip_addrs(|own| {
            // Everybody is a neighbour. There is room for both, and without one its family would only stay silent.
            let _ = own.push(IpCidr::new(IpAddress::v4(0, 0, 0, 1), 0));
            let _ = own.push(IpCidr::new(IpAddress::v6(0, 0, 0, 0, 0, 0, 0, 1), 0));
        });
        let mut sockets = SocketSet::new(Vec::new());
        let names = sockets.add(names());
        Self { tunnel, interface, sockets, names, connections: 0, leaving: Vec::new() }
    }

    /// Whether no other connection may be admitted.
    pub fn is_full(&self) -> bool {
        self.connections >= MOST
    }

    /// Where the next packet is to be put.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.tunnel.incoming
    }

    /// Takes in the packet that was put there. If it opens a connection for which `admit` has a place, that is served now.
    pub fn take_in(
        &mut self,
        length: usize,
        admit: impl FnOnce(SocketAddr) -> Option<Place>,
        mut answer: impl FnMut(&[u8]) -> Option<Vec<u8>>,
    ) -> Option<Arrival> {
        let arrival = match packet::look(&self.tunnel.incoming[..length]) {
            Seen::Nothing => return None,
            Seen::Stack => None,
            Seen::Opens { from, wanted } if self.is_known(from, wanted) => None,
            Seen::Opens { wanted, .. } => admit(wanted).and_then(|place| self.expect(wanted, place)),
        };
        self.tunnel.length = length;
        self.interface.poll_ingress_single(now(), &mut self.tunnel, &mut self.sockets);
        self.tunnel.length = 0;
        self.answer_names(&mut answer);
        let arrival = arrival?;
        if self.socket(arrival.handle).is_listening() {
            // It only looked like a beginning.
            self.remove(arrival.handle);
            return None;
        }
        Some(arrival)
    }

    /// Sends what there is to be sent, and forgets what has ended. How long nothing has to be done, if something then has.
    pub fn send(&mut self) -> Option<Duration> {
        self.interface.poll(now(), &mut self.tunnel, &mut self.sockets);
        let now = Instant::now();
        self.forget_ended(now);
        let next = self.interface.poll_delay(self::now(), &self.sockets).map(Duration::from);
        let farewell = self.leaving.iter().map(|(_, until)| until.saturating_duration_since(now)).min();
        [next, farewell].into_iter().flatten().min()
    }

    /// A connection that is there; only until [`Stack::leave`].
    pub fn socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Nobody uses this connection any more: it ends when all that was written has arrived.
    pub fn leave(&mut self, handle: SocketHandle) {
        self.socket(handle).close();
        self.leaving.push((handle, Instant::now() + FAREWELL));
    }

    fn is_known(&self, from: SocketAddr, wanted: SocketAddr) -> bool {
        let (from, wanted) = (IpEndpoint::from(from), IpEndpoint::from(wanted));
        let mut connections = self.sockets.iter().filter_map(|(_, socket)| tcp_of(socket));
        connections.any(|socket| socket.remote_endpoint() == Some(from) && socket.local_endpoint() == Some(wanted))
    }

    /// Somebody listens for the packet that is about to be taken in.
    fn expect(&mut self, wanted: SocketAddr, place: Place) -> Option<Arrival> {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.listen(IpEndpoint::from(wanted)).ok()?;
        self.connections += 1;
        Some(Arrival { handle: self.sockets.add(socket), wanted, place })
    }

    fn answer_names(&mut self, answer: &mut impl FnMut(&[u8]) -> Option<Vec<u8>>) {
        let socket = self.sockets.get_mut::<udp::Socket<'_>>(self.names);
        while let Ok((question, from)) = socket.recv() {
            if let Some(reply) = answer(question) {
                // Whoever asks faster than it hears is not answered.
                let _ = socket.send_slice(&reply, from);
            }
        }
    }

    fn forget_ended(&mut self, now: Instant) {
        for (handle, until) in std::mem::take(&mut self.leaving) {
            let socket = self.socket(handle);
            match socket.state() {
                // The tunnel loses nothing, so nobody will ask for the last word again.
                tcp::State::Closed | tcp::State::TimeWait => self.remove(handle),
                _ => {
                    if until <= now {
                        socket.abort();
                    }
                    self.leaving.push((handle, until));
                }
            }
        }
    }

    fn remove(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
        self.connections -= 1;
    }
}

fn tcp_of<'a>(socket: &'a smoltcp::socket::Socket<'static>) -> Option<&'a tcp::Socket<'static>> {
    match socket {
        smoltcp::socket::Socket::Tcp(socket) => Some(socket),
        smoltcp::socket::Socket::Udp(_) => None,
    }
}

fn names() -> udp::Socket<'static> {
    let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; QUESTIONS], vec![0; QUESTIONS << 10]);
    let mut socket = udp::Socket::new(buffer(), buffer());
    // Fails only for a port that is none.
    let _ = socket.bind(NAMES);
    socket
}

fn now() -> smoltcp::time::Instant {
    smoltcp::time::Instant::now()
}

/// The device that the stack works with: one packet that came, and a way out for others.
struct Tunnel {
    incoming: Vec<u8>,
    /// How long it is; zero if there is none.
    length: usize,
    outgoing: OwnedFd,
    scratch: Vec<u8>,
}

struct Incoming<'a>(&'a [u8]);

struct Outgoing<'a> {
    tunnel: &'a OwnedFd,
    scratch: &'a mut Vec<u8>,
}

impl phy::Device for Tunnel {
    type RxToken<'a> = Incoming<'a>;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Incoming<'_>, Outgoing<'_>)> {
        let length = std::mem::take(&mut self.length);
        let outgoing = Outgoing { tunnel: &self.outgoing, scratch: &mut self.scratch };
        (length > 0).then_some((Incoming(&self.incoming[..length]), outgoing))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Outgoing<'_>> {
        Some(Outgoing { tunnel: &self.outgoing, scratch: &mut self.scratch })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        (capabilities.medium, capabilities.max_transmission_unit) = (Medium::Ip, MTU);
        // What comes was never on a wire.
        let sums = &mut capabilities.checksum;
        (sums.ipv4, sums.tcp, sums.udp) = (Checksum::Tx, Checksum::Tx, Checksum::Tx);
        capabilities
    }
}

impl phy::RxToken for Incoming<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl phy::TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        self.scratch.resize(length, 0);
        let filled = fill(self.scratch);
        // What the kernel does not take is said again, or not missed.
        let _ = rustix::io::write(self.tunnel, self.scratch);
        filled
    }
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
