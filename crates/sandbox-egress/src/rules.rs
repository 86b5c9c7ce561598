//! What may be reached: the first rule that speaks of a target decides, and without one it is denied.
//!
//! A name is decided before it is resolved, or asking for names would itself be a way out. So an address in a rule speaks
//! of targets that are given by address; for a name it says where that name may lead ([`Rule::within`]), or for a rule
//! that denies, where no name may lead.

use std::{net::IpAddr, ops::RangeInclusive};

use crate::{
    address::{Network, Reach, plain, reach, translated},
    host::{Host, Name},
    pattern::Pattern,
    target::{Protocol, Target},
};

/// Rules, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(pub Vec<Rule>);

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it is called in records and refusals.
    pub name: String,
    /// What it does.
    pub effect: Effect,
    /// Whom it is about.
    pub hosts: Vec<Pattern>,
    /// Which ports; none means all.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Over what.
    pub protocol: Protocol,
    /// Where a name may lead; none means to public addresses.
    pub within: Vec<Network>,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Effect {
    Allow,
    Deny,
}

/// What became of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    /// It may be dialled, at addresses of this scope.
    Allowed {
        /// By which rule.
        rule: &'a str,
        /// Where.
        scope: Scope,
    },
    /// It may not.
    Denied {
        /// By which rule; none if nobody spoke of it.
        rule: Option<&'a str>,
        /// Why.
        reason: Reason,
    },
}

/// Addresses that may be dialled for a target that is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    within: Vec<Network>,
    except: Vec<Network>,
}

/// Why something was denied. The names are in records, metrics and answers, and stay what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No rule speaks of it.
    NoRule,
    /// A rule denies it.
    DeniedByRule,
    /// It leads to this machine.
    Loopback,
    /// It leads to a private network.
    PrivateNetwork,
    /// It leads to the local cable.
    LinkLocal,
    /// It leads to an address that is not for use.
    SpecialAddress,
    /// It leads to an address of this machine that others can reach too.
    OwnAddress,
    /// It leads elsewhere than its rule says.
    OutsideRule,
    /// No rule would allow this name on any port, so it was not looked up.
    NameDenied,
    /// The name leads nowhere.
    NoSuchName,
    /// No name server said where the name leads.
    NamesUnanswered,
    /// Nobody answered there.
    Unreachable,
    /// The far end did not want to.
    Refused,
    /// Whoever wanted it did not wait, or the sandbox has ended.
    BrokenOff,
    /// The sandbox has as many connections as it may have, or there is no room for more on this machine.
    TooManyConnections,
    /// The sandbox has carried as many bytes as it may carry.
    TransferUsedUp,
    /// What looked like TLS was not.
    TlsBroken,
    /// TLS for another server than the one that was allowed.
    TlsOtherName,
    /// TLS for a server that is not named, or may be named so that only it can read it (ECH). In Chromium the policy
    /// `EncryptedClientHelloEnabled` switches that off, in Firefox `network.dns.echconfig.enabled` and
    /// `security.tls.ech.grease_probability`.
    TlsNameHidden,
    /// A request over plain HTTP for another server than the one that was allowed.
    HttpOtherHost,
    /// A request over plain HTTP to go on with something else.
    HttpUpgrade,
    /// What came is no request that could be answered.
    NotARequest,
    /// The placeholder of a secret was on its way to somebody whom the secret is not for.
    SecretLeaving,
    /// A secret would have been sent without TLS.
    SecretInPlain,
    /// A request to go on with something else, to a host that a secret is for.
    SecretUpgrade,
    /// The far end could not prove that it is who it should be, so no secret was sent there.
    TlsUntrusted,
    /// A service may not be asked any more.
    BudgetSpent,
}

impl Rules {
    /// Decides. Nothing is looked up, nothing is changed: the same target always gets the same answer.
    pub fn decide(&self, target: &Target) -> Decision<'_> {
        let mut except = Vec::new();
        // A translator on the way makes one of the other, so a rule that denies one denies both.
        let becomes = match target.host {
            Host::Address(address) => translated(address).map(Host::Address),
            Host::Name(_) => None,
        };
        for rule in self.0.iter().filter(|rule| rule.covers(target)) {
            let spoken = rule.hosts.iter().find(|pattern| {
                pattern.matches(&target.host)
                    || rule.effect == Effect::Deny && becomes.as_ref().is_some_and(|host| pattern.matches(host))
            });
            match (spoken, rule.effect) {
                (Some(_), Effect::Deny) => {
                    return Decision::Denied { rule: Some(&rule.name), reason: Reason::DeniedByRule };
                }
                (Some(pattern), Effect::Allow) => {
                    let within = match pattern {
                        // Whoever names addresses means them, public or not.
                        Pattern::Addresses(network) => vec![*network],
                        _ => rule.within.clone(),
                    };
                    return Decision::Allowed { rule: &rule.name, scope: Scope { within, except } };
                }
                // Where no name may lead is known only when it was resolved, and for an address when it is known what
                // becomes of it on its way.
                (None, Effect::Deny) => except.extend(rule.hosts.iter().filter_map(|pattern| match pattern {
                    Pattern::Addresses(network) => Some(*network),
                    _ => None,
                })),
                (None, Effect::Allow) => {}
            }
        }
        Decision::Denied { rule: None, reason: Reason::NoRule }
    }

    /// Whether a name is allowed on some port. What is decided can change only where a rule's ports begin or end.
    pub fn may_allow(&self, name: &Name) -> bool {
        let edges = self.0.iter().flat_map(|rule| &rule.ports);
        let edges = edges.flat_map(|ports| [*ports.start(), ports.end().saturating_add(1)]).chain([1]);
        edges.into_iter().any(|port| {
            let target = Target::tcp(Host::Name(name.clone()), port);
            matches!(self.decide(&target), Decision::Allowed { .. })
        })
    }

    /// Whether it matters what name a target has: where any would do, nobody is asked to say it. Browsers that have nothing to
    /// hide send what looks like a hidden name all the same.
    pub fn ask_for_name(&self, target: &Target) -> bool {
        let speaks =
            |rule: &&Rule| rule.covers(target) && rule.hosts.iter().any(|pattern| pattern.matches(&target.host));
        let any = |rule: &Rule| rule.hosts.contains(&Pattern::Any);
        self.denies_names() || !self.0.iter().find(speaks).is_some_and(any)
    }

    /// Whether some names are denied that others would be allowed instead of.
    pub fn denies_names(&self) -> bool {
        let by_name = |pattern: &Pattern| matches!(pattern, Pattern::Name(_) | Pattern::Beneath(_));
        self.0.iter().any(|rule| rule.effect == Effect::Deny && rule.hosts.iter().any(by_name))
    }
}

impl Rule {
    fn covers(&self, target: &Target) -> bool {
        let port = self.ports.is_empty() || self.ports.iter().any(|ports| ports.contains(&target.port));
        port && self.protocol == target.protocol
    }
}

impl Scope {
    /// Whether a name may lead to every public address that nobody denies.
    pub fn is_all_that_is_public(&self) -> bool {
        self.within.is_empty()
    }

    /// Whether all that is denied here is denied there too.
    pub fn denies_no_more_than(&self, other: &Self) -> bool {
        self.except.iter().all(|network| other.except.contains(network))
    }

    /// Whether this address may be dialled; `own` are those of this machine's interfaces.
    pub fn admits(&self, address: IpAddr, own: &[IpAddr]) -> Result<(), Reason> {
        // A translator on the way makes one of the other.
        let forms: Vec<IpAddr> = [plain(address)].into_iter().chain(translated(address)).collect();
        if self.except.iter().any(|network| forms.iter().any(|&form| network.holds(form))) {
            return Err(Reason::DeniedByRule);
        }
        let kind = reach(address);
        let mut named = self.within.iter().filter(|network| network.holds(address)).peekable();
        if !self.within.is_empty() && named.peek().is_none() {
            return Err(Reason::OutsideRule);
        }
        let is_own = forms.iter().any(|form| own.contains(form));
        // Only who names no others means addresses that are not public, and this machine itself is meant only by who says so.
        let means =
            |network: &Network| network.is_all(kind) && (!is_own || kind == Reach::Loopback || network.is_one());
        if kind != Reach::Public && named.any(means) {
            return Ok(());
        }
        match kind {
            Reach::Public | Reach::Private if is_own => Err(Reason::OwnAddress),
            Reach::Public => Ok(()),
            Reach::Loopback => Err(Reason::Loopback),
            Reach::Private => Err(Reason::PrivateNetwork),
            Reach::LinkLocal => Err(Reason::LinkLocal),
            Reach::Special => Err(Reason::SpecialAddress),
        }
    }

    /// Whether this may be reached, which a translator makes of an address that is admitted. Rules name the latter, so
    /// they open nothing here that is not public.
    pub(crate) fn admits_behind_translator(&self, address: IpAddr, own: &[IpAddr]) -> Result<(), Reason> {
        Self { within: Vec::new(), except: self.except.clone() }.admits(address, own)
    }
}

impl Reason {
    /// For a person.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::NoRule => "no rule of this sandbox's policy allows it",
            Self::DeniedByRule => "a rule of this sandbox's policy denies it",
            Self::Loopback => "it leads to the machine that the sandbox runs on",
            Self::PrivateNetwork => "it leads into a private network",
            Self::LinkLocal => "it leads to the local cable, where cloud machines keep credentials",
            Self::SpecialAddress => "it leads to an address that is not for use",
            Self::OwnAddress => "it leads to an address of the machine that the sandbox runs on",
            Self::OutsideRule => "the name leads elsewhere than its rule says",
            Self::NameDenied => "no rule of this sandbox's policy allows this name on any port",
            Self::NoSuchName => "the name leads nowhere",
            Self::NamesUnanswered => {
                "no name server could say where it leads; is the machine that the sandbox runs on connected?"
            }
            Self::Unreachable => "nobody answers there",
            Self::Refused => "the far end refuses connections on this port",
            Self::BrokenOff => "whoever asked did not wait for it, or the sandbox has ended",
            Self::TooManyConnections => "the sandbox has as many connections as it may have now",
            Self::TransferUsedUp => "the sandbox has sent and received as much as it may",
            Self::TlsBroken => "what looked like TLS was not",
            Self::TlsOtherName => "the TLS hello names another server than the one that was asked for",
            Self::TlsNameHidden => {
                "the TLS hello names no server (SNI), or may hide another: switch off Encrypted Client Hello (ECH), also with random content (GREASE)"
            }
            Self::HttpOtherHost => "the request names another server than the one that was asked for",
            Self::HttpUpgrade => "over plain HTTP nothing else can be begun; use TLS (https, wss)",
            Self::NotARequest => "what was sent is no request that a proxy can answer",
            Self::SecretLeaving => "what stands for a secret is not sent to anybody whom the secret is not for",
            Self::SecretInPlain => "a secret is sent there only over TLS; use https",
            Self::SecretUpgrade => {
                "a host that takes a secret is sent requests only, so no websocket can be begun with it"
            }
            Self::TlsUntrusted => "the far end did not prove by TLS that it is who it should be",
            Self::BudgetSpent => "the budget of this sandbox for it is spent",
        }
    }

    /// Whether the policy said no, and not the network.
    pub fn is_policy(self) -> bool {
        !matches!(
            self,
            Self::NoSuchName
                | Self::NamesUnanswered
                | Self::Unreachable
                | Self::Refused
                | Self::BrokenOff
                | Self::TlsUntrusted
        )
    }

    /// Its name.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoRule => "no_rule",
            Self::DeniedByRule => "denied_by_rule",
            Self::Loopback => "loopback",
            Self::PrivateNetwork => "private_network",
            Self::LinkLocal => "link_local",
            Self::SpecialAddress => "special_address",
            Self::OwnAddress => "own_address",
            Self::OutsideRule => "outside_rule",
            Self::NameDenied => "name_denied",
            Self::NoSuchName => "no_such_name",
            Self::NamesUnanswered => "names_unanswered",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::BrokenOff => "broken_off",
            Self::TooManyConnections => "too_many_connections",
            Self::TransferUsedUp => "transfer_used_up",
            Self::TlsBroken => "tls_broken",
            Self::TlsOtherName => "tls_other_name",
            Self::TlsNameHidden => "tls_name_hidden",
            Self::HttpOtherHost => "http_other_host",
            Self::HttpUpgrade => "http_upgrade",
            Self::NotARequest => "not_a_request",
            Self::SecretLeaving => "secret_leaving",
            Self::SecretInPlain => "secret_in_plain",
            Self::SecretUpgrade => "secret_upgrade",
            Self::TlsUntrusted => "tls_untrusted",
            Self::BudgetSpent => "budget_spent",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(effect: Effect, hosts: &str, ports: &[u16]) -> Rule {
        Rule {
            name: format!("{effect:?} {hosts}"),
            effect,
            hosts: hosts.split(' ').map(|host| host.parse().expect(host)).collect(),
            ports: ports.iter().map(|&port| port..=port).collect(),
            protocol: Protocol::Tcp,
            within: Vec::new(),
        }
    }

    /// The rule that allowed it, or the code of the refusal, the address included.
    fn answer(rules: &Rules, target: &str, address: &str) -> String {
        match rules.decide(&target.parse().expect(target)) {
            Decision::Allowed { rule, scope } => match scope.admits(address.parse().expect(address), &[]) {
                Ok(()) => rule.to_owned(),
                Err(reason) => reason.code().to_owned(),
            },
            Decision::Denied { reason, .. } => reason.code().to_owned(),
        }
    }

    #[test]
    fn the_first_rule_decides_and_without_one_it_is_denied() {
        use Effect::{Allow, Deny};
        let rules = Rules(vec![
            rule(Deny, "secret.example.com 93.0.0.0/8", &[]),
            rule(Allow, "*.example.com", &[443]),
            rule(Allow, "10.1.0.0/16 192.0.2.7", &[22]),
            rule(Deny, "*", &[25]),
            rule(Allow, "*", &[80, 25]),
        ]);
        let table = [
            ("a.example.com:443", "1.1.1.1", "Allow *.example.com"),
            ("secret.example.com:443", "1.1.1.1", "denied_by_rule"),
            ("a.example.com:22", "1.1.1.1", "no_rule"),
            ("example.com:443", "1.1.1.1", "no_rule"),
            // Names lead only where they may.
            ("a.example.com:443", "93.184.215.14", "denied_by_rule"),
            ("a.example.com:443", "10.1.2.3", "private_network"),
            ("a.example.com:443", "127.0.0.1", "loopback"),
            ("a.example.com:443", "169.254.169.254", "link_local"),
            ("a.example.com:443", "::ffff:169.254.169.254", "link_local"),
            ("a.example.com:443", "0.0.0.0", "special_address"),
            // Addresses that a rule names are meant.
            ("10.1.2.3:22", "10.1.2.3", "Allow 10.1.0.0/16 192.0.2.7"),
            ("192.0.2.7:22", "192.0.2.7", "Allow 10.1.0.0/16 192.0.2.7"),
            ("10.2.2.3:22", "10.2.2.3", "no_rule"),
            ("10.2.2.3:80", "10.2.2.3", "private_network"),
            ("[::ffff:10.1.2.3]:22", "10.1.2.3", "Allow 10.1.0.0/16 192.0.2.7"),
            ("93.1.1.1:80", "93.1.1.1", "denied_by_rule"),
            ("8.8.8.8:80", "8.8.8.8", "Allow *"),
            ("8.8.8.8:25", "8.8.8.8", "denied_by_rule"),
            // A rule for addresses lets no name through.
            ("inside.example.org:22", "10.1.2.3", "no_rule"),
        ];
        for (target, address, expected) in table {
            assert_eq!(answer(&rules, target, address), expected, "{target} at {address}");
        }
        assert_eq!(answer(&Rules::default(), "example.com:443", "1.1.1.1"), "no_rule");
    }

    #[test]
    fn a_name_may_lead_inside_where_its_rule_says_so() {
        let mut named = rule(Effect::Allow, "git.corp.example", &[]);
        named.within = vec!["10.0.0.0/8".parse().expect("a block")];
        let rules = Rules(vec![named]);
        assert_eq!(answer(&rules, "git.corp.example:443", "10.1.2.3"), "Allow git.corp.example");
        for elsewhere in ["192.168.0.1", "1.1.1.1", "127.0.0.1", "::1"] {
            assert_eq!(answer(&rules, "git.corp.example:443", elsewhere), "outside_rule");
        }
    }

    #[test]
    fn a_block_of_everything_opens_nothing_that_is_not_public() {
        let rules = Rules(vec![rule(Effect::Allow, "0.0.0.0/0 ::/0 168.0.0.0/8", &[])]);
        assert_eq!(answer(&rules, "8.8.8.8:80", "8.8.8.8"), "Allow 0.0.0.0/0 ::/0 168.0.0.0/8");
        let table = [("127.0.0.1", "loopback"), ("10.0.0.1", "private_network"), ("169.254.169.254", "link_local")];
        for (address, expected) in table.into_iter().chain([("168.63.129.16", "link_local"), ("::1", "loopback")]) {
            let target = if address.contains(':') { format!("[{address}]:80") } else { format!("{address}:80") };
            assert_eq!(answer(&rules, &target, address), expected, "{address}");
        }
    }

    #[test]
    fn a_translated_address_is_denied_like_the_one_that_it_becomes() {
        let rules = Rules(vec![rule(Effect::Deny, "93.0.0.0/8", &[]), rule(Effect::Allow, "*", &[])]);
        assert_eq!(answer(&rules, "a.example:80", "64:ff9b::5db8:d70e"), "denied_by_rule");
        assert_eq!(answer(&rules, "a.example:80", "64:ff9b::808:808"), "Allow *");
        assert_eq!(answer(&rules, "[64:ff9b::5db8:d70e]:80", "64:ff9b::5db8:d70e"), "denied_by_rule");
    }

    #[test]
    fn addresses_of_this_machine_are_not_public() {
        let own = ["203.0.114.9".parse().expect("an address")];
        assert_eq!(Scope::default().admits(own[0], &own), Err(Reason::OwnAddress));
        assert_eq!(
            Scope::default().admits("::ffff:203.0.114.9".parse().expect("an address"), &own),
            Err(Reason::OwnAddress)
        );
    }

    #[test]
    fn a_name_has_to_be_said_where_it_matters() {
        use Effect::{Allow, Deny};
        let target: Target = "a.example.com:443".parse().expect("a target");
        for (rules, expected) in [
            (vec![rule(Allow, "*", &[443])], false),
            (vec![rule(Allow, "*", &[80]), rule(Allow, "*.example.com", &[443])], true),
            (vec![rule(Allow, "*.example.com", &[443]), rule(Allow, "*", &[])], true),
            (vec![rule(Deny, "b.example.com", &[]), rule(Allow, "*", &[])], true),
            (vec![rule(Deny, "10.0.0.0/8", &[]), rule(Allow, "*", &[])], false),
            (Vec::new(), true),
        ] {
            assert_eq!(Rules(rules.clone()).ask_for_name(&target), expected, "{rules:?}");
        }
    }

    #[test]
    fn rules_for_tcp_say_nothing_of_udp() {
        let rules = Rules(vec![rule(Effect::Allow, "*", &[])]);
        let mut target: Target = "example.com:443".parse().expect("a target");
        target.protocol = Protocol::Udp;
        assert_eq!(rules.decide(&target), Decision::Denied { rule: None, reason: Reason::NoRule });
    }

    proptest! {
        #[test]
        fn without_a_rule_that_names_it_no_address_but_a_public_one_is_admitted(bits: u128, short: u32) {
            for address in [IpAddr::V6(bits.into()), IpAddr::V4(short.into())] {
                prop_assert_eq!(Scope::default().admits(address, &[]).is_ok(), reach(address) == Reach::Public);
            }
        }
    }
}
