//! Messages to the kernel about addresses, routes and filters: netlink(7), as much of it as a way out needs.

use std::io;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Size of a message's head: length, kind, flags, number, sender.
const HEAD: usize = 16;
/// The kind of an answer that says how it went.
const ANSWER: u16 = libc::NLMSG_ERROR as u16;
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const ACKNOWLEDGE: u16 = libc::NLM_F_ACK as u16;

/// One message.
pub struct Message {
    /// What it asks for.
    pub kind: u16,
    /// How, beside that it is a request.
    pub flags: u16,
    /// Whether the kernel says how it went.
    pub answered: bool,
    /// The rest.
    pub body: Vec<u8>,
}

/// Named values, as they follow in a message's body.
#[derive(Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// With one more value.
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(((value.len() + 4) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// With a text, which ends with a zero.
    pub fn with_text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// With a number as the network writes it.
    pub fn with_number(self, kind: u16, number: u32) -> Self {
        self.with(kind, &number.to_be_bytes())
    }

    /// With values in a value.
    pub fn with_nested(self, kind: u16, inner: &Self) -> Self {
        self.with(kind | libc::NLA_F_NESTED as u16, &inner.0)
    }

    /// As they are sent.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Sends all messages at once to whoever has this number (routes have none), and waits until the kernel has said of each that it is done.
pub fn tell(protocol: Option<Protocol>, messages: &[Message]) -> io::Result<()> {
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    let mut bytes = Vec::new();
    for (message, number) in messages.iter().zip(1u32..) {
        let flags = REQUEST | message.flags | if message.answered { ACKNOWLEDGE } else { 0 };
        bytes.extend(((HEAD + message.body.len()) as u32).to_ne_bytes());
        bytes.extend(message.kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&message.body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    rustix::net::send(&socket, &bytes, SendFlags::empty())?;
    let mut expected = messages.iter().filter(|message| message.answered).count();
    let mut buffer = vec![0; 32 << 10];
    while expected > 0 {
        let (_, length) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        for answer in answers(&buffer[..length]) {
            answer?;
            expected = expected.saturating_sub(1);
        }
    }
    Ok(())
}

/// How each message went.
fn answers(mut bytes: &[u8]) -> impl Iterator<Item = io::Result<()>> {
    std::iter::from_fn(move || {
        loop {
            let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
            let (message, rest) = bytes.split_at_checked(length.max(HEAD))?;
            bytes = rest.get(length.next_multiple_of(4) - length..).unwrap_or_default();
            if message[4..6] == ANSWER.to_ne_bytes() {
                let number = message.get(8..12).and_then(|number| number.first_chunk()).copied().unwrap_or_default();
                let error = i32::from_ne_bytes(*message.get(HEAD..)?.first_chunk()?);
                return Some(if error == 0 { Ok(()) } else { Err(refusal(-error, u32::from_ne_bytes(number))) });
            }
        }
    })
}

fn refusal(error: i32, number: u32) -> io::Error {
    let error = io::Error::from_raw_os_error(error);
    io::Error::new(error.kind(), format!("the kernel refused message {number}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_padded_and_nested() {
        let inner = Attributes::default().with_text(1, "ab");
        assert_eq!(inner.bytes(), [7u16.to_ne_bytes(), 1u16.to_ne_bytes(), *b"ab", [0, 0]].concat());
        let outer = Attributes::default().with_nested(2, &inner).with_number(3, 5);
        assert_eq!(outer.bytes()[..4], [12u16.to_ne_bytes(), 0x8002u16.to_ne_bytes()].concat());
        assert_eq!(outer.bytes()[12..], [&8u16.to_ne_bytes()[..], &3u16.to_ne_bytes(), &[0, 0, 0, 5]].concat());
    }

    #[test]
    fn answers_are_told_apart() {
        let answer = |error: i32| {
            let head = [&36u32.to_ne_bytes()[..], &2u16.to_ne_bytes(), &[0; 2], &7u32.to_ne_bytes(), &[0; 4]].concat();
            [&head[..], &error.to_ne_bytes(), &[0; 16]].concat()
        };
        let two = [answer(0), answer(-libc::EPERM)].concat();
        let found: Vec<_> = answers(&two).collect();
        assert!(found[0].is_ok());
        assert_eq!(found[1].as_ref().map_err(io::Error::kind).err(), Some(io::ErrorKind::PermissionDenied));
        for length in 0..two.len() {
            assert!(answers(&two[..length]).count() <= 1);
        }
    }
}
