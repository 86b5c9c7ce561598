//! What the networks that a policy can name come to, as rules.

use sandbox_core::policy::Network as Named;

use crate::{
    address::Network,
    pattern::Pattern,
    rules::{Effect, Rule, Rules},
    target::Protocol,
};

const WEB: [u16; 2] = [80, 443];
/// Code is fetched by ssh too.
const SSH: u16 = 22;

/// The rule by which a network leaves package registries out.
pub(crate) const NO_REGISTRIES: &str = "no registries";

/// Where packages come from.
const PACKAGES: [&str; 22] = [
    "crates.io",
    "*.crates.io",
    "deb.debian.org",
    "security.debian.org",
    "snapshot.debian.org",
    "archive.ubuntu.com",
    "*.archive.ubuntu.com",
    "security.ubuntu.com",
    "ports.ubuntu.com",
    "dl-cdn.alpinelinux.org",
    "pypi.org",
    "*.pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "registry.yarnpkg.com",
    "nodejs.org",
    "proxy.golang.org",
    "sum.golang.org",
    "repo.maven.apache.org",
    "repo1.maven.org",
    "rubygems.org",
    "*.rubygems.org",
];

/// Where source code comes from.
const CODE: [&str; 8] = [
    "github.com",
    "*.github.com",
    "*.githubusercontent.com",
    "gitlab.com",
    "bitbucket.org",
    "codeberg.org",
    "static.rust-lang.org",
    "go.dev",
];

/// A place of the user's own that packages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Which host.
    pub host: Pattern,
    /// On which port.
    pub port: u16,
    /// Where it may lead, if not to public addresses.
    pub within: Vec<Network>,
}

impl Rules {
    /// Those of a network that a policy names, with the user's own places for packages.
    pub fn of_network(network: Named, mirrors: &[Mirror]) -> Self {
        let registries = || {
            let own = mirrors.iter().map(own);
            own.chain([rule(Effect::Allow, "registries", patterns(&PACKAGES), &WEB)]).chain([rule(
                Effect::Allow,
                "code hosts",
                patterns(&CODE),
                &[WEB[0], WEB[1], SSH],
            )])
        };
        let denied = || rule(Effect::Deny, NO_REGISTRIES, patterns(&PACKAGES), &[]);
        let any = |name: &str, ports: &[u16]| rule(Effect::Allow, name, vec![Pattern::Any], ports);
        Self(match network {
            Named::None => Vec::new(),
            Named::Registries => registries().collect(),
            Named::Web => mirrors.iter().map(not_own).chain([denied(), any("web", &WEB)]).collect(),
            Named::WebAndRegistries => mirrors.iter().map(own).chain([any("web", &WEB)]).collect(),
            Named::Public => mirrors.iter().map(own).chain([any("public", &[])]).collect(),
        })
    }
}

/// All of them are read by a test, so none is left out.
fn patterns(hosts: &[&str]) -> Vec<Pattern> {
    hosts.iter().filter_map(|host| host.parse().ok()).collect()
}

fn rule(effect: Effect, name: &str, hosts: Vec<Pattern>, ports: &[u16]) -> Rule {
    let ports = ports.iter().map(|&port| port..=port).collect();
    Rule { name: name.into(), effect, hosts, ports, protocol: Protocol::Tcp, within: Vec::new() }
}

fn own(mirror: &Mirror) -> Rule {
    let rule = rule(Effect::Allow, &format!("mirror {}", mirror.host), vec![mirror.host.clone()], &[mirror.port]);
    Rule { within: mirror.within.clone(), ..rule }
}

fn not_own(mirror: &Mirror) -> Rule {
    rule(Effect::Deny, NO_REGISTRIES, vec![mirror.host.clone()], &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decision;

    #[test]
    fn every_host_is_one() {
        assert_eq!((patterns(&PACKAGES).len(), patterns(&CODE).len()), (PACKAGES.len(), CODE.len()));
    }

    #[test]
    fn networks_reach_what_their_names_say() {
        let mirror = Mirror {
            host: "packages.corp.example".parse().expect("a host"),
            port: 8081,
            within: vec!["10.0.0.0/8".parse().expect("a block")],
        };
        let table = [
            ("pypi.org:443", [false, true, false, true, true]),
            ("index.crates.io:443", [false, true, false, true, true]),
            ("pypi.org:22", [false, false, false, false, true]),
            ("github.com:22", [false, true, false, false, true]),
            ("github.com:443", [false, true, true, true, true]),
            ("example.com:443", [false, false, true, true, true]),
            ("example.com:80", [false, false, true, true, true]),
            ("example.com:8080", [false, false, false, false, true]),
            ("notpypi.org:443", [false, false, true, true, true]),
            ("pypi.org.evil.example:443", [false, false, true, true, true]),
            ("packages.corp.example:8081", [false, true, false, true, true]),
            ("8.8.8.8:443", [false, false, true, true, true]),
        ];
        let networks = [Named::None, Named::Registries, Named::Web, Named::WebAndRegistries, Named::Public];
        for (target, expected) in table {
            let target = target.parse().expect(target);
            let found = networks.map(|network| {
                let rules = Rules::of_network(network, std::slice::from_ref(&mirror));
                matches!(rules.decide(&target), Decision::Allowed { .. })
            });
            assert_eq!(found, expected, "{target}");
        }
    }
}
