//! What a policy says of connections, read once and turned into rules. What says nothing is refused with the reason.

use std::ops::RangeInclusive;

use sandbox_core::policy::{NetworkRule, Policy, Ports};

use crate::{
    Mirror, Network, NetworkError, Pattern, PatternError, Protocol,
    resolver::THIS_MACHINE,
    rules::{Effect, Rule, Rules},
};

/// A rule that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// It allows and denies, or neither.
    #[error("a network rule has hosts either in `allow` or in `deny`")]
    Effect,
    /// That is no host.
    #[error("the network rule for `{host}` cannot be read: {why}")]
    Host {
        /// What was written.
        host: String,
        /// What is wrong with it.
        why: PatternError,
    },
    /// That is no block of addresses.
    #[error("`{block}` in `within` of a network rule cannot be read: {why}")]
    Within {
        /// What was written.
        block: String,
        /// What is wrong with it.
        why: NetworkError,
    },
    /// Those are no ports.
    #[error("`{0}` names no ports: write a number from 1 to 65535, or the first and the last as in `8000-8010`")]
    Ports(String),
    /// No port of this machine.
    #[error("`host_ports` has 0, which is no port: write numbers from 1 to 65535")]
    HostPort,
    /// Where something may lead that may not be reached.
    #[error(
        "a network rule has `deny` and `within`: `within` says where a name that is allowed may lead. To deny addresses, \
         write them in `deny`"
    )]
    DenyWithin,
    /// Inside, that is the sandbox.
    #[error(
        "a network rule has `{0}`, which inside is the sandbox itself. For a port of this machine write host_ports = [PORT]; \
         inside it is host.internal:PORT"
    )]
    Localhost(String),
}

impl Rules {
    /// Those of a policy: first its own rules, then what its network is by name.
    pub fn of_policy(policy: &Policy, mirrors: &[Mirror]) -> Result<Self, RuleError> {
        let mut rules: Vec<Rule> = policy.network_rules.iter().map(read).collect::<Result<_, _>>()?;
        if policy.host_ports.contains(&0) {
            return Err(RuleError::HostPort);
        }
        if !policy.host_ports.is_empty() {
            let ports = policy.host_ports.iter().map(|&port| port..=port).collect();
            rules.push(this_machine(ports));
        }
        rules.extend(Self::of_network(policy.network, mirrors).0);
        Ok(Self(rules))
    }
}

fn read(written: &NetworkRule) -> Result<Rule, RuleError> {
    let (effect, hosts) = match (&written.allow[..], &written.deny[..]) {
        (hosts @ [_, ..], []) => (Effect::Allow, hosts),
        ([], hosts @ [_, ..]) => (Effect::Deny, hosts),
        _ => return Err(RuleError::Effect),
    };
    if effect == Effect::Deny && !written.within.is_empty() {
        return Err(RuleError::DenyWithin);
    }
    let is_sandbox = |host: &&String| effect == Effect::Allow && (*host == "localhost" || host.ends_with(".localhost"));
    if let Some(host) = hosts.iter().find(is_sandbox) {
        return Err(RuleError::Localhost(host.clone()));
    }
    let host = |host: &String| host.parse::<Pattern>().map_err(|why| RuleError::Host { host: host.clone(), why });
    let block = |block: &String| block.parse().map_err(|why| RuleError::Within { block: block.clone(), why });
    let shown = hosts.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(" ");
    let word = if effect == Effect::Allow { "allow" } else { "deny" };
    Ok(Rule {
        name: format!("{word} {shown}{}", if hosts.len() > 3 { " …" } else { "" }),
        effect,
        hosts: hosts.iter().map(host).collect::<Result<_, _>>()?,
        ports: written.ports.iter().map(ports).collect::<Result<_, _>>()?,
        protocol: Protocol::Tcp,
        within: written.within.iter().map(block).collect::<Result<_, _>>()?,
    })
}

fn ports(written: &Ports) -> Result<RangeInclusive<u16>, RuleError> {
    let text = match written {
        Ports::One(0) => return Err(RuleError::Ports("0".to_owned())),
        Ports::One(port) => return Ok(*port..=*port),
        Ports::Range(text) => text,
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err(RuleError::Ports(text.clone())),
    }
}

/// Under its name, for inside 127.0.0.1 is the sandbox itself.
fn this_machine(ports: Vec<RangeInclusive<u16>>) -> Rule {
    Rule {
        name: "ports of this machine".into(),
        effect: Effect::Allow,
        hosts: [THIS_MACHINE].iter().filter_map(|name| name.parse().ok()).collect(),
        ports,
        protocol: Protocol::Tcp,
        within: ["127.0.0.0/8", "::1/128"].iter().filter_map(|block| block.parse::<Network>().ok()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decision;

    fn rules(toml: &str) -> Result<Rules, String> {
        let written: Vec<NetworkRule> = serde_json::from_str(toml).map_err(|error| error.to_string())?;
        let policy = Policy { network_rules: written, ..Policy::preset("full_isolation").unwrap_or_default() };
        Rules::of_policy(&policy, &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_policy_says_is_what_is_decided() {
        let rules = rules(
            r#"[{"deny": ["bad.example.com"]},
                {"allow": ["*.example.com", "10.0.0.0/8"], "ports": [443, "8000-8010"], "within": ["10.0.0.0/8"]}]"#,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        let allowed = |target: &str| {
            let target = target.parse().unwrap_or_else(|_| panic!("{target}"));
            matches!(rules.decide(&target), Decision::Allowed { .. })
        };
        assert!(allowed("a.example.com:443") && allowed("a.example.com:8005") && allowed("10.1.1.1:443"));
        for denied in ["bad.example.com:443", "a.example.com:80", "other.com:443", "11.0.0.1:443", "host.internal:443"]
        {
            assert!(!allowed(denied), "{denied}");
        }
    }

    #[test]
    fn rules_that_say_nothing_are_refused() {
        for (json, says) in [
            (r#"[{}]"#, "either"),
            (r#"[{"allow": ["a"], "deny": ["b"]}]"#, "either"),
            (r#"[{"allow": ["a b"]}]"#, "a b"),
            (r#"[{"allow": ["a"], "ports": ["9-1"]}]"#, "9-1"),
            (r#"[{"allow": ["a"], "ports": ["http"]}]"#, "http"),
            (r#"[{"allow": ["a"], "within": ["10.0.0.0/99"]}]"#, "10.0.0.0/99"),
            (r#"[{"alow": ["a"]}]"#, "alow"),
            (r#"[{"allow": ["a"], "ports": [0]}]"#, "from 1 to 65535"),
            (r#"[{"allow": ["a"], "ports": ["0-9"]}]"#, "from 1 to 65535"),
            (r#"[{"allow": ["a"], "ports": [70000]}]"#, "a port from 1 to 65535"),
            (r#"[{"deny": ["a"], "within": ["10.0.0.0/8"]}]"#, "`deny` and `within`"),
            (r#"[{"allow": ["a"], "within": ["10.0.0.1/8"]}]"#, "write 10.0.0.0/8 for all of it, or 10.0.0.1"),
            (r#"[{"deny": ["10.0.0.1/8"]}]"#, "write 10.0.0.0/8 for all of it, or 10.0.0.1"),
            (r#"[{"allow": ["localhost"]}]"#, "host_ports = [PORT]"),
            (r#"[{"allow": ["example.com:443"]}]"#, "the port in `ports`"),
        ] {
            let refused = rules(json).err().unwrap_or_default();
            assert!(refused.contains(says), "{json}: {refused}");
        }
    }

    #[test]
    fn ports_of_this_machine_are_reached_by_its_name_only() {
        let policy = Policy { host_ports: [5432].into(), ..Policy::preset("development").unwrap_or_default() };
        let none = Policy { host_ports: [0].into(), ..policy.clone() };
        assert!(Rules::of_policy(&none, &[]).is_err_and(|error| error.to_string().contains("host_ports")));
        let rules = Rules::of_policy(&policy, &[]).unwrap_or_default();
        let decide = |target: &str, address: &str| match rules.decide(&target.parse().unwrap_or_else(|_| panic!())) {
            Decision::Allowed { scope, .. } => scope.admits(address.parse().unwrap_or_else(|_| panic!()), &[]).is_ok(),
            Decision::Denied { .. } => false,
        };
        assert!(decide("host.internal:5432", "127.0.0.1") && !decide("host.internal:5433", "127.0.0.1"));
        assert!(!decide("127.0.0.1:5432", "127.0.0.1") && !decide("rebound.example:5432", "127.0.0.1"));
    }
}
