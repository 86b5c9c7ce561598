//! What holds once something was granted beyond a policy: everything that the policy allows, what was granted, and still
//! no address that the policy denies.

use crate::{Effect, Rule, Rules};

impl Rules {
    /// These with what was granted. It decides before them, or what they deny by name could never be granted.
    pub fn with_granted(&self, granted: Vec<Rule>) -> Self {
        if granted.is_empty() {
            return self.clone();
        }
        let bounds = self.0.iter().filter_map(bound);
        Self(bounds.chain(granted).chain(self.0.iter().cloned()).collect())
    }
}

/// The addresses that a rule denies, whatever else it denies with them.
fn bound(rule: &Rule) -> Option<Rule> {
    let hosts: Vec<_> = rule.hosts.iter().filter(|pattern| pattern.is_address()).cloned().collect();
    let is_bound = rule.effect == Effect::Deny && !hosts.is_empty();
    is_bound.then(|| Rule { hosts, ..rule.clone() })
}

#[cfg(test)]
mod tests {
    use sandbox_core::Policy;

    use super::*;
    use crate::{Decision, Protocol};

    fn rule(effect: Effect, hosts: &[&str], port: u16) -> Rule {
        Rule {
            name: hosts.join(" "),
            effect,
            hosts: hosts.iter().map(|host| host.parse().expect(host)).collect(),
            ports: vec![port..=port],
            protocol: Protocol::Tcp,
            within: Vec::new(),
        }
    }

    fn is_reached(rules: &Rules, target: &str, address: &str) -> bool {
        match rules.decide(&target.parse().expect(target)) {
            Decision::Allowed { scope, .. } => scope.admits(address.parse().expect(address), &[]).is_ok(),
            Decision::Denied { .. } => false,
        }
    }

    #[test]
    fn a_grant_passes_no_address_that_was_denied_together_with_a_name() {
        let own = Rules(vec![rule(Effect::Deny, &["93.0.0.0/8", "bad.example"], 80)]);
        let granted = ["a.example", "bad.example", "93.184.215.14"].map(|host| rule(Effect::Allow, &[host], 80));
        let rules = own.with_granted(granted.into());
        assert!(is_reached(&rules, "a.example:80", "1.1.1.1"));
        assert!(is_reached(&rules, "bad.example:80", "1.1.1.1"), "a name that was denied can be granted");
        for target in ["a.example:80", "bad.example:80", "93.184.215.14:80"] {
            assert!(!is_reached(&rules, target, "93.184.215.14"), "{target}");
        }
    }

    #[test]
    fn a_grant_passes_no_address_that_the_ceiling_denies_together_with_a_name() {
        let denied = serde_json::from_str(r#"[{"deny": ["93.0.0.0/8", "bad.example"]}]"#).expect("rules");
        let ceiling = Policy { network_rules: denied, ..Policy::preset("yolo-4").expect("a preset") };
        let policy = Policy::preset("yolo-2").expect("a preset").within(&ceiling);
        let rules = Rules::of_policy(&policy, &[]).expect("rules");
        let rules = rules.with_granted(vec![rule(Effect::Allow, &["a.example"], 8080)]);
        assert!(is_reached(&rules, "a.example:8080", "1.1.1.1"));
        assert!(!is_reached(&rules, "a.example:8080", "93.184.215.14"));
    }

    #[test]
    fn addresses_that_are_denied_on_other_ports_bound_no_grant() {
        let own = Rules(vec![rule(Effect::Deny, &["93.0.0.0/8", "bad.example"], 25)]);
        let rules = own.with_granted(vec![rule(Effect::Allow, &["a.example"], 80)]);
        assert!(is_reached(&rules, "a.example:80", "93.184.215.14"));
    }

    #[test]
    fn without_a_grant_rules_stay_in_their_order() {
        let own = Rules(vec![rule(Effect::Allow, &["93.184.215.14"], 80), rule(Effect::Deny, &["93.0.0.0/8"], 80)]);
        assert_eq!(own.with_granted(Vec::new()), own);
    }
}
