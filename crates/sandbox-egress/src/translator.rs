//! Translators from IPv6 to IPv4 with a prefix of their own (NAT64).
//!
//! In a network that has only IPv6, an IPv4 address is reached within an IPv6 one, behind a prefix that the network
//! chooses. Such an address looks public and may lead into a private network. The well-known prefix is known to
//! [`crate::reach`]; others are learned as RFC 7050 says: a name that has only IPv4 addresses, known to all, is asked for
//! its IPv6 ones, and whoever makes some up tells the prefix.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::address::{Reach, reach};

/// The name that is asked for (RFC 7050), and the only addresses that it has.
pub(crate) const KNOWN_NAME: &str = "ipv4only.arpa.";
const KNOWN: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];
/// How long a prefix can be (RFC 6052, 2.2).
const LENGTHS: [u8; 6] = [96, 64, 56, 48, 40, 32];

/// The translators of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Translators {
    pub known: Vec<Translator>,
    pub others: Others,
}

/// Whether there may be others than those that are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Others {
    /// The network has told all.
    None,
    /// Nobody has answered.
    #[default]
    Perhaps,
}

/// One translator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translator {
    prefix: u128,
    length: u8,
}

impl Translators {
    /// All that an address may become on its way.
    pub fn behind(&self, address: Ipv6Addr) -> Vec<Ipv4Addr> {
        let known = self.known.iter().filter_map(|one| one.translate(address));
        match self.others {
            Others::None => known.collect(),
            Others::Perhaps => known.chain(forms(address)).collect(),
        }
    }
}

/// The addresses that this one has the form of (RFC 6052, 2.2), for any prefix.
///
/// While it is not known what a network translates, these are taken for what is behind it. To refuse IPv6 altogether then
/// would cut off machines whose name servers do not know the question, and to allow all of it would open private networks
/// to whoever can keep a name server from answering. Addresses of public servers hardly ever have the form of a private
/// one: the ninth byte must be zero and so must all that follows, and short ones such as `2606:4700::1111` would
/// become an address that is not for use, which leads nowhere.
fn forms(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let octets = address.octets();
    // Of addresses that are not public rules speak themselves.
    let public = reach(address.into()) == Reach::Public && octets[8] == 0;
    let rest = |length: u8| if length == 96 { 16 } else { usize::from(length / 8) + 5 };
    let fits = move |length: &u8| public && octets[rest(*length)..].iter().all(|octet| *octet == 0);
    let forms = LENGTHS.into_iter().filter(fits).map(move |length| inside(address, length));
    forms.filter(|inside| reach((*inside).into()) != Reach::Special)
}

impl Translator {
    /// Those that this answer for the known name tells of. There is more than one only if it can be read in more than one
    /// way, and then all are believed.
    pub fn told_by(answer: Ipv6Addr) -> impl Iterator<Item = Self> {
        let told = LENGTHS.into_iter().filter(move |&length| KNOWN.contains(&inside(answer, length)));
        told.map(move |length| Self { prefix: prefix(answer, length), length })
    }

    /// What an address becomes behind it.
    pub fn translate(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        (prefix(address, self.length) == self.prefix).then(|| inside(address, self.length))
    }
}

fn prefix(address: Ipv6Addr, length: u8) -> u128 {
    address.to_bits().checked_shr(128 - u32::from(length)).unwrap_or(0)
}

/// The address behind a prefix of this length. The ninth byte belongs to nobody.
fn inside(address: Ipv6Addr, length: u8) -> Ipv4Addr {
    let mut inside = [0; 4];
    let octets = address.octets().into_iter().enumerate().skip(usize::from(length / 8));
    let octets = octets.filter(|(at, _)| *at != 8).map(|(_, octet)| octet);
    inside.iter_mut().zip(octets).for_each(|(to, from)| *to = from);
    inside.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of RFC 6052, 2.4, for 192.0.2.33.
    const WRITTEN: [(&str, &str); 6] = [
        ("2001:db8:c000:aa::", "2001:db8:c000:221::"),
        ("2001:db8:1c0:0:aa::", "2001:db8:1c0:2:21::"),
        ("2001:db8:122:c000:0:aa00::", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:3c0:0:aa::", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344:c0:0:aa00::", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::c000:aa", "2001:db8:122:344::192.0.2.33"),
    ];

    #[test]
    fn a_prefix_of_any_length_is_learned_and_what_is_behind_it_is_found() {
        for (answer, address) in WRITTEN {
            let (answer, address) = (answer.parse().expect(answer), address.parse().expect(address));
            let told: Vec<_> = Translator::told_by(answer).collect();
            assert_eq!(told.len(), 1, "{answer}");
            assert_eq!(told[0].translate(address), Some(Ipv4Addr::new(192, 0, 2, 33)), "{answer}");
            assert_eq!(told[0].translate("2606:4700::1111".parse().expect("an address")), None);
        }
    }

    #[test]
    fn what_has_the_form_of_a_private_address_is_one_while_nobody_says_what_is_translated() {
        let (unknown, told) = (Translators::default(), Translators { others: Others::None, ..Translators::default() });
        for (address, inside) in [
            ("2a00:1098:2c:1::10.0.0.1", "10.0.0.1"),
            ("2a00:1098:2c:1::93.184.215.14", "93.184.215.14"),
            ("2a00:1098:a00:1::", "10.0.0.1"),
            ("2a00:1098:10a:0:1::", "10.0.0.1"),
            ("2a00:1098:2c:a00:0:100::", "10.0.0.1"),
            ("2a00:1098:2c:10a:0:1::", "10.0.0.1"),
            ("2a00:1098:2c:1:a:0:100:0", "10.0.0.1"),
        ] {
            let (address, inside): (Ipv6Addr, Ipv4Addr) =
                (address.parse().expect(address), inside.parse().expect(inside));
            assert!(unknown.behind(address).contains(&inside), "{address}: {:?}", unknown.behind(address));
            assert!(told.behind(address).is_empty());
        }
        for address in ["2606:4700::1111", "2a00:1450:4001:80b::200e", "fd00::10.0.0.1", "2a00:1098:2c:1:100::10.0.0.1"]
        {
            assert!(unknown.behind(address.parse().expect(address)).is_empty(), "{address}");
        }
    }

    #[test]
    fn other_answers_tell_nothing() {
        for answer in ["::1", "2001:db8::1", "2001:db8::192.0.0.172", "::"] {
            assert_eq!(Translator::told_by(answer.parse().expect(answer)).count(), 0, "{answer}");
        }
    }
}
