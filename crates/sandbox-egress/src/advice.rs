//! What to do about a refusal: one place for the page that a program gets, the terminal and the denials of an answer, so that
//! all say the same, and nobody is sent to where nothing is to be had.

use sandbox_core::Bytes;

use crate::{
    Decision, Effect, Host, Limits, Pattern, Reach, Reason, Rules, Target, presets::NO_REGISTRIES, reach,
    resolver::THIS_MACHINE,
};

/// Who reads it, and how such a reader gets more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reader {
    /// A model that has the tool `request_access`.
    #[default]
    Model,
    /// A model where the operator wants nobody to be asked.
    Unheard,
    /// A person at a terminal.
    Person,
}

impl Reader {
    /// A wider policy, as this reader gets one.
    pub fn with_policy(self, policy: &str) -> String {
        match self {
            Self::Model | Self::Unheard => format!("a new sandbox with policy {policy}"),
            Self::Person => match level(policy) {
                Some(level) => format!("--level {level} (`exec`: --policy {policy})"),
                None => format!("`exec` with --policy {policy}"),
            },
        }
    }

    /// What brings files into a sandbox.
    pub fn files(self) -> &'static str {
        match self {
            Self::Model | Self::Unheard => "write_files",
            Self::Person => "--file",
        }
    }
}

/// The level of a task that has this policy.
fn level(policy: &str) -> Option<&str> {
    policy.strip_prefix("yolo-").filter(|level| ["1", "2", "3", "4"].contains(level))
}

/// What advice depends on, beside the refusal itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adviser {
    /// Who reads it.
    pub reader: Reader,
    /// How much of the way out the sandbox may use.
    pub limits: Limits,
}

/// A refusal, as far as advice depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// Why.
    pub reason: Reason,
    /// What was wanted: `example.com:443`, or only a name.
    pub target: &'a str,
    /// The rule that said so.
    pub rule: Option<&'a str>,
    /// The secret that it is about.
    pub secret: Option<&'a str>,
}

impl Adviser {
    /// What to do about it, in sentences.
    pub fn advise(&self, refused: &Refused<'_>, rules: &Rules) -> String {
        let (host, port) = parts(refused.target);
        let secret = refused.secret.unwrap_or("NAME");
        match refused.reason {
            Reason::NoRule | Reason::DeniedByRule | Reason::NameDenied => self.not_allowed(refused, host, port, rules),
            Reason::Loopback | Reason::OwnAddress => self.never(&this_machine(port)),
            Reason::PrivateNetwork | Reason::LinkLocal | Reason::SpecialAddress => {
                self.never(&not_public(host.as_ref()))
            }
            Reason::OutsideRule => {
                "Only whoever wrote the policy can change that: `within` of the rule says where the name may lead"
                    .into()
            }
            Reason::SecretLeaving => format!(
                "Use it only with the hosts that it is for; if this one should have it, the operator adds it to `hosts` of \
                 [secrets.{secret}]"
            ),
            Reason::SecretInPlain => {
                format!("Use https://; the operator can set `plain_http = true` in [secrets.{secret}]")
            }
            Reason::SecretUpgrade => "Use requests instead of a websocket".into(),
            Reason::BudgetSpent => "The operator sets the budget of a service, under [services] in the settings".into(),
            Reason::TransferUsedUp => format!(
                "A new sandbox begins anew; a policy file can give more: `transfer` under [limits]{}",
                self.limits.bytes.map(|most| format!(", which is {} here", Bytes(most))).unwrap_or_default()
            ),
            Reason::TooManyConnections => format!(
                "Close some and try again; a policy file can give more: `connections` under [limits], which is {} here",
                self.limits.connections
            ),
            Reason::TlsOtherName | Reason::HttpOtherHost => {
                "Let the program name the server that it connects to; connect to the other one by its own name".into()
            }
            Reason::TlsBroken | Reason::NotARequest => {
                "Programs reach the proxy by the variables HTTP_PROXY and HTTPS_PROXY; check what was changed there"
                    .into()
            }
            Reason::TlsUntrusted => {
                "If its certificate is from an authority of your own, the operator names that in SSL_CERT_FILE where \
                 sandbox-mcp is started"
                    .into()
            }
            Reason::TlsNameHidden | Reason::HttpUpgrade => "Change that in the program".into(),
            Reason::NoSuchName | Reason::Unreachable | Reason::Refused => "Check the name and the port".into(),
            Reason::NamesUnanswered | Reason::BrokenOff => "Try again".into(),
        }
    }

    /// The rule of the policy where the reason is one of its limits.
    pub fn limit(&self, reason: Reason) -> Option<String> {
        match reason {
            Reason::TooManyConnections => Some(format!("limits.connections = {}", self.limits.connections)),
            Reason::TransferUsedUp => self.limits.bytes.map(|most| format!("limits.transfer = {}", Bytes(most))),
            _ => None,
        }
    }

    fn not_allowed(&self, refused: &Refused<'_>, host: Option<Host>, port: Option<u16>, rules: &Rules) -> String {
        let Some(host) = host else { return self.ask(refused.target) };
        match &host {
            Host::Name(name) if name.as_str() == THIS_MACHINE => return self.never(&this_machine(port)),
            Host::Address(address) => match reach(*address) {
                Reach::Public => {}
                Reach::Loopback => return self.never(&this_machine(port)),
                _ => return self.never(&not_public(Some(&host))),
            },
            Host::Name(name) if name.as_str() == "localhost" => return self.never(&this_machine(port)),
            Host::Name(name) if looks_private(name.as_str()) => return self.never(&not_public(Some(&host))),
            Host::Name(_) => {}
        }
        let ask = self.ask(refused.target);
        if refused.rule == Some(NO_REGISTRIES) || refused.reason == Reason::NameDenied && denies_registry(&host, rules)
        {
            let new = self.reader.with_policy("yolo-3");
            return format!("Package registries are not part of this policy's network (yolo-2); {new} has them");
        }
        match other_ports(&host, rules) {
            ports if ports.is_empty() => ask,
            ports => format!("This host is reached on port {}. {ask}", ports.join(" and ")),
        }
    }

    /// What is not public is never asked for.
    fn never(&self, instead: &str) -> String {
        match self.reader {
            Reader::Model | Reader::Unheard => format!("That is never granted by asking: {instead}"),
            Reader::Person => {
                let (first, rest) = instead.split_at(1);
                format!("{}{rest}", first.to_uppercase())
            }
        }
    }

    fn ask(&self, target: &str) -> String {
        match self.reader {
            Reader::Model => format!(
                "If you need it, ask with the tool `request_access` (kind network, target {target}) or the person you work \
                 for; other ways lead to the same answer"
            ),
            Reader::Unheard => {
                "Nobody is asked here. Bring what is needed with write_files, or create a sandbox with a \
                                policy that reaches it"
                    .into()
            }
            Reader::Person => format!(
                "Use {}, which reaches any public address, or name it in a policy of your own: docs/network.md",
                self.reader.with_policy("yolo-4")
            ),
        }
    }
}

/// What to do in a sandbox that has no network at all.
pub const WITHOUT_NETWORK: &str = "Bring what is needed with write_files. A sandbox without a network gets none later: create a \
                                   new one with a policy that has one (yolo-2: web sites; yolo-3: package registries too)";

/// Ends of names that are no public ones.
const PRIVATE_ENDS: [&str; 7] = ["localhost", "local", "internal", "lan", "home.arpa", "intranet", "corp"];

/// Who names an address means it; where a name may lead is said beside it.
fn not_public(host: Option<&Host>) -> String {
    match host {
        Some(Host::Address(address)) => {
            format!("only a policy file of the operator can name it, with `allow = [\"{address}\"]` of a network rule")
        }
        _ => "only a policy file of the operator can name it, with `allow` and `within` of a network rule".to_owned(),
    }
}

fn this_machine(port: Option<u16>) -> String {
    let port = port.map_or("PORT".to_owned(), |port| port.to_string());
    format!(
        "ports of this machine are reached as {THIS_MACHINE} where a policy file of the operator names them: `host_ports = \
         [{port}]`"
    )
}

/// The host and the port of what was wanted, as far as it was named.
fn parts(target: &str) -> (Option<Host>, Option<u16>) {
    match target.parse::<Target>() {
        Ok(target) => (Some(target.host), Some(target.port)),
        Err(_) => (target.parse().ok(), None),
    }
}

/// Whether a name is one that only a private network has, as far as that can be told from it.
pub fn looks_private(name: &str) -> bool {
    let ends = |end: &&str| name.strip_suffix(*end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    !name.contains('.') || PRIVATE_ENDS.iter().any(ends)
}

fn denies_registry(host: &Host, rules: &Rules) -> bool {
    let speaks = |pattern: &Pattern| pattern.matches(host);
    rules.0.iter().any(|rule| rule.name == NO_REGISTRIES && rule.hosts.iter().any(speaks))
}

/// Where else this host is reached.
fn other_ports(host: &Host, rules: &Rules) -> Vec<String> {
    let mut ports = Vec::new();
    let mut named: Vec<_> =
        rules.0.iter().filter(|rule| rule.effect == Effect::Allow).flat_map(|rule| &rule.ports).collect();
    named.sort_by_key(|range| *range.start());
    for range in named {
        let allowed = |port| matches!(rules.decide(&Target::tcp(host.clone(), port)), Decision::Allowed { .. });
        let shown = match (*range.start(), *range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        if allowed(*range.start()) && !ports.contains(&shown) {
            ports.push(shown);
        }
    }
    ports.truncate(8);
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_core::policy::Network as Named;

    fn advice(reader: Reader, network: Named, reason: Reason, target: &str, rule: Option<&str>) -> String {
        let adviser = Adviser { reader, limits: Limits { connections: 2, bytes: Some(1 << 30), ..Limits::default() } };
        adviser.advise(&Refused { reason, target, rule, secret: Some("k") }, &Rules::of_network(network, &[]))
    }

    #[test]
    fn advice_is_what_can_work() {
        use Named::{Web, WebAndRegistries};
        let model = |reason, target| advice(Reader::Model, WebAndRegistries, reason, target, None);
        for (told, has, has_not) in [
            (model(Reason::NoRule, "example.com:8080"), "request_access", "--policy"),
            (model(Reason::NoRule, "example.com:8080"), "port 80 and 443", "host_ports"),
            (advice(Reader::Person, Web, Reason::NoRule, "example.com:8080", None), "--policy", "request_access"),
            (advice(Reader::Unheard, Web, Reason::NoRule, "example.com:8080", None), "Nobody", "request_access"),
            (model(Reason::NoRule, "host.internal:5432"), "host_ports = [5432]", "request_access"),
            (model(Reason::NameDenied, "host.internal"), "host_ports = [PORT]", "request_access"),
            (model(Reason::NoRule, "localhost:5432"), "host.internal", "request_access"),
            (model(Reason::NoRule, "db.corp:5432"), "within", "request_access"),
            (model(Reason::NoRule, "10.0.0.1:22"), "`allow = [\"10.0.0.1\"]`", "request_access"),
            (model(Reason::Loopback, "rebound.example:80"), "never granted by asking", "request_access"),
            (model(Reason::LinkLocal, "meta.example:80"), "`within`", "request_access"),
            (advice(Reader::Person, Web, Reason::Loopback, "a.example:80", None), "Ports of this machine", "asking"),
            (model(Reason::SecretLeaving, "example.com:80"), "[secrets.k]", "request_access"),
            (model(Reason::SecretInPlain, "example.com:80"), "plain_http", "request_access"),
            (model(Reason::TransferUsedUp, "example.com:80"), "`transfer` under [limits], which is 1 GiB", "request"),
            (model(Reason::TooManyConnections, "(not named)"), "`connections` under [limits], which is 2", "request"),
            (
                advice(Reader::Model, Web, Reason::DeniedByRule, "pypi.org:443", Some(NO_REGISTRIES)),
                "yolo-3",
                "--policy",
            ),
            (advice(Reader::Person, Web, Reason::NameDenied, "pypi.org", None), "--policy yolo-3", "request_access"),
            (advice(Reader::Person, Web, Reason::NameDenied, "pypi.org", None), "--level 3", "a new sandbox"),
            (advice(Reader::Person, Web, Reason::NoRule, "example.com:8080", None), "--level 4", "write_files"),
        ] {
            assert!(told.contains(has) && !told.contains(has_not), "{told}");
        }
    }

    #[test]
    fn a_person_is_told_of_levels_where_there_is_one() {
        assert_eq!(Reader::Person.with_policy("yolo-2"), "--level 2 (`exec`: --policy yolo-2)");
        assert_eq!(Reader::Person.with_policy("yolo-2b"), "`exec` with --policy yolo-2b");
        assert_eq!(Reader::Unheard.with_policy("build"), "a new sandbox with policy build");
    }
}
