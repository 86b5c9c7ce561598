//! How far connections of a sandbox may reach, as plain data. What a host name or a block of addresses is, the way out
//! knows: it reads these rules, and refuses those that say nothing.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Unexpected, Visitor},
};

use super::Policy;

/// How far connections may reach. "Public" never includes loopback, private, link-local or metadata addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Nowhere.
    None,
    /// Package registries and code hosts.
    Registries,
    /// Public web sites, package registries left out.
    Web,
    /// Public web sites and package registries.
    WebAndRegistries,
    /// Any public address and port.
    Public,
}

impl Network {
    /// What is in both.
    pub(super) fn within(self, ceiling: Self) -> Self {
        use Network::{None, Public, Registries, Web, WebAndRegistries};
        match (self, ceiling) {
            (Public, other) | (other, Public) => other,
            (WebAndRegistries, other) | (other, WebAndRegistries) => other,
            (Web, Web) => Web,
            (Registries, Registries) => Registries,
            (None | Web | Registries, None | Web | Registries) => None,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Registries => "package registries and code hosts",
            Self::Web => "public web, no package registries",
            Self::WebAndRegistries => "public web and package registries",
            Self::Public => "any public address",
        })
    }
}

/// One rule, as it is written: it allows or denies, never both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkRule {
    /// Host names (`example.com`, `*.example.com` for all beneath it, `*`), addresses, blocks of addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// The same, for what may not be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Which ports; none means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Ports>,
    /// Blocks of addresses that the names may lead to; none means public ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<String>,
}

/// A port, or the first and the last of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Ports {
    /// One.
    One(u16),
    /// `8000-8010`.
    Range(String),
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WrittenPorts)
    }
}

struct WrittenPorts;

impl Visitor<'_> for WrittenPorts {
    type Value = Ports;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a port from 1 to 65535, or the first and the last as in \"8000-8010\"")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Ports, E> {
        let wrong = |_| de::Error::invalid_value(Unexpected::Unsigned(number), &self);
        u16::try_from(number).map(Ports::One).map_err(wrong)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Ports, E> {
        let wrong = |_| de::Error::invalid_value(Unexpected::Signed(number), &self);
        u16::try_from(number).map(Ports::One).map_err(wrong)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Ports, E> {
        Ok(Ports::Range(text.to_owned()))
    }
}

/// Of rules for two policies that must both hold: whatever either denies is denied, and what both allow in the same words
/// is allowed. Whether one rule is part of another cannot be told from the words.
pub(super) fn rules_within(policy: &Policy, ceiling: &Policy) -> Vec<NetworkRule> {
    let (rules, bounds) = (&policy.network_rules, &ceiling.network_rules);
    let denied = bounds.iter().chain(rules).filter(|rule| !rule.deny.is_empty());
    let allowed = rules.iter().filter(|rule| rule.deny.is_empty() && bounds.contains(rule));
    // Registries alone are also reached by ssh, the web with them is not.
    let no_ssh = NetworkRule { deny: vec!["*".into()], ports: vec![Ports::One(22)], ..NetworkRule::default() };
    let only_by_web = matches!(
        (policy.network, ceiling.network),
        (Network::Registries, Network::WebAndRegistries) | (Network::WebAndRegistries, Network::Registries)
    );
    let mut left: Vec<NetworkRule> = Vec::new();
    for rule in only_by_web.then_some(&no_ssh).into_iter().chain(denied).chain(allowed) {
        if !left.contains(rule) {
            left.push(rule.clone());
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_lists_of_rules_only_what_both_allow_is_left() {
        let rule = |json: &str| serde_json::from_str::<NetworkRule>(json).unwrap_or_else(|error| panic!("{error}"));
        let both = rule(r#"{"allow": ["a.example"], "ports": [443, "8000-8010"]}"#);
        let (ours, theirs) = (rule(r#"{"allow": ["b.example"]}"#), rule(r#"{"allow": ["c.example"]}"#));
        let (denied, never) = (rule(r#"{"deny": ["x.example"]}"#), rule(r#"{"deny": ["y.example"]}"#));
        let policy = |network_rules| Policy { network_rules, ..Policy::default() };
        let ours = policy(vec![both.clone(), ours, denied.clone()]);
        let left = rules_within(&ours, &policy(vec![theirs, never.clone(), both.clone()]));
        assert_eq!(left, [never, denied, both]);
        let build = Policy::preset("build").unwrap_or_default();
        assert_eq!(rules_within(&build, &Policy::default()).len(), 1, "the web is not reached by ssh");
    }
}
