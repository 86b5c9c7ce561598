//! What this machine lets a runtime do, in words, tried by making a sandbox and ending it.

use std::time::{Duration, Instant};

use sandbox_core::{
    Backend, Enforcement, Error, Finding, Grade, Image, Outlook, Policy, Probe, SandboxSpec, SessionId, UserId,
};
use sandbox_linux::{cgroup::CgroupHost, ids::IdSource, images};

use crate::{
    backend::{BACKEND, Found, MORE_IDS, OciBackend, in_words},
    runtime::{Kind, install},
};

/// A machine that takes longer for one sandbox is not one to work on.
const PATIENCE: Duration = Duration::from_secs(30);

/// Looks at everything that matters.
pub async fn probe(backend: &OciBackend, policies: &[Policy]) -> Probe {
    let found = match backend.found().await {
        Ok(found) => found,
        Err(error) => {
            let (why, fix) = in_words(&error);
            let fix = fix.or_else(|| Some(install(backend.wanted())));
            let findings = vec![finding(&format!("runtime {}", backend.wanted()), Grade::Broken, why, fix)];
            return Probe { backend: BACKEND.into(), usable: false, findings, outlooks: Vec::new() };
        }
    };
    let mut findings = vec![runtime(&found)];
    let tried = attempt(backend).await;
    let usable = tried.is_ok();
    findings.push(match tried {
        Ok(took) => {
            finding("start", Grade::Good, format!("a sandbox was made and ended in {} ms", took.as_millis()), None)
        }
        Err(error) => {
            let (why, fix) = in_words(&error);
            finding("start", Grade::Broken, why, fix)
        }
    });
    findings.extend([network(&found), ids(&found), cgroups(&found)]);
    let mut outlooks = Vec::new();
    for policy in policies {
        outlooks.extend(outlook(backend, &found, policy).await);
    }
    Probe { backend: BACKEND.into(), usable, findings, outlooks }
}

fn finding(subject: &str, grade: Grade, found: impl Into<String>, fix: Option<String>) -> Finding {
    Finding { subject: subject.into(), grade, found: found.into(), fix }
}

fn runtime(found: &Found) -> Finding {
    let runtime = &found.runtime;
    let on = match runtime.kind {
        Kind::Gvisor => "a kernel of its own (gVisor, platform systrap)",
        Kind::Plain => "this machine's kernel",
    };
    finding("runtime", Grade::Good, format!("{}: {}; {on}", runtime.path.display(), runtime.version), None)
}

/// Makes a sandbox and ends it.
async fn attempt(backend: &OciBackend) -> Result<Duration, Error> {
    let Some(policy) = Policy::preset("full_isolation") else { return Ok(Duration::ZERO) };
    let Some(mut spec) = nobodys(&policy) else { return Ok(Duration::ZERO) };
    // It is about the runtime, not about what a policy wants.
    spec.policy.allow_unenforced.extend(sandbox_core::Control::ALL);
    let began = Instant::now();
    let made = tokio::time::timeout(PATIENCE, backend.create(&spec)).await;
    let timeout = || Error::Step { step: "starting".into(), why: format!("nothing happens for {PATIENCE:?}") };
    let sandbox = made.unwrap_or_else(|_| Err(timeout()))?;
    sandbox.destroy().await?;
    Ok(began.elapsed())
}

fn network(found: &Found) -> Finding {
    let how = match found.runtime.kind {
        Kind::Gvisor => {
            "gVisor's own, with loopback only (`--network=none`, which also works where Linux 6.11 and newer break `--network=sandbox`)"
        }
        Kind::Plain => "a namespace with loopback only",
    };
    finding("network", Grade::Good, how, None)
}

fn ids(found: &Found) -> Finding {
    match found.host.ids {
        IdSource::Ranges => finding("ids", Grade::Good, "root: every sandbox has 65,536 of its own", None),
        IdSource::Subordinate { count } => finding("ids", Grade::Good, format!("{count} subordinate ids"), None),
        IdSource::Single => finding("ids", Grade::Broken, "only your own", Some(MORE_IDS.into())),
    }
}

fn cgroups(found: &Found) -> Finding {
    match &found.host.cgroup {
        CgroupHost::None { why } => finding(
            "cgroups",
            Grade::Weak,
            format!("{why}: memory is watched instead of held"),
            Some("With systemd: `systemd-run --user --scope -p Delegate=yes sandbox-mcp …` gives you a cgroup of your own".into()),
        ),
        some => finding("cgroups", Grade::Good, some.name(), None),
    }
}

/// How a policy would be held, found out by planning a sandbox that nobody makes.
async fn outlook(backend: &OciBackend, found: &Found, policy: &Policy) -> Option<Outlook> {
    let spec = nobodys(policy)?;
    let name = policy.name.clone();
    let planned = match images::stand(&spec, &found.host) {
        Ok(standing) => backend.plan(&standing, found).await,
        Err(error) => Err(error),
    };
    Some(match planned {
        Ok((_, enforcement)) => Outlook { policy: name, enforcement, refused: None },
        Err(error) => Outlook { policy: name, enforcement: Enforcement::default(), refused: Some(error.to_string()) },
    })
}

fn nobodys(policy: &Policy) -> Option<SandboxSpec> {
    let owner = UserId::local();
    let id = SessionId::random(&owner).ok()?;
    let (policy, env) = (policy.clone(), Default::default());
    Some(SandboxSpec {
        id,
        owner,
        image: Image::Host,
        policy,
        persistent: false,
        env,
        certificates: None,
        tools: Vec::new(),
    })
}
