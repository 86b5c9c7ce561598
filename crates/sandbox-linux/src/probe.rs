//! What this machine lets us do, in words, with the exact thing to change where something is missing.

use std::{fs, path::Path};

use sandbox_core::{Enforcement, Error, Finding, Grade, Image, Outlook, Policy, Probe, SandboxSpec, SessionId, UserId};

use crate::{
    cgroup::CgroupHost,
    host::Host,
    ids::IdSource,
    plan,
    prepared::Prepared,
    seccomp::Chosen,
    security_module::{self, SecurityModule},
    way_out::Reach,
};

/// Looks at everything that matters for sandboxes.
pub fn probe(policies: &[Policy], host: Result<&Host, Error>) -> Probe {
    let mut findings = vec![kernel(), user_namespaces(host.as_ref().err())];
    let mut outlooks = Vec::new();
    let usable = host.is_ok();

    if let Ok(host) = host {
        findings.extend([ids(host), cgroups(host), landlock(), way_out(host)]);
        outlooks = policies.iter().filter_map(|policy| outlook(policy, host)).collect();
    }
    findings.extend(SecurityModule::look().findings());
    Probe { backend: "linux".into(), usable, findings, outlooks }
}

/// Why no sandbox can be made, and what to change.
pub fn unusable(why: &str) -> Error {
    Error::Unavailable {
        what: "sandboxes cannot be made on this machine".into(),
        why: why.into(),
        fix: namespace_fix(),
    }
}

fn namespace_fix() -> String {
    let setting = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    if setting("/proc/sys/user/max_user_namespaces") == "0" {
        return "User namespaces are switched off: `sudo sysctl user.max_user_namespaces=15000` switches them on"
            .into();
    }
    if setting("/proc/sys/kernel/unprivileged_userns_clone") == "0" {
        return "Ordinary users may not make user namespaces: `sudo sysctl kernel.unprivileged_userns_clone=1` allows it".into();
    }
    if security_module::restricts_user_namespaces() {
        return "AppArmor keeps ordinary programs from using user namespaces: `sandbox-mcp doctor --fix` gives this program a profile that allows it".into();
    }
    if Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists() {
        return "This is a container whose engine forbids it: run it with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`, or run sandbox-mcp on the machine itself".into();
    }
    "Check that the kernel is 5.12 or newer with user namespaces (CONFIG_USER_NS)".into()
}

fn finding(subject: &str, grade: Grade, found: impl Into<String>, fix: Option<&str>) -> Finding {
    Finding { subject: subject.into(), grade, found: found.into(), fix: fix.map(Into::into) }
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 12) {
        finding("kernel", Grade::Good, release, None)
    } else {
        finding("kernel", Grade::Broken, release, Some("Use Linux 5.12 or newer"))
    }
}

fn user_namespaces(error: Option<&Error>) -> Finding {
    match error {
        None => finding("user namespaces", Grade::Good, "can be made", None),
        Some(error) => finding("user namespaces", Grade::Broken, error.to_string(), Some(&namespace_fix())),
    }
}

fn ids(host: &Host) -> Finding {
    match host.ids {
        IdSource::Ranges => finding("ids", Grade::Good, "root: every sandbox has 65,536 of its own", None),
        IdSource::Subordinate { count } => finding("ids", Grade::Good, format!("{count} subordinate ids"), None),
        IdSource::Single => finding(
            "ids",
            Grade::Weak,
            "only your own: the executor shares its id with the commands",
            Some(
                "Install the package `uidmap` and give yourself ids: `sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER`",
            ),
        ),
    }
}

fn cgroups(host: &Host) -> Finding {
    let covers = host.cgroup.covers();
    let held: Vec<&str> = [(covers.memory, "memory"), (covers.cpu, "cpu"), (covers.pids, "pids")]
        .into_iter()
        .filter_map(|(held, name)| held.then_some(name))
        .collect();
    match &host.cgroup {
        CgroupHost::None { why } => finding(
            "cgroups",
            Grade::Weak,
            format!("{why}: memory is watched instead of held"),
            Some(
                "With systemd: `systemd-run --user --scope -p Delegate=yes sandbox-mcp …` gives you a cgroup of your own",
            ),
        ),
        found if held.len() == 3 => {
            finding("cgroups", Grade::Good, format!("{}: {}", found.name(), held.join(", ")), None)
        }
        found => finding("cgroups", Grade::Weak, format!("{}: only {}", found.name(), held.join(", ")), None),
    }
}

/// A second wall behind the mounts; sandboxes work without it.
fn landlock() -> Finding {
    use landlock::{Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
    let offered = |abi| {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        ruleset.handle_access(AccessFs::from_all(abi)).and_then(Ruleset::create).is_ok()
    };
    match [landlock::ABI::V3, landlock::ABI::V1].into_iter().find(|abi| offered(*abi)) {
        Some(abi) => finding("Landlock", Grade::Good, format!("at least {abi:?}"), None),
        None => finding(
            "Landlock",
            Grade::Weak,
            "this kernel does not offer it: the walls are there, but not said twice",
            Some("Boot with `lsm=landlock,…`, or use a kernel with CONFIG_SECURITY_LANDLOCK"),
        ),
    }
}

fn way_out(host: &Host) -> Finding {
    match &host.way_out {
        Some(Reach::Everything) => {
            finding("network", Grade::Good, "every program reaches what its policy allows", None)
        }
        Some(Reach::Packets { why }) => {
            let found = format!(
                "every program reaches what its policy allows, by a tunnel, which is slower: connections cannot be redirected ({why})"
            );
            finding("network", Grade::Good, found, None)
        }
        Some(Reach::Proxy { .. }) if host.bwrap.is_some() => finding(
            "network",
            Grade::Weak,
            "only programs that know a proxy reach anything: bwrap starts sandboxes here, and makes their network",
            Some(&namespace_fix()),
        ),
        Some(Reach::Proxy { why }) => finding(
            "network",
            Grade::Weak,
            format!("only programs that know a proxy reach anything: connections cannot be redirected ({why})"),
            Some(
                "Load the kernel's packet filter: `sudo modprobe -a nf_tables nft_chain_nat nft_redir nft_ct nft_reject_inet`",
            ),
        ),
        None => finding("network", Grade::Broken, "no network namespace can be made", Some(&namespace_fix())),
    }
}

/// How a policy would be held, found out by planning a sandbox that nobody makes.
fn outlook(policy: &Policy, host: &Host) -> Option<Outlook> {
    let owner = UserId::local();
    let id = SessionId::random(&owner).ok()?;
    let (policy, env) = (policy.clone(), Default::default());
    let spec = SandboxSpec {
        id,
        owner,
        image: Image::Host,
        policy,
        persistent: false,
        env,
        certificates: None,
        tools: Vec::new(),
    };
    let name = spec.policy.name.clone();
    let plan = Chosen::find(&spec.policy.privileges).and_then(|calls| {
        let prepared = Prepared::for_nobody(&spec, host)?;
        plan::plan(&spec, &calls, host, &prepared, 0, std::time::Duration::ZERO)
    });
    Some(match plan {
        Ok((_, enforcement)) => Outlook { policy: name, enforcement, refused: None },
        Err(error) => Outlook { policy: name, enforcement: Enforcement::default(), refused: Some(error.to_string()) },
    })
}
