//! What kind of place an address is. Only those that anybody on the internet may reach count as public.
//!
//! An IPv6 address can carry an IPv4 one in several ways, and a router may turn one into the other: such an address is
//! whatever the address inside it is.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// Who can be reached at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Anybody's public server.
    Public,
    /// This machine.
    Loopback,
    /// A network of this machine's own: private, or of a provider that shares addresses.
    Private,
    /// The same cable; cloud machines find their own credentials there.
    LinkLocal,
    /// Nobody, everybody, or something that is not for use.
    Special,
}

/// A block of addresses, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    first: IpAddr,
    prefix: u8,
}

/// A block of addresses that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// It cannot be read.
    #[error("`{0}` is not a block of addresses; write one such as 10.0.0.0/8, 192.0.2.7 or 2001:db8::/32")]
    Malformed(String),
    /// It names one address, and many.
    #[error(
        "`{written}` is not the beginning of a block: write {block} for all of it, or {address} for this address alone"
    )]
    WithinBlock {
        /// What was written.
        written: String,
        /// The block that it is in.
        block: Network,
        /// The address that it names.
        address: IpAddr,
    },
}

/// Who can be reached at this address.
pub fn reach(address: IpAddr) -> Reach {
    match plain(address) {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => reach_v6(address),
    }
}

/// The IPv4 address that an IPv6 one is translated to, if it is.
pub fn translated(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V6(long) => match long.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into())
            }
            _ => None,
        },
        IpAddr::V4(_) => None,
    }
}

/// The address that is meant: IPv4 where it is only written as IPv6.
pub fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(long) => long.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// See the registry of special-purpose addresses (RFC 6890 and its successors).
fn reach_v4(address: Ipv4Addr) -> Reach {
    match address.octets() {
        [127, ..] => Reach::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Reach::Private,
        // The last is where one provider's machines find what is otherwise found at the first.
        [169, 254, ..] | [168, 63, 129, 16] => Reach::LinkLocal,
        // This network, protocol assignments, examples, relays, benchmarks, groups, reserved and broadcast.
        [0, ..] | [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => {
            Reach::Special
        }
        [224..=255, ..] => Reach::Special,
        _ => Reach::Public,
    }
}

fn reach_v6(address: Ipv6Addr) -> Reach {
    let inside = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        reach_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Loopback,
        // IPv4 in IPv6, translated by a well-known prefix.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inside(high, low),
        // Tunnelled, which nobody does any longer.
        [0x2002, ..] => Reach::Special,
        [0x64, 0xff9b, 1, ..] => Reach::Private,
        [0xfc00..=0xfdff, ..] => Reach::Private,
        // Also the old site-local ones.
        [0xfe80..=0xfebf, ..] | [0xfec0..=0xfeff, ..] => Reach::LinkLocal,
        // Protocol assignments and Teredo, examples; all of that is within what is given out otherwise.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Reach::Special,
        [0x2000..=0x3fff, ..] => Reach::Public,
        _ => Reach::Special,
    }
}

impl Network {
    /// Whether all of it is such addresses: a block that is wider means none of them.
    pub fn is_all(&self, kind: Reach) -> bool {
        let (last, narrow) = match self.first {
            IpAddr::V4(first) => {
                let rest = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                (IpAddr::from(Ipv4Addr::from_bits(first.to_bits() | rest)), self.prefix >= 8)
            }
            IpAddr::V6(first) => {
                let rest = u128::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                (IpAddr::from(Ipv6Addr::from_bits(first.to_bits() | rest)), self.prefix >= 7)
            }
        };
        narrow && reach(self.first) == kind && reach(last) == kind
    }

    /// Its first address.
    fn beginning(&self) -> IpAddr {
        match self.first {
            IpAddr::V4(first) => {
                let rest = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                Ipv4Addr::from_bits(first.to_bits() & !rest).into()
            }
            IpAddr::V6(first) => {
                let rest = u128::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                Ipv6Addr::from_bits(first.to_bits() & !rest).into()
            }
        }
    }

    /// Whether it is one address.
    pub fn is_one(&self) -> bool {
        u32::from(self.prefix) == if self.first.is_ipv4() { 32 } else { 128 }
    }

    /// Whether an address is in it.
    pub fn holds(&self, address: IpAddr) -> bool {
        match (self.first, plain(address)) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.prefix);
                first.to_bits().checked_shr(shift).unwrap_or(0) == address.to_bits().checked_shr(shift).unwrap_or(0)
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(self.prefix);
                first.to_bits().checked_shr(shift).unwrap_or(0) == address.to_bits().checked_shr(shift).unwrap_or(0)
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError::Malformed(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if first.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            // Digits only: `parse` takes a sign too.
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().map_err(|_| wrong())?
            }
            Some(_) => return Err(wrong()),
            None => longest,
        };
        // An address that is only written as IPv6 would never be found again.
        if prefix > longest || plain(first) != first {
            return Err(wrong());
        }
        let network = Self { first, prefix };
        match network.beginning() {
            beginning if beginning == first => Ok(network),
            beginning => {
                let block = Self { first: beginning, prefix };
                Err(NetworkError::WithinBlock { written: text.to_owned(), block, address: first })
            }
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "a public address",
            Self::Loopback => "this machine itself",
            Self::Private => "a private network",
            Self::LinkLocal => "the local cable, where cloud machines keep credentials",
            Self::Special => "an address that is not for use",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_of_an_address_that_is_not_public_is_known() {
        let table = [
            (Reach::Public, "1.1.1.1 8.8.8.8 93.184.215.14 100.63.255.255 172.32.0.1 223.255.255.255 2606:4700::1111"),
            (Reach::Public, "::ffff:8.8.8.8 64:ff9b::808:808 2a00:1450::1 3fff:1000::1 168.63.129.17"),
            (Reach::Loopback, "127.0.0.1 127.255.255.254 ::1 ::ffff:127.0.0.1 64:ff9b::7f00:1"),
            (
                Reach::Private,
                "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 100.127.255.255 fc00::1 fdff::1",
            ),
            (Reach::Private, "::ffff:10.0.0.1 64:ff9b::a00:1 64:ff9b:1::808:808"),
            (
                Reach::LinkLocal,
                "169.254.169.254 169.254.0.1 fe80::1 febf::1 fec0::1 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe",
            ),
            (Reach::LinkLocal, "168.63.129.16 ::ffff:168.63.129.16"),
            (
                Reach::Special,
                "0.0.0.0 0.1.2.3 192.0.0.1 192.0.2.1 192.88.99.1 198.18.0.1 198.19.0.1 198.51.100.1 203.0.113.1",
            ),
            (
                Reach::Special,
                "224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 :: ff02::1 2001:db8::1 2001::1 100::1 3fff::1",
            ),
            (
                Reach::Special,
                "5f00::1 4000::1 ::ffff:0.0.0.0 64:ff9b::e000:1 2002:808:808::1 ::127.0.0.1 ::8.8.8.8 ::ffff:0:8.8.8.8",
            ),
        ];
        for (expected, addresses) in table {
            for address in addresses.split(' ') {
                assert_eq!(reach(address.parse().expect(address)), expected, "{address}");
            }
        }
    }

    #[test]
    fn blocks_hold_what_is_in_them() {
        let holds =
            |block: &str, address: &str| block.parse::<Network>().expect(block).holds(address.parse().expect(address));
        assert!(holds("10.0.0.0/8", "10.255.1.2") && !holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("10.0.0.0/8", "::ffff:10.1.2.3") && !holds("::/0", "10.1.2.3") && holds("0.0.0.0/0", "10.1.2.3"));
        let all = |block: &str, kind| block.parse::<Network>().expect(block).is_all(kind);
        assert!(
            all("10.0.0.0/8", Reach::Private) && all("10.1.2.3", Reach::Private) && all("fc00::/7", Reach::Private)
        );
        assert!(
            all("127.0.0.1", Reach::Loopback)
                && all("169.254.169.254/32", Reach::LinkLocal)
                && all("::1", Reach::Loopback)
        );
        for wide in ["0.0.0.0/0", "::/0", "128.0.0.0/1", "168.0.0.0/8", "10.0.0.0/7", "172.0.0.0/8"] {
            let kinds = [Reach::Loopback, Reach::Private, Reach::LinkLocal, Reach::Special];
            assert!(!kinds.into_iter().any(|kind| all(wide, kind)), "{wide}");
        }
        assert!(holds("192.0.2.7", "192.0.2.7") && !holds("192.0.2.7", "192.0.2.6"));
        assert!(holds("2001:db8::/33", "2001:db8:7fff::") && !holds("2001:db8::/33", "2001:db8:8000::"));
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "10.0.0.0/+8", "::ffff:10.0.0.0/104", "a/8"]
        {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn however_it_is_written_an_address_is_what_it_is(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            prop_assert_eq!(reach(address.to_ipv6_mapped().into()), reach(address.into()));
            let [a, b, c, d] = address.octets().map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            prop_assert_eq!(reach(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low).into()), reach(address.into()));
            prop_assert_eq!(translated(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low).into()), Some(address.into()));
        }
    }
}
