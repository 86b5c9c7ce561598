//! Who a sandbox wants to reach: a name or an address, checked, in one form only.
//!
//! There are many ways to write the same host, and a rule that knows one of them is no rule. Browsers' own grammar is used
//! (the `url` crate): it knows international names, and IPv4 addresses as one number, in octal or in hexadecimal. What
//! else could be read in two ways is refused.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

use crate::address::plain;

/// A host. Equal hosts are written the same way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// By name.
    Name(Name),
    /// By address.
    Address(IpAddr),
}

/// A name of the domain name system: lower case, ASCII, without the last dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// What is no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum HostError {
    #[error("a host name is empty, or has a part that is")]
    Empty,
    #[error("a host name is longer than the 253 characters, or the 63 of one part, that a name may have")]
    TooLong,
    #[error("a host name holds a character that none may have")]
    Character,
    #[error("an address with a zone (%) names a cable of this machine")]
    Zone,
    #[error("neither a host name nor an address")]
    Malformed,
}

impl Host {
    /// An address, in its plain form.
    pub fn from_address(address: IpAddr) -> Self {
        Self::Address(plain(address))
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        if text.contains('%') {
            // Either a zone or an escape; a host needs neither.
            return Err(if text.contains(':') { HostError::Zone } else { HostError::Character });
        }
        let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if bracketed.is_some() || text.contains(':') {
            let address: Ipv6Addr = bracketed.unwrap_or(text).parse().map_err(|_| HostError::Malformed)?;
            return Ok(Self::from_address(address.into()));
        }
        // A name may end with one dot, and is the same without it.
        let text = text.strip_suffix('.').unwrap_or(text);
        match url::Host::parse(text).map_err(|error| reason(text, error))? {
            url::Host::Ipv4(address) => Ok(Self::from_address(address.into())),
            url::Host::Ipv6(address) => Ok(Self::from_address(address.into())),
            url::Host::Domain(name) => Name::checked(name).map(Self::Name),
        }
    }
}

/// The parser says little about what is wrong.
fn reason(text: &str, error: url::ParseError) -> HostError {
    match error {
        url::ParseError::EmptyHost => HostError::Empty,
        _ if text.split('.').any(str::is_empty) => HostError::Empty,
        url::ParseError::InvalidDomainCharacter => HostError::Character,
        _ => HostError::Malformed,
    }
}

impl Name {
    fn checked(name: String) -> Result<Self, HostError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        if name.len() > 253 || name.split('.').any(|part| part.len() > 63) {
            return Err(HostError::TooLong);
        }
        if name.split('.').any(str::is_empty) {
            return Err(HostError::Empty);
        }
        if !name.split('.').all(|part| part.bytes().all(allowed)) {
            return Err(HostError::Character);
        }
        Ok(Self(name))
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a name beneath `parent`, not that name itself.
    pub fn is_beneath(&self, parent: &Self) -> bool {
        self.0.strip_suffix(&parent.0).is_some_and(|rest| rest.ends_with('.') && rest.len() > 1)
    }
}

impl FromStr for Name {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        match text.parse()? {
            Host::Name(name) => Ok(name),
            Host::Address(_) => Err(HostError::Malformed),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> String {
        text.parse::<Host>().map_or_else(|error| format!("{error:?}"), |host| host.to_string())
    }

    #[test]
    fn every_way_to_write_a_host_leads_to_one() {
        let table = [
            ("example.com", "example.com EXAMPLE.com example.com. exaMple.com Ｅxample.com example。com"),
            ("xn--bcher-kva.example", "bücher.example BÜCHER.example xn--bcher-kva.example XN--BCHER-KVA.example"),
            ("127.0.0.1", "127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0x7f.1 017700000001 0177.0.0.1 127.0.0.1."),
            ("127.0.0.1", "[::ffff:127.0.0.1] ::ffff:7f00:1 １２７.0.0.1 127。0。0。1 0x7f.0x0.0x0.0x1 0X7F.1"),
            ("169.254.169.254", "169.254.169.254 2852039166 0xa9fea9fe 0251.0376.0251.0376 [::ffff:a9fe:a9fe]"),
            ("[::1]", "[::1] ::1 0:0:0:0:0:0:0:1 [0000::0001]"),
            ("localhost", "localhost LOCALHOST localhost."),
            ("my_bucket.s3.example", "my_bucket.s3.example"),
        ];
        for (expected, forms) in table {
            for form in forms.split(' ') {
                assert_eq!(parsed(form), expected, "{form}");
            }
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let table = [
            ("Zone", "fe80::1%eth0|[fe80::1%25eth0]|::1%lo"),
            ("Empty", "|.|..|a..b|.example.com|example.com.."),
            ("Character", "exam%70le.com|a b|a@b|user:pass@h|a/b|a\\b|a\0b|a?b|a#b|a\tb|a\nb|a*b|*.a|<a>|a,b"),
            ("TooLong", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.com"),
            (
                "Malformed",
                "[::1|::1]|[127.0.0.1]|1.2.3.4.5|256.0.0.1|0x7f.1.2.3.4|127.0.0.0x100|1:2|[]|[::1]x|a:80|0xg.1",
            ),
        ];
        for (expected, forms) in table {
            for form in forms.split('|') {
                let found = parsed(form);
                // Which of the two it is called matters to nobody, as long as it is refused.
                let refused = ["Character", "Malformed", "Empty", "Zone", "TooLong"].contains(&found.as_str());
                assert!(refused, "{form:?} is taken as {found}");
                if !["Character", "Malformed", "Empty"].contains(&expected) {
                    assert_eq!(found, expected, "{form:?}");
                }
            }
        }
        assert_eq!(parsed(&"a.".repeat(127)), "a.".repeat(127)[..253]);
        assert_eq!(parsed(&"a.".repeat(128)), "TooLong");
    }

    #[test]
    fn beneath_is_a_whole_part_and_not_the_same() {
        let beneath =
            |name: &str, parent: &str| name.parse::<Name>().expect(name).is_beneath(&parent.parse().expect(parent));
        assert!(beneath("a.example.com", "example.com") && beneath("a.b.example.com", "example.com"));
        assert!(!beneath("example.com", "example.com") && !beneath("badexample.com", "example.com"));
        assert!(!beneath("com", "example.com"));
    }

    proptest! {
        #[test]
        fn a_host_that_was_written_down_is_read_back_as_the_same(text in "\\PC{0,40}") {
            if let Ok(host) = text.parse::<Host>() {
                prop_assert_eq!(host.to_string().parse::<Host>(), Ok(host));
            }
        }

        #[test]
        fn anything_that_looks_like_a_host_is_one_or_is_refused(text in "[0-9a-fxX.:%\\[\\]@ -]{0,30}") {
            if let Ok(host) = text.parse::<Host>() {
                prop_assert_eq!(host.to_string().parse::<Host>(), Ok(host));
            }
        }
    }
}
