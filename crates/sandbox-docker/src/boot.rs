//! What the executor of a container is told. Pure.

use std::{collections::BTreeMap, time::Duration};

use sandbox_core::{
    Bytes, SandboxSpec,
    policy::{Capabilities, Root, User},
};
use sandbox_executor::boot::{Attachment, Boot, Identity, Itself, OomCounter, processes_of_user};
use sandbox_linux::{HOME, WORKSPACE, way_out};

use crate::{
    holdings::is_transparent,
    nature::{Nature, Reach},
    plan::{Image, in_memory, kept},
};

/// Kept output of each job.
const HISTORY: Bytes = Bytes::mib(4);
/// Descriptors that a command may have, and may ask for.
const DESCRIPTORS: (u64, u64) = (1024, 16384);
/// uid and gid of commands that are not root.
const SANDBOX_ID: u32 = 1000;

/// The message for one sandbox. `filter` is as the kernel reads it, `token` what bridges must know.
pub fn message(
    spec: &SandboxSpec,
    engine: &Nature,
    image: &Image,
    lease: Duration,
    filter: Vec<u8>,
    token: Vec<u8>,
) -> Boot {
    let policy = &spec.policy;
    let reach = engine.reach(policy.privileges.runtime.as_deref());
    let gvisor = engine.is_gvisor(policy.privileges.runtime.as_deref());
    let kept: Vec<String> = kept(spec).into_iter().map(|kept| kept.target).collect();
    let user = match policy.privileges.user {
        User::Sandbox => SANDBOX_ID,
        User::Root => 0,
    };
    let places = match policy.filesystem.root {
        Root::ReadOnly => kept.iter().cloned().chain(["/tmp".to_owned()]).collect(),
        Root::Writable => vec!["/".to_owned()],
    };
    let only_proxy = spec.has_way_out() && !is_transparent(spec, engine);
    let mut env = environment(spec, image);
    if only_proxy {
        sandbox_linux::tell_jvm(&mut env);
    }
    Boot {
        attachment: match reach {
            Reach::Socket => Attachment::Dial,
            Reach::Streams => Attachment::Streams,
        },
        user: Identity::Drop { uid: user, gid: user },
        capabilities: policy.privileges.capabilities.bits(),
        workspace: WORKSPACE.into(),
        places,
        env,
        lease: (!spec.persistent).then_some(lease),
        history: HISTORY,
        pids: match gvisor {
            true => Some(processes_of_user(policy.limits.pids, user == 0)),
            false => (!engine.holds.pids).then_some(policy.limits.pids),
        },
        process_memory: None,
        file_size: Some(policy.limits.disk),
        descriptors: Some(DESCRIPTORS),
        oom: OomCounter::None,
        refused_processes: false,
        supervised: false,
        counts: Vec::new(),
        die_with_parent: false,
        proxy: only_proxy.then_some(way_out::PROXY_PORT),
        itself: Itself {
            own: kept,
            shared: in_memory(spec, image),
            keep: Some(keeps(policy.privileges.capabilities)),
            filter,
            disk: Some(policy.limits.disk),
            root: policy.filesystem.root == Root::Writable,
            pids: gvisor.then_some(policy.limits.pids),
            token: if reach == Reach::Streams { token } else { Vec::new() },
            ..Itself::default()
        },
    }
}

/// What it needs to start commands as another user and to end them, and what the policy grants to commands.
fn keeps(granted: Capabilities) -> u64 {
    const KILL: u64 = 1 << 5;
    const SETGID: u64 = 1 << 6;
    const SETUID: u64 = 1 << 7;
    KILL | SETGID | SETUID | granted.bits()
}

/// The image's variables, then ours, then what was asked for. Programs are looked for where the image says, after our places.
fn environment(spec: &SandboxSpec, image: &Image) -> BTreeMap<String, String> {
    let of_image: BTreeMap<String, String> = image
        .env
        .iter()
        .filter_map(|variable| variable.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut env = of_image.clone();
    env.extend(sandbox_linux::variables(spec, None));
    // Where the system's Python is the distribution's, `pip install` goes into HOME without being asked twice.
    env.entry("PIP_BREAK_SYSTEM_PACKAGES".into()).or_insert_with(|| "1".into());
    if let Some(path) = of_image.get("PATH")
        && !spec.env.contains_key("PATH")
    {
        env.insert("PATH".into(), format!("{HOME}/.venv/bin:{HOME}/.local/bin:{path}"));
    }
    for name in ["LANG", "SHELL"] {
        if let Some(value) = of_image.get(name).filter(|_| !spec.env.contains_key(name)) {
            env.insert(name.into(), value.clone());
        }
    }
    env
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use sandbox_core::{Image as Wanted, Policy, SessionId, UserId};

    use super::*;
    use crate::nature::tests::docker;

    fn spec(preset: &str) -> SandboxSpec {
        let owner = UserId::local();
        SandboxSpec {
            id: SessionId::random(&owner).unwrap(),
            owner,
            image: Wanted::Host,
            policy: Policy::preset(preset).unwrap(),
            persistent: false,
            env: [("MINE".to_owned(), "1".to_owned())].into(),
            certificates: None,
            tools: Vec::new(),
        }
    }

    fn told(spec: &SandboxSpec, engine: &Nature) -> Boot {
        let env = ["PATH=/opt/tool/bin:/bin", "LANG=de_DE.UTF-8", "HOME=/root", "odd"].map(String::from).into();
        let image = Image { env, ..Image::default() };
        message(spec, engine, &image, Duration::from_secs(60), vec![1], vec![2])
    }

    #[test]
    fn variables_of_the_image_count_but_not_its_home() {
        let env = told(&spec("yolo-3"), &docker()).env;
        assert_eq!(env["PATH"], "/home/sandbox/.venv/bin:/home/sandbox/.local/bin:/opt/tool/bin:/bin");
        assert_eq!((&*env["HOME"], &*env["LANG"], &*env["MINE"]), ("/home/sandbox", "de_DE.UTF-8", "1"));
        assert!(env.contains_key("HTTPS_PROXY") && !env.contains_key("odd"));
    }

    #[test]
    fn the_executor_keeps_no_more_than_it_needs() {
        let itself = told(&spec("yolo-3"), &docker()).itself;
        assert_eq!(itself.keep, Some(0b1110_0000), "kill, setgid, setuid; chown is given up");
        assert_eq!(itself.own, ["/workspace", "/home/sandbox"]);
        assert_eq!(itself.filter, [1]);
        assert_eq!(itself.token, [0; 0], "nobody comes over a bridge here");
        assert_eq!(told(&spec("yolo-3"), &Nature { here: false, ..docker() }).itself.token, [2]);
    }

    #[test]
    fn the_proxy_is_the_executors_to_open_only_where_we_cannot() {
        assert_eq!(told(&spec("yolo-3"), &docker()).proxy, None);
        let apart = Nature { enters_networks: false, ..docker() };
        assert_eq!(told(&spec("yolo-3"), &apart).proxy, Some(3128));
        assert_eq!(told(&spec("yolo-1"), &apart).proxy, None, "it reaches nothing");
    }

    #[test]
    fn a_jvm_is_told_of_the_proxy_only_where_nothing_else_leads_out() {
        let apart = Nature { enters_networks: false, ..docker() };
        let options = |spec: &SandboxSpec, engine: &Nature| told(spec, engine).env.get("JAVA_TOOL_OPTIONS").cloned();
        assert_eq!(options(&spec("yolo-3"), &docker()), None);
        assert_eq!(options(&spec("yolo-1"), &apart), None);
        let mut own = spec("yolo-3");
        own.env.insert("JAVA_TOOL_OPTIONS".into(), "-Dhttp.proxyPort=1".into());
        let told = options(&own, &apart).unwrap();
        assert!(told.starts_with("-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=3128 -Dhttps.proxyHost="), "{told}");
        assert!(told.ends_with(" -Dhttp.proxyPort=1"), "what was asked for has the last word: {told}");
    }

    #[test]
    fn places_for_files_follow_the_root() {
        assert_eq!(told(&spec("yolo-3"), &docker()).places, ["/workspace", "/home/sandbox", "/tmp"]);
        assert_eq!(told(&spec("yolo-4"), &docker()).places, ["/"]);
        assert!(told(&spec("yolo-4"), &docker()).itself.root);
    }
}
