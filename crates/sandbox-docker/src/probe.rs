//! What an engine lets us do, in words.

use sandbox_core::{
    Finding, Grade, Image, Outlook, Policy, Probe, SandboxSpec, SessionId, UserId, policy::DeniedPrograms,
};
use sandbox_linux::seccomp::Chosen;

use crate::{
    BACKEND, DockerBackend,
    backend::check_runtime,
    engine::Engine,
    holdings, image,
    nature::{Nature, Reach},
    plan,
    programs::Covered,
};

/// Looks.
pub async fn probe(backend: &DockerBackend, policies: &[Policy]) -> Probe {
    let engine = match backend.engine().await {
        Ok(engine) => engine,
        Err(error) => {
            let (found, fix) = match error {
                sandbox_core::Error::Unavailable { what, why, fix } => (format!("{what}: {why}"), Some(fix)),
                other => (other.to_string(), None),
            };
            let finding = Finding { subject: "container engine".into(), grade: Grade::Broken, found, fix };
            return Probe { backend: BACKEND.into(), usable: false, findings: vec![finding], outlooks: Vec::new() };
        }
    };
    let mut findings = of_engine(&engine.nature);
    findings.push(of_image(backend, engine).await);
    let outlooks = policies.iter().map(|policy| outlook(policy, &engine.nature)).collect();
    Probe { backend: BACKEND.into(), usable: true, findings, outlooks }
}

fn of_engine(engine: &Nature) -> Vec<Finding> {
    let good = |subject: &str, found: String| Finding { subject: subject.into(), grade: Grade::Good, found, fix: None };
    let weak = |subject: &str, found: &str, fix: Option<&str>| Finding {
        subject: subject.into(),
        grade: Grade::Weak,
        found: found.into(),
        fix: fix.map(str::to_owned),
    };
    let root = if engine.rootless { ", without root" } else { "" };
    let name =
        format!("{} {} at {} (interface {}){root}", engine.kind.name(), engine.version, engine.address, engine.api);
    let mut findings = vec![good("container engine", name)];
    findings.push(match engine.reach(None) {
        Reach::Socket => good("way to the executor", "a socket on this machine".into()),
        Reach::Streams => weak(
            "way to the executor",
            "through the engine: it is on another machine, or has a kernel of its own",
            None,
        ),
    });
    let runtimes: Vec<&str> = engine.runtimes.keys().map(String::as_str).collect();
    findings.push(good("runtimes", format!("{} (default {})", runtimes.join(", "), engine.default_runtime)));
    findings.push(if engine.user_namespaces {
        good("user namespace", "root inside is nobody outside".into())
    } else {
        let fix = "Use Docker or Podman without root, or set \"userns-remap\" in /etc/docker/daemon.json";
        weak("user namespace", "none: root inside is root of that machine without its privileges", Some(fix))
    });
    let holds = engine.holds;
    let cgroups = format!("cgroup v{}", engine.cgroup);
    findings.push(if holds.memory && holds.cpu && holds.pids {
        good("limits", format!("{cgroups}: memory, cpu and pids"))
    } else {
        let fix = "Use cgroup v2 with delegation (systemd), or an engine that runs as root";
        let found = format!("{cgroups}: memory {}, cpu {}, pids {}", holds.memory, holds.cpu, holds.pids);
        Finding { subject: "limits".into(), grade: Grade::Weak, found, fix: Some(fix.into()) }
    });
    findings
}

async fn of_image(backend: &DockerBackend, engine: &Engine) -> Finding {
    let subject = "default image".to_owned();
    let Some(name) = backend.default_image() else {
        let fix = "Set `docker_image` in the settings, or DOCKER_IMAGE".to_owned();
        return Finding { subject, grade: Grade::Weak, found: "none is set".into(), fix: Some(fix) };
    };
    match image::inspect(&engine.docker, name).await {
        Ok(Some(_)) => Finding { subject, grade: Grade::Good, found: format!("{name} is there"), fix: None },
        _ => {
            let found = format!("{name} is not there yet; it is fetched when it is first used");
            Finding { subject, grade: Grade::Good, found, fix: None }
        }
    }
}

fn outlook(policy: &Policy, engine: &Nature) -> Outlook {
    let owner = UserId::local();
    let refused =
        |why: String| Outlook { policy: policy.name.clone(), enforcement: Default::default(), refused: Some(why) };
    let Ok(id) = SessionId::random(&owner) else { return refused("there are no random numbers".into()) };
    let spec = SandboxSpec {
        id,
        owner,
        image: Image::Host,
        policy: policy.clone(),
        persistent: false,
        env: Default::default(),
        certificates: None,
        tools: Vec::new(),
    };
    let covered = (policy.commands.denied_programs == DeniedPrograms::Removed && engine.here).then(Covered::default);
    let held = check_runtime(&spec, engine)
        .and_then(|()| plan::check_places(&spec))
        .and_then(|()| Chosen::find(&policy.privileges))
        .map(|calls| holdings::of(&spec, engine, &calls.to_string(), covered.as_ref()));
    match held {
        Err(error) => refused(error.to_string()),
        Ok(enforcement) => {
            let refused = enforcement.satisfies(policy).err().map(|error| error.to_string());
            Outlook { policy: policy.name.clone(), enforcement, refused }
        }
    }
}
