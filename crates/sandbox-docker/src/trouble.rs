//! What is known to go wrong with engines and runtimes, and what to do about it.

use bollard::models::ContainerState;
use sandbox_core::Error;

use crate::{failure, nature::Nature};

/// A part of what an engine says, and what to do then.
const KNOWN: &[(&str, &str)] = &[
    (
        "cannot run with network enabled in root network namespace",
        "This gVisor does not know kernels from 6.11 on: register it with `--network=none` (\"runtimeArgs\" in \
         /etc/docker/daemon.json), or install a newer one",
    ),
    ("unknown or invalid runtime name", "Add it to \"runtimes\" in /etc/docker/daemon.json and restart Docker"),
    ("--platform", "Register gVisor with a platform that this machine has (`--platform=systrap`)"),
    ("KVM", "Register gVisor with `--platform=systrap`: this machine has no KVM that works"),
    ("RLIMIT_NOFILE", "Set `default_ulimits` in containers.conf to what your user may have (`ulimit -Hn`)"),
    (
        "cgroups in hybrid mode not supported",
        "Use runc instead of crun on this machine (`runtime = \"runc\"` in containers.conf)",
    ),
    ("no space left on device", "Free some space on the engine's disk (`docker system prune`)"),
    ("exec format error", "The image is for another kind of processor: use one for this machine's"),
    (
        "bind source path does not exist",
        "The engine is on another machine than it seems: set SANDBOX_MCP_DOCKER_REACH=streams",
    ),
    ("newuidmap", "Install `uidmap`, and give your user subordinate ids (`usermod --add-subuids 100000-165535 $USER`)"),
];

/// What Docker says of a disk without quotas for projects.
const NO_QUOTA: &str = "storage-opt is supported only for overlay over xfs";

/// Whether a container could be made if its layer had no size.
pub fn is_no_quota(error: &bollard::errors::Error) -> bool {
    failure::words(error).contains(NO_QUOTA)
}

/// What the engine answered to a step, with what to do where that is known.
pub fn explain(step: &str, why: &str, engine: &Nature) -> Error {
    match KNOWN.iter().find(|(part, _)| why.contains(part)) {
        Some((_, fix)) => Error::Unavailable {
            what: format!("{} {} failed at {step}", engine.kind.name(), engine.version),
            why: why.to_owned(),
            fix: (*fix).to_owned(),
        },
        None => Error::Step { step: step.to_owned(), why: why.to_owned() },
    }
}

/// A container that ended before its executor was ready.
pub fn ended(state: &ContainerState, engine: &Nature) -> Error {
    let said = state.error.clone().filter(|error| !error.is_empty());
    let code = state.exit_code.unwrap_or_default();
    let killed = if state.oom_killed == Some(true) { ", for lack of memory" } else { "" };
    let why = said.unwrap_or_else(|| format!("the container ended at once with code {code}{killed}"));
    explain("starting the executor", &why, engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nature::tests::docker;

    #[test]
    fn only_a_disk_without_quotas_is_a_reason_to_ask_without_one() {
        let said = |message: &str| bollard::errors::Error::DockerResponseServerError {
            status_code: 400,
            message: message.to_owned(),
        };
        // As Docker says it (quota.go).
        assert!(is_no_quota(&said("--storage-opt is supported only for overlay over xfs with 'pquota' mount option")));
        assert!(!is_no_quota(&said("no space left on device")));
    }

    #[test]
    fn what_is_known_comes_with_what_to_do() {
        let why =
            "OCI runtime create failed: starting container: cannot run with network enabled in root network namespace";
        let text = explain("starting the container", why, &docker()).to_string();
        assert!(text.contains("--network=none") && text.contains(why), "{text}");
        let text = explain("starting the container", "something new", &docker()).to_string();
        assert!(text.contains("something new"), "{text}");
    }
}
