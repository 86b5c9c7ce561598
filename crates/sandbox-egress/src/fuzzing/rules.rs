//! Any rules, any target, any address.

use std::net::IpAddr;

use crate::{
    Decision, Effect, Host, Network, Pattern, Protocol, Reach, Reason, Rule, Rules, Scope, Target,
    address::{plain, translated},
    reach,
};

/// Names that have something to do with each other.
const NAMES: [&str; 4] = ["a.example", "b.a.example", "example", "badexample"];
/// Addresses of every kind; others are made from bytes.
const ADDRESSES: [&str; 12] = [
    "127.0.0.1",
    "10.0.0.1",
    "169.254.169.254",
    "168.63.129.16",
    "198.18.0.1",
    "8.8.8.8",
    "::1",
    "fd00::1",
    "fe80::1",
    "64:ff9b::a00:1",
    "::ffff:10.0.0.1",
    "2606:4700::1111",
];

/// Reads choices out of bytes; when there are no more, the first choice.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    fn address(&mut self) -> IpAddr {
        let choice = usize::from(self.byte());
        match ADDRESSES.get(choice % (ADDRESSES.len() + 2)).and_then(|text| text.parse().ok()) {
            Some(address) => address,
            None if choice.is_multiple_of(2) => self.bytes::<4>().into(),
            None => self.bytes::<16>().into(),
        }
    }

    fn network(&mut self) -> Option<Network> {
        let address = plain(self.address());
        let prefix = self.byte() % if address.is_ipv4() { 33 } else { 129 };
        format!("{address}/{prefix}").parse().ok()
    }

    fn pattern(&mut self) -> Option<Pattern> {
        let choice = usize::from(self.byte());
        let name = NAMES[choice / 4 % NAMES.len()];
        match choice % 4 {
            0 => Some(Pattern::Any),
            1 => name.parse().ok(),
            2 => format!("*.{name}").parse().ok(),
            _ => self.network().map(Pattern::Addresses),
        }
    }

    fn some<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Vec<T> {
        (0..self.byte() % 3).filter_map(|_| one(self)).collect()
    }

    fn rule(&mut self, number: usize) -> Rule {
        let effect = if self.byte().is_multiple_of(2) { Effect::Allow } else { Effect::Deny };
        Rule {
            name: number.to_string(),
            effect,
            hosts: self.some(Self::pattern),
            ports: self.some(|choices| {
                let [first, last] = choices.bytes();
                Some(u16::from(first)..=u16::from(last))
            }),
            protocol: if self.byte() < 250 { Protocol::Tcp } else { Protocol::Udp },
            within: self.some(Self::network),
        }
    }

    fn target(&mut self) -> Target {
        let choice = usize::from(self.byte());
        let name = NAMES.get(choice % (NAMES.len() + 2)).and_then(|name| name.parse().ok());
        let host = name.map_or_else(|| Host::from_address(self.address()), Host::Name);
        Target::tcp(host, u16::from(self.byte()).max(1))
    }
}

/// What no rule names is denied, and no address that is not public is dialled unless a rule means it.
pub fn rules(data: &[u8]) {
    let mut choices = Choices(data);
    let (target, address) = (choices.target(), choices.address());
    let count = usize::from(choices.byte() % 5);
    let rules = Rules((0..count).map(|number| choices.rule(number)).collect());
    let decision = rules.decide(&target);
    assert_eq!(Rules::default().decide(&target), Decision::Denied { rule: None, reason: Reason::NoRule });
    assert_eq!(decision, rules.decide(&target), "the same question, another answer");
    match &decision {
        Decision::Allowed { rule, scope } => check_allowed(&rules, &target, rule, scope, address),
        Decision::Denied { rule: Some(rule), reason } => {
            assert_eq!((effect(&rules, rule), *reason), (Some(Effect::Deny), Reason::DeniedByRule));
        }
        Decision::Denied { rule: None, reason } => assert_eq!(*reason, Reason::NoRule),
    }
    check_order(&rules, &target, &decision, choices.rule(count));
}

fn effect(rules: &Rules, name: &str) -> Option<Effect> {
    rules.0.iter().find(|rule| rule.name == name).map(|rule| rule.effect)
}

fn check_allowed(rules: &Rules, target: &Target, name: &str, scope: &Scope, address: IpAddr) {
    assert_eq!(effect(rules, name), Some(Effect::Allow));
    if let Host::Name(name) = &target.host {
        assert!(rules.may_allow(name), "{name} is allowed and yet not looked up");
    }
    let kind = reach(address);
    if scope.admits(address, &[]).is_ok() {
        let networks = |rule: &Rule| {
            let named = rule.hosts.iter().filter_map(|host| match host {
                Pattern::Addresses(network) => Some(*network),
                _ => None,
            });
            named.chain(rule.within.iter().copied()).collect::<Vec<_>>()
        };
        let means = |network: &Network| network.holds(address) && network.is_all(kind);
        let named = rules.0.iter().filter(|rule| rule.name == name).flat_map(networks).any(|network| means(&network));
        assert!(kind == Reach::Public || named, "{address} is admitted and nobody means it");
        // Whatever was denied before stays so, also in the form that it has on its way.
        for rule in rules.0.iter().take_while(|rule| rule.name != name) {
            let all = rule.ports.is_empty() && rule.protocol == Protocol::Tcp && rule.effect == Effect::Deny;
            let forms = [plain(address)].into_iter().chain(translated(address));
            let denied = forms.into_iter().any(|form| {
                rule.hosts.iter().any(|host| match host {
                    Pattern::Addresses(network) => network.holds(form),
                    _ => false,
                })
            });
            assert!(!(all && denied), "{address} is admitted and rule {} denies it", rule.name);
        }
        let own = [address, plain(address)];
        assert!(kind != Reach::Public || scope.admits(address, &own) == Err(Reason::OwnAddress));
        assert!(kind == Reach::Public || scope.admits_behind_translator(address, &[]).is_err());
    }
}

/// The first rule decides: those that come after change nothing, and one that comes before and denies all denies all.
fn check_order(rules: &Rules, target: &Target, decision: &Decision<'_>, other: Rule) {
    let after = Rules(rules.0.iter().cloned().chain([other]).collect());
    if *decision != (Decision::Denied { rule: None, reason: Reason::NoRule }) {
        assert_eq!(after.decide(target), *decision);
    }
    let deny = Rule {
        name: "deny".into(),
        effect: Effect::Deny,
        hosts: vec![Pattern::Any],
        ports: Vec::new(),
        protocol: Protocol::Tcp,
        within: Vec::new(),
    };
    let before = Rules([deny].into_iter().chain(rules.0.iter().cloned()).collect());
    assert_eq!(before.decide(target), Decision::Denied { rule: Some("deny"), reason: Reason::DeniedByRule });
}
