//! The named policies, all of them, and nothing else. `docs/policy.md` is generated from here.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Capabilities, Commands, DeniedPrograms, Filesystem, Limits, Network, Policy, Privileges, Root, SecurityProfile,
    SystemCalls, User,
};
use crate::Bytes;

/// The names of all presets that a sandbox can be made with. `builtin` is not one: what it names runs without.
pub const PRESETS: [&str; 10] = [
    "full_isolation",
    "development",
    "build",
    "production",
    "yolo-1",
    "yolo-2",
    "yolo-3",
    "yolo-4",
    "user_added",
    "verified",
];

/// The presets of `yolo_level` 1 to 4.
pub const YOLO_LEVELS: [&str; 4] = ["yolo-1", "yolo-2", "yolo-3", "yolo-4"];

/// The preset that is used when nobody says otherwise.
pub const DEFAULT_PRESET: &str = "yolo-3";

/// What `@standard` in a list of allowed commands stands for.
#[rustfmt::skip]
pub const STANDARD_COMMANDS: &[&str] = &[
    "awk", "base64", "basename", "bash", "bunzip2", "bzip2", "cat", "chmod", "cmp", "column", "comm", "cp", "csplit",
    "curl", "cut", "date", "deno", "df", "diff", "dirname", "du", "echo", "egrep", "env", "expand", "expr", "false",
    "fgrep", "file", "find", "fmt", "fold", "gawk", "git", "grep", "gunzip", "gzip", "head", "hostname", "iconv", "id",
    "install", "join", "jq", "less", "ln", "locale", "ls", "md5sum", "mkdir", "mktemp", "more", "mv", "nl", "node",
    "nproc", "npm", "npx", "numfmt", "od", "paste", "patch", "perl", "pip", "pip3", "pipx", "printenv", "printf", "ps",
    "pwd", "python", "python3", "readlink", "realpath", "rev", "rm", "rmdir", "rsync", "sed", "seq", "sh", "sha1sum",
    "sha256sum", "sha512sum", "shuf", "sleep", "sort", "split", "stat", "stdbuf", "strings", "tac", "tail", "tar", "tee",
    "test", "time", "timeout", "touch", "tr", "true", "truncate", "tsort", "uname", "unexpand", "uniq", "unxz", "unzip",
    "uv", "uvx", "wc", "wget", "which", "whoami", "xargs", "xxd", "xz", "yes", "zcat", "zip", "zstd",
];

/// What no sandbox needs: more privilege, the machine's services, other machines' doors, raw devices.
#[rustfmt::skip]
const DENIED: &[&str] = &[
    // More privilege, or another user.
    "sudo", "sudoedit", "su", "doas", "pkexec", "run0", "runuser", "gosu", "su-exec", "newgrp", "sg",
    // Other engines.
    "docker", "docker-compose", "dockerd", "podman", "buildah", "nerdctl", "ctr", "containerd", "runc", "crun", "kubectl",
    "lxc", "machinectl", "systemd-nspawn",
    // This machine's services and timers.
    "systemctl", "systemd-run", "service", "initctl", "telinit", "shutdown", "reboot", "halt", "poweroff", "crontab", "at",
    "batch",
    // Doors to other machines.
    "ssh", "scp", "sftp", "sshd", "telnet", "nc", "ncat", "netcat", "socat", "rsh", "rlogin",
    // Namespaces, mounts and modules.
    "mount", "umount", "unshare", "nsenter", "chroot", "pivot_root", "insmod", "modprobe", "rmmod", "kexec", "losetup",
    // Devices and networks.
    "mkfs", "mke2fs", "format", "fdisk", "sfdisk", "parted", "wipefs", "blkdiscard", "mkswap", "swapon", "swapoff",
    "cryptsetup", "iptables", "ip6tables", "nft", "dd of=/dev/",
    // What destroys by accident.
    "chmod 777", "rm -rf /", "rm -rf ~",
];

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

/// The preset of this name.
pub(super) fn find(name: &str) -> Option<Policy> {
    use {Network as N, SystemCalls as S};
    const NO_CAPABILITIES: Capabilities = Capabilities::NONE;
    let policy = match name {
        // Security levels.
        "full_isolation" => Policy {
            limits: limits(Bytes::gib(1), 1000, 128, Bytes::mib(100)),
            network: N::None,
            filesystem: root(Root::ReadOnly),
            privileges: privileges(User::Sandbox, NO_CAPABILITIES, S::Minimal),
            commands: denied(DeniedPrograms::Removed),
            ..unnamed()
        },
        "development" => Policy {
            network: N::Public,
            filesystem: root(Root::Writable),
            privileges: privileges(User::Sandbox, Capabilities::CONTAINER, S::Build),
            ..unnamed()
        },
        "build" => Policy {
            limits: limits(Bytes::gib(4), 2000, 1024, Bytes::gib(2)),
            network: N::Registries,
            filesystem: root(Root::Writable),
            privileges: privileges(User::Root, Capabilities::EXTENDED, S::Build),
            ..unnamed()
        },
        // As configured: this is what a policy of one's own starts from.
        "production" => Policy { network: N::Public, ..unnamed() },
        // How much an agent may do by itself.
        "yolo-1" => Policy { network: N::None, commands: denied(DeniedPrograms::Removed), ..unnamed() },
        "yolo-2" => Policy { network: N::Web, ..unnamed() },
        "yolo-3" => Policy { network: N::WebAndRegistries, ..unnamed() },
        "yolo-4" => Policy {
            network: N::Public,
            filesystem: root(Root::Writable),
            privileges: privileges(User::Root, Capabilities::CONTAINER, S::Standard),
            ..unnamed()
        },
        // How far a third-party MCP server is trusted.
        "user_added" => Policy {
            limits: Limits { run: SECONDS(300), ..limits(Bytes::mib(512), 500, 50, Bytes::mib(100)) },
            network: N::None,
            privileges: privileges(User::Sandbox, NO_CAPABILITIES, S::Minimal),
            commands: denied(DeniedPrograms::Removed),
            ..unnamed()
        },
        "verified" => Policy {
            limits: Limits { run: SECONDS(300), ..limits(Bytes::gib(1), 1000, 50, Bytes::mib(100)) },
            network: N::Public,
            ..unnamed()
        },
        _ => return None,
    };
    Some(Policy { name: name.to_owned(), ..policy })
}

/// What most presets have: 4 GiB, 2 processors, a read-only root, uid 1000 without privileges.
fn unnamed() -> Policy {
    Policy {
        name: String::new(),
        limits: limits(Bytes::gib(4), 2000, 512, Bytes::gib(1)),
        network: Network::None,
        network_rules: Vec::new(),
        host_ports: BTreeSet::new(),
        filesystem: root(Root::ReadOnly),
        privileges: privileges(User::Sandbox, Capabilities::NONE, SystemCalls::Standard),
        commands: denied(DeniedPrograms::Explained),
        strict: false,
        allow_unenforced: BTreeSet::new(),
    }
}

fn limits(memory: Bytes, cpu_millis: u32, pids: u32, tmp: Bytes) -> Limits {
    Limits {
        memory,
        cpu_millis,
        pids,
        disk: Bytes::gib(10),
        tmp,
        start: SECONDS(30),
        run: SECONDS(600),
        connections: Limits::usual_connections(),
        bandwidth: None,
        transfer: None,
    }
}

fn root(root: Root) -> Filesystem {
    Filesystem { root, writable: BTreeSet::new() }
}

fn privileges(user: User, capabilities: Capabilities, system_calls: SystemCalls) -> Privileges {
    Privileges { user, capabilities, system_calls, security_profile: SecurityProfile::Auto, runtime: None }
}

fn denied(denied_programs: DeniedPrograms) -> Commands {
    Commands { allow: None, deny: DENIED.iter().map(|rule| (*rule).to_owned()).collect(), denied_programs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_preset_exists() {
        for name in PRESETS {
            assert_eq!(Policy::preset(name).map(|policy| policy.name).as_deref(), Some(name));
        }
        assert!(PRESETS.contains(&DEFAULT_PRESET) && YOLO_LEVELS.iter().all(|name| PRESETS.contains(name)));
        for name in ["yolo-5", "builtin", ""] {
            assert_eq!(Policy::preset(name), None);
        }
    }

    #[test]
    fn what_nobody_trusts_has_the_figures_that_were_promised() {
        let Some(policy) = Policy::preset("user_added") else { panic!("no user_added") };
        let limits = &policy.limits;
        assert_eq!((limits.memory, limits.cpu_millis, limits.pids), (Bytes::mib(512), 500, 50));
        assert_eq!((limits.tmp, limits.start, limits.run), (Bytes::mib(100), SECONDS(30), SECONDS(300)));
        assert_eq!((policy.network, policy.filesystem.root), (Network::None, Root::ReadOnly));
    }

    #[test]
    fn only_those_with_a_writable_root_make_commands_root() {
        for policy in PRESETS.iter().filter_map(|name| Policy::preset(name)) {
            let root = policy.privileges.user == User::Root;
            assert!(!root || policy.filesystem.root == Root::Writable, "{}", policy.name);
            let privileged = policy.privileges.capabilities != Capabilities::NONE;
            assert_eq!(privileged, policy.filesystem.root == Root::Writable, "{}", policy.name);
        }
    }
}
