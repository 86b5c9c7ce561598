//! What a sandbox wants to connect to, whole.

use std::{fmt, str::FromStr};

use crate::host::{Host, HostError};

/// A host and a port, over a protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Who.
    pub host: Host,
    /// Where there.
    pub port: u16,
    /// How.
    pub protocol: Protocol,
}

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Protocol {
    Tcp,
    Udp,
}

/// What is no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The host is none.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The port is none.
    #[error("the port is missing, or is no number from 1 to 65535")]
    Port,
}

impl Target {
    /// A TCP target.
    pub fn tcp(host: Host, port: u16) -> Self {
        Self { host, port, protocol: Protocol::Tcp }
    }

    /// From `host:port`, as a client writes it after CONNECT; with a default where the port may be left out.
    pub fn from_authority(text: &str, default_port: Option<u16>) -> Result<Self, TargetError> {
        let (host, port) = match text.rsplit_once(':') {
            // A colon within brackets belongs to the address.
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (text, None),
        };
        // Without brackets one cannot tell where an address ends.
        if host.contains(':') && !host.starts_with('[') {
            return Err(HostError::Malformed.into());
        }
        let port = match port {
            Some(digits) => port_from(digits)?,
            None => default_port.ok_or(TargetError::Port)?,
        };
        Ok(Self::tcp(host.parse()?, port))
    }
}

/// Digits only: `parse` takes a sign too, and leading zeros could hide how long it is.
fn port_from(digits: &str) -> Result<u16, TargetError> {
    let plain = (1..=5).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    let port = digits.parse().ok().filter(|_| plain);
    port.filter(|&port| port != 0).ok_or(TargetError::Port)
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        Self::from_authority(text, None)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)?;
        match self.protocol {
            Protocol::Tcp => Ok(()),
            Protocol::Udp => f.write_str("/udp"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn authorities_are_read_one_way_only() {
        let table = [
            ("example.com:443", Some("example.com:443")),
            ("EXAMPLE.com.:443", Some("example.com:443")),
            ("[::1]:80", Some("[::1]:80")),
            ("0x7f.1:80", Some("127.0.0.1:80")),
            ("example.com", None),
            ("example.com:", None),
            ("example.com:0", None),
            ("example.com:65536", None),
            ("example.com:+80", None),
            ("example.com:000080", None),
            ("example.com:80:80", None),
            ("::1:80", None),
            ("[::1]", None),
            ("[::1]80", None),
            ("user@example.com:80", None),
            ("user:pass@example.com:80", None),
            ("example.com:80@evil.org:80", None),
            ("example.com:80/", None),
            ("example.com :80", None),
            ("", None),
            (":80", None),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse::<Target>().ok().map(|target| target.to_string()).as_deref(), expected, "{text}");
        }
        let found = Target::from_authority("[2606:4700::1]", Some(80)).map(|target| target.to_string());
        assert_eq!(found.as_deref(), Ok("[2606:4700::1]:80"));
    }

    proptest! {
        #[test]
        fn a_target_is_read_back_as_the_same(text in "[0-9a-zA-Z.:%\\[\\]@/ -]{0,40}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse::<Target>(), Ok(target));
            }
        }
    }
}
