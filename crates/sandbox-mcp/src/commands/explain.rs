//! Why something is denied and what to do instead, in plain words.

use super::rules::Rule;

/// Programs with the same reason.
struct Group {
    names: &'static [&'static str],
    why: &'static str,
    instead: &'static str,
}

/// Programs that run others as another user.
const BECOMING: [&str; 11] =
    ["sudo", "sudoedit", "su", "doas", "pkexec", "runuser", "newgrp", "sg", "gosu", "su-exec", "run0"];

const GROUPS: &[Group] = &[
    Group {
        names: &BECOMING,
        why: "commands in a sandbox cannot become another user",
        instead: "Run the command without it; packages install into HOME (`pip install`, `npm install -g`).",
    },
    Group {
        names: &[
            "docker",
            "docker-compose",
            "dockerd",
            "podman",
            "buildah",
            "nerdctl",
            "ctr",
            "containerd",
            "runc",
            "crun",
            "kubectl",
            "lxc",
            "machinectl",
            "systemd-nspawn",
        ],
        why: "no container engine can be reached from a sandbox",
        instead: "Ask for another sandbox with the image that you need.",
    },
    Group {
        names: &[
            "systemctl",
            "systemd-run",
            "service",
            "initctl",
            "telinit",
            "init",
            "crontab",
            "at",
            "batch",
            "shutdown",
            "reboot",
            "halt",
            "poweroff",
        ],
        why: "a sandbox has no services and no timers of the machine",
        instead: "Start the program itself as a job, in the background if need be.",
    },
    Group {
        names: &["ssh", "scp", "sftp", "sshd", "telnet", "nc", "ncat", "netcat", "socat", "rsh", "rlogin"],
        why: "sessions on other machines are not part of what this policy allows",
        instead: "Fetch over HTTPS (curl, git, pip), or bring what is needed into /workspace.",
    },
    Group {
        names: &[
            "mount",
            "umount",
            "unshare",
            "nsenter",
            "chroot",
            "pivot_root",
            "insmod",
            "modprobe",
            "rmmod",
            "kexec",
            "losetup",
        ],
        why: "mounts, namespaces and the kernel are the machine's and not the sandbox's",
        instead: "Work with files below /workspace, HOME and /tmp.",
    },
    Group {
        names: &[
            "mkfs",
            "mke2fs",
            "format",
            "fdisk",
            "sfdisk",
            "parted",
            "mkswap",
            "swapon",
            "swapoff",
            "cryptsetup",
            "wipefs",
            "blkdiscard",
            "dd",
        ],
        why: "a sandbox has no disks and may not write to devices",
        instead: "Write to a file below /workspace or /tmp.",
    },
    Group {
        names: &["iptables", "ip6tables", "nft"],
        why: "the network's rules are made outside the sandbox",
        instead: "Do without; a host that is refused can be asked for, or is part of a wider policy.",
    },
    Group {
        names: &["chmod"],
        why: "permissions for everybody are never needed here, because all commands have the same user",
        instead: "Use `chmod 755` for programs and folders, `chmod 644` for files.",
    },
    Group {
        names: &["rm"],
        why: "it would remove everything that the sandbox can write",
        instead: "Name the folders that should go, such as `rm -rf ./build`, or destroy the sandbox.",
    },
];

/// Why this rule denies, and what to do instead.
pub fn denied(rule: &Rule) -> (String, String) {
    match GROUPS.iter().find(|group| group.names.contains(&rule.name.as_str())) {
        Some(group) => (group.why.to_owned(), group.instead.to_owned()),
        None => (
            "the policy of this sandbox denies it".to_owned(),
            "Do it another way, or ask for a policy that permits it.".to_owned(),
        ),
    }
}

/// What to do instead, for commands that are root inside.
pub fn to_root(rule: &str) -> Option<String> {
    BECOMING.contains(&rule).then(|| format!("You are root already: leave `{rule}` out."))
}

/// Why a program that is not listed is denied, and what to do instead.
pub fn unlisted(name: &str) -> (String, String) {
    let why = format!("the policy of this sandbox lists the programs that may run, and `{name}` is not one of them");
    (why, "Use a program that is listed, or ask for a policy that allows this one.".to_owned())
}
