//! Under which name the ports of a sandbox are opened: `KEY.SESSION.localhost`.
//!
//! The session id alone would not do: it is no secret. Every user of this machine sees it as the name of a cgroup, and
//! in the command lines of `sandbox-mcp exec --session` and `sandbox-mcp open`. So the name has a key of its own.

use sandbox_core::SessionId;

/// Bytes of chance in a key.
const KEY: usize = 12;

/// The host name of a sandbox's previews. Whoever knows it may look, so it is not shown where others read.
#[derive(Clone)]
pub struct Name(String);

impl Name {
    /// A new one. Fails only where the system has no source of chance.
    pub fn random(session: &SessionId) -> Result<Self, getrandom::Error> {
        let mut key = [0u8; KEY];
        getrandom::fill(&mut key)?;
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(format!("{key}.{}.localhost", label(session))))
    }

    /// The part that nobody can guess.
    pub fn key(&self) -> &str {
        self.0.split_once('.').map_or(self.0.as_str(), |(key, _)| key)
    }

    /// The address of a port on this machine.
    pub fn url(&self, port: u16) -> String {
        format!("http://{}/", self.authority(port))
    }

    /// What a request for it names: host and port.
    pub fn authority(&self, port: u16) -> String {
        format!("{}:{port}", self.0)
    }

    /// Whether this is exactly that, in letters of either case. How long the comparison takes says nothing about how
    /// much of a guess is right.
    pub fn is_named(&self, port: u16, told: &[u8]) -> bool {
        let expected = self.authority(port);
        let difference = |(one, other): (u8, &u8)| one ^ other.to_ascii_lowercase();
        expected.len() == told.len() && expected.bytes().zip(told).map(difference).fold(0, |all, one| all | one) == 0
    }
}

/// A session id as a part of a host name: those have no `_`, and no capitals.
fn label(session: &SessionId) -> String {
    let letter = |c: char| if c == '_' { '-' } else { c.to_ascii_lowercase() };
    session.as_str().chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sandbox_core::UserId;

    fn session() -> SessionId {
        let user: UserId = "Ann_Example.Org@a-very-long.host".parse().unwrap();
        SessionId::random(&user).unwrap()
    }

    #[test]
    fn every_label_of_a_name_is_one_that_hosts_may_have() {
        let name = Name::random(&session()).unwrap();
        for label in name.0.split('.') {
            assert!((1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-'), "{label}");
            assert!(label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{label}");
        }
        assert!(name.0.ends_with(".localhost") && name.0.len() < 253);
    }

    #[test]
    fn the_same_sandbox_gets_another_key_each_time() {
        let session = session();
        assert_ne!(Name::random(&session).unwrap().0, Name::random(&session).unwrap().0);
    }

    #[test]
    fn only_the_whole_name_with_its_port_is_the_name() {
        let name = Name::random(&session()).unwrap();
        let whole = name.authority(4000);
        assert!(name.is_named(4000, whole.as_bytes()));
        assert!(name.is_named(4000, whole.to_ascii_uppercase().as_bytes()));
        assert!(!name.is_named(4001, whole.as_bytes()));
        let (key, rest) = whole.split_once('.').unwrap();
        let host = whole.strip_suffix(":4000").unwrap();
        let others = [
            "",
            host,
            rest,
            key,
            "localhost:4000",
            "127.0.0.1:4000",
            &format!("{host}.:4000"),
            &format!("x{whole}"),
            &format!("{whole}0"),
            &format!("{}.{rest}", "0".repeat(24)),
            &format!("user@{whole}"),
        ];
        for other in others {
            assert!(!name.is_named(4000, other.as_bytes()), "{other}");
        }
    }
}
