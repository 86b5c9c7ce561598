//! SOCKS5 (RFC 1928), as much as a client needs to name a target: no passwords, CONNECT only.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{
    host::Host,
    target::{Target, TargetError},
};

/// A client that speaks it begins with this.
pub const VERSION: u8 = 5;
/// The longest of its messages.
pub const LONGEST: usize = 4 + 1 + 255 + 2;

/// A message that was read, and how many bytes it had; nothing if more is needed.
pub type Read<T> = Result<Option<(T, usize)>, SocksError>;

/// What cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocksError {
    /// Not SOCKS5.
    #[error("this is not SOCKS version 5")]
    Version,
    /// The client wants to authenticate.
    #[error("the client offers no way without a password, and there is none")]
    Method,
    /// BIND or UDP.
    #[error("only connections outward (CONNECT) are possible")]
    Command,
    /// Neither name nor address.
    #[error("the kind of address is not known")]
    AddressKind,
    /// The target is none.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// What a client is told about its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Answer {
    Connected,
    Failed,
    NotAllowed,
    Unreachable,
    Refused,
    UnknownCommand,
    UnknownAddressKind,
}

/// Reads the greeting.
pub fn greeting(bytes: &[u8]) -> Read<()> {
    let [version, count, rest @ ..] = bytes else { return started(bytes) };
    if *version != VERSION {
        return Err(SocksError::Version);
    }
    let Some(methods) = rest.get(..usize::from(*count)) else { return Ok(None) };
    if methods.contains(&0) { Ok(Some(((), 2 + methods.len()))) } else { Err(SocksError::Method) }
}

/// Reads the request.
pub fn request(bytes: &[u8]) -> Read<Target> {
    let [version, command, _, kind, rest @ ..] = bytes else { return started(bytes) };
    match (*version, *command) {
        (VERSION, 1) => {}
        (VERSION, _) => return Err(SocksError::Command),
        _ => return Err(SocksError::Version),
    }
    let (host, length) = match (*kind, rest) {
        (1, [a, b, c, d, ..]) => (Ok(Host::from_address(Ipv4Addr::new(*a, *b, *c, *d).into())), 4),
        (4, rest) => match rest.first_chunk::<16>() {
            Some(bytes) => (Ok(Host::from_address(Ipv6Addr::from(*bytes).into())), 16),
            None => return Ok(None),
        },
        (3, [length, rest @ ..]) => match rest.get(..usize::from(*length)) {
            Some(name) => (
                std::str::from_utf8(name).map_err(|_| crate::HostError::Character).and_then(str::parse),
                1 + name.len(),
            ),
            None => return Ok(None),
        },
        (1 | 3, _) => return Ok(None),
        _ => return Err(SocksError::AddressKind),
    };
    let Some(&[high, low]) = rest.get(length..).and_then(|rest| rest.first_chunk::<2>()) else { return Ok(None) };
    let port = u16::from_be_bytes([high, low]);
    if port == 0 {
        return Err(TargetError::Port.into());
    }
    Ok(Some((Target::tcp(host.map_err(TargetError::Host)?, port), 4 + length + 2)))
}

/// Whether the little that is there can become a message.
fn started<T>(bytes: &[u8]) -> Read<T> {
    if bytes.first().is_some_and(|&version| version != VERSION) { Err(SocksError::Version) } else { Ok(None) }
}

/// The answer to a greeting.
pub fn welcome(accepted: Result<(), SocksError>) -> [u8; 2] {
    [VERSION, if accepted.is_ok() { 0 } else { 0xff }]
}

impl Answer {
    /// As it is sent. The address that follows is of no use to anybody here.
    pub fn to_bytes(self) -> [u8; 10] {
        let code = match self {
            Self::Connected => 0,
            Self::Failed => 1,
            Self::NotAllowed => 2,
            Self::Unreachable => 4,
            Self::Refused => 5,
            Self::UnknownCommand => 7,
            Self::UnknownAddressKind => 8,
        };
        [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(name: &[u8], port: u16) -> Vec<u8> {
        [&[5, 1, 0, 3, name.len() as u8][..], name, &port.to_be_bytes()].concat()
    }

    #[test]
    fn requests_are_read_whole_or_not_at_all() {
        let long = [&[5, 1, 0, 4][..], &[0; 15], &[1, 0, 80]].concat();
        for (bytes, expected) in [
            (named(b"Example.com.", 443), "example.com:443"),
            (vec![5, 1, 0, 1, 127, 0, 0, 1, 0, 80], "127.0.0.1:80"),
            (long, "[::1]:80"),
            // A name that is an address is that address.
            (named(b"0x7f.1", 80), "127.0.0.1:80"),
        ] {
            for length in 0..bytes.len() {
                assert_eq!(request(&bytes[..length]), Ok(None));
            }
            let (target, length) = request(&[&bytes[..], b"more"].concat()).expect("read").expect("whole");
            assert_eq!((target.to_string().as_str(), length), (expected, bytes.len()));
        }
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        assert_eq!(request(&[5, 2, 0, 1]), Err(SocksError::Command));
        assert_eq!(request(&[5, 3, 0, 1]), Err(SocksError::Command));
        assert_eq!(request(&[5, 1, 0, 9]), Err(SocksError::AddressKind));
        assert_eq!(request(&[4]), Err(SocksError::Version));
        assert_eq!(request(&named(b"a", 0)), Err(SocksError::Target(TargetError::Port)));
        for name in [&b""[..], b"a\0b", b"a b", b"\xff", b"a@b", b"fe80::1%eth0"] {
            assert!(matches!(request(&named(name, 80)), Err(SocksError::Target(TargetError::Host(_)))), "{name:?}");
        }
        assert_eq!(greeting(&[5, 2, 2, 0, 9]), Ok(Some(((), 4))));
        assert_eq!(greeting(&[5, 1, 2]), Err(SocksError::Method));
        assert_eq!(greeting(&[5, 2, 2]), Ok(None));
        assert_eq!(welcome(Err(SocksError::Method)), [5, 0xff]);
    }

    proptest! {
        #[test]
        fn nothing_panics_and_lengths_are_true(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let bytes = [&[5, 1, 0][..], &bytes].concat();
            if let Ok(Some((_, length))) = request(&bytes) {
                prop_assert!(length <= bytes.len() && length <= LONGEST);
            }
            let _ = greeting(&bytes);
        }
    }
}
