//! A host that is asked for. Only what is public can be had: whoever asks is inside, or reads what is.

use std::fmt;

use sandbox_egress::{Decision, Effect, Host, Protocol, Reach, Rule, Rules, Target, looks_private, reach};

/// Where web servers listen, if nothing else is said.
const WEB: [u16; 2] = [80, 443];

/// A host and ports of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    host: Host,
    ports: Vec<u16>,
}

impl Wanted {
    /// From `example.com`, `example.com:8080` or a URL.
    pub fn read(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once("://").unwrap_or(("", text.trim()));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        // An address of the sixth version is often written without brackets.
        if let Ok(host @ Host::Address(_)) = authority.parse::<Host>() {
            return Some(Self { host, ports: ports(scheme, None) });
        }
        let said = Target::from_authority(authority, None).ok();
        let target = said.clone().or_else(|| Target::from_authority(authority, Some(WEB[1])).ok())?;
        Some(Self { host: target.host, ports: ports(scheme, said.map(|target| target.port)) })
    }

    /// Whether it is the port alone that makes no sense.
    pub fn has_wrong_port(text: &str) -> bool {
        let rest = text.trim().split_once("://").map_or(text.trim(), |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit_once(':').is_some_and(|(host, _)| host.parse::<Host>().is_ok())
    }

    /// Whether it leads to this machine or into a private network, as far as that can be told from the words. Where a name
    /// leads is looked at with each connection.
    pub fn is_private(&self) -> bool {
        match &self.host {
            Host::Address(address) => reach(*address) != Reach::Public,
            Host::Name(name) => looks_private(name.as_str()),
        }
    }

    /// Whether these rules let all of it be reached.
    pub fn is_allowed(&self, rules: &Rules) -> bool {
        let target = |&port| Target::tcp(self.host.clone(), port);
        self.ports.iter().map(target).all(|target| matches!(rules.decide(&target), Decision::Allowed { .. }))
    }

    /// Whether these rules let it be reached wherever it leads once it was granted beyond those of a policy.
    pub fn may_be_granted(&self, rules: &Rules, policy: &Rules) -> bool {
        let granted = policy.with_granted(vec![self.rule("somebody")]);
        let target = |&port| Target::tcp(self.host.clone(), port);
        let named = matches!(self.host, Host::Name(_));
        self.ports.iter().map(target).all(|target| match (rules.decide(&target), granted.decide(&target)) {
            (Decision::Allowed { scope, .. }, Decision::Allowed { scope: granted, .. }) => {
                (!named || scope.is_all_that_is_public()) && scope.denies_no_more_than(&granted)
            }
            // What a policy denies in spite of a grant is not reached by it.
            (Decision::Allowed { .. }, Decision::Denied { .. }) => true,
            (Decision::Denied { .. }, _) => false,
        })
    }

    /// The rule that lets it be reached.
    pub fn rule(&self, by: &str) -> Rule {
        Rule {
            name: format!("granted by {by}"),
            effect: Effect::Allow,
            hosts: self.host.to_string().parse().into_iter().collect(),
            ports: self.ports.iter().map(|&port| port..=port).collect(),
            protocol: Protocol::Tcp,
            within: Vec::new(),
        }
    }
}

fn ports(scheme: &str, said: Option<u16>) -> Vec<u16> {
    match (said, scheme) {
        (Some(port), _) => vec![port],
        (None, "https" | "wss") => vec![443],
        (None, "http" | "ws") => vec![80],
        (None, "ssh") => vec![22],
        (None, _) => WEB.to_vec(),
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        let word = if ports.len() == 1 { "port" } else { "ports" };
        write!(f, "{} ({word} {})", self.host, ports.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_in_the_forms_that_people_write() {
        for (text, told) in [
            ("example.com", "example.com (ports 80 and 443)"),
            ("https://Example.com/x?y", "example.com (port 443)"),
            ("example.com:8080", "example.com (port 8080)"),
            ("ssh://example.com", "example.com (port 22)"),
            ("8.8.8.8:53", "8.8.8.8 (port 53)"),
        ] {
            assert_eq!(Wanted::read(text).map(|wanted| wanted.to_string()).as_deref(), Some(told), "{text}");
        }
        for text in ["", "http://user@example.com/", "a b", "example.com:0", "example.com:x", "*"] {
            assert_eq!(Wanted::read(text), None, "{text}");
            assert_eq!(Wanted::has_wrong_port(text), text.starts_with("example.com:"), "{text}");
        }
    }

    #[test]
    fn a_rule_for_it_allows_it_and_nothing_else() {
        let wanted = Wanted::read("example.com:8080").unwrap_or_else(|| panic!("a host"));
        let rules = Rules(vec![wanted.rule("somebody")]);
        assert!(wanted.is_allowed(&rules));
        assert!(Wanted::read("example.com").is_some_and(|other| !other.is_allowed(&rules)));
        assert!(Wanted::read("a.example.com:8080").is_some_and(|other| !other.is_allowed(&rules)));
    }

    #[test]
    fn who_may_be_reached_at_some_addresses_only_is_not_granted_for_all() {
        let wanted = Wanted::read("example.com:8080").unwrap_or_else(|| panic!("a host"));
        let mut rule = wanted.rule("the operator");
        let policy = Rules::default();
        assert!(wanted.may_be_granted(&Rules(vec![rule.clone()]), &policy));
        rule.within = "93.184.216.0/24".parse().into_iter().collect();
        let rules = Rules(vec![rule]);
        assert!(wanted.is_allowed(&rules) && !wanted.may_be_granted(&rules, &policy));
    }

    #[test]
    fn addresses_that_the_ceiling_alone_denies_are_not_reached_by_a_grant() {
        let wanted = Wanted::read("example.com:8080").unwrap_or_else(|| panic!("a host"));
        let allow = wanted.rule("the operator");
        let hosts = ["93.0.0.0/8", "bad.example"].iter().flat_map(|host| host.parse()).collect();
        let deny = Rule { effect: Effect::Deny, hosts, ..allow.clone() };
        let ceiling = Rules(vec![deny.clone(), allow]);
        assert!(!wanted.may_be_granted(&ceiling, &Rules::default()), "a sandbox from before the ceiling");
        assert!(wanted.may_be_granted(&ceiling, &Rules(vec![deny])), "what the policy denies too stays denied");
    }
}
