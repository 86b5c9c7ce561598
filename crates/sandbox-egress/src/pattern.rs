//! Which hosts a rule is about.

use std::{fmt, str::FromStr};

use crate::{
    address::{Network, NetworkError},
    host::{Host, HostError, Name},
};

/// Some hosts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// `*`: every name and every address.
    Any,
    /// `example.com`: this name only.
    Name(Name),
    /// `*.example.com`: every name beneath it, at any depth, and not `example.com` itself.
    Beneath(Name),
    /// `10.0.0.0/8`, `192.0.2.7`: whoever is named by one of these addresses.
    Addresses(Network),
}

/// What names no hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A star that is not the first part.
    #[error("`{0}`: a star can only be all there is, or the first part of a name, as in *.example.com")]
    Star(String),
    /// A host with its port.
    #[error("`{0}` has a port in it: write the host alone, and the port in `ports`")]
    Port(String),
    /// A block that says two things.
    #[error(transparent)]
    Block(NetworkError),
    /// No host.
    #[error(
        "`{text}`: {why}. Write example.com, *.example.com (which does not include example.com), 192.0.2.7 or 10.0.0.0/8"
    )]
    Host {
        /// What was written.
        text: String,
        /// What is wrong.
        why: HostError,
    },
}

impl Pattern {
    /// Whether it speaks of addresses, and of no name.
    pub fn is_address(&self) -> bool {
        !matches!(self, Self::Any | Self::Name(_) | Self::Beneath(_))
    }

    /// Whether this host is meant.
    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Name(name), Host::Name(host)) => name == host,
            (Self::Beneath(parent), Host::Name(host)) => host.is_beneath(parent),
            (Self::Addresses(network), Host::Address(address)) => network.holds(*address),
            _ => false,
        }
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let wrong = |why| PatternError::Host { text: text.to_owned(), why };
        if text == "*" {
            return Ok(Self::Any);
        }
        match text.parse() {
            Ok(network) => return Ok(Self::Addresses(network)),
            Err(error @ NetworkError::WithinBlock { .. }) => return Err(PatternError::Block(error)),
            Err(NetworkError::Malformed(_)) => {}
        }
        if text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) && text.parse::<Host>().is_err() {
            return Err(PatternError::Port(text.to_owned()));
        }
        let (name, beneath) = match text.strip_prefix("*.") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        if name.contains('*') {
            return Err(PatternError::Star(text.to_owned()));
        }
        match (name.parse().map_err(wrong)?, beneath) {
            (Host::Name(name), true) => Ok(Self::Beneath(name)),
            (Host::Name(name), false) => Ok(Self::Name(name)),
            (Host::Address(address), false) => {
                address.to_string().parse().map(Self::Addresses).map_err(|_| wrong(HostError::Malformed))
            }
            (Host::Address(_), true) => Err(PatternError::Star(text.to_owned())),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Name(name) => name.fmt(f),
            Self::Beneath(name) => write!(f, "*.{name}"),
            Self::Addresses(network) => network.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_what_they_say_and_no_more() {
        let table = [
            ("example.com", "example.com EXAMPLE.com. example.com.", "a.example.com example.org badexample.com"),
            ("*.example.com", "a.example.com a.b.example.com", "example.com badexample.com example.com.evil.org"),
            ("*.BÜCHER.example", "a.xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("*", "example.com 127.0.0.1 [::1]", ""),
            ("10.0.0.0/8", "10.1.2.3 [::ffff:10.1.2.3] 0xa.1", "11.0.0.1 a.example [::1]"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("[2001:db8::1]", "[2001:db8::1] 2001:db8:0::1", "[2001:db8::2]"),
        ];
        for (pattern, yes, no) in table {
            let parsed: Pattern = pattern.parse().expect(pattern);
            let matches = |host: &str| parsed.matches(&host.parse().expect(host));
            assert!(yes.split_whitespace().all(matches) && !no.split_whitespace().any(matches), "{pattern}");
            assert_eq!(parsed.to_string().parse(), Ok(parsed), "{pattern} is not read back");
        }
    }

    #[test]
    fn stars_elsewhere_are_refused() {
        for wrong in
            ["a*.com", "*a.com", "a.*.com", "**.com", "*.*.com", "*.", "*.10.0.0.1", "a.*", "", "http://a", "a:80"]
        {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }
}
