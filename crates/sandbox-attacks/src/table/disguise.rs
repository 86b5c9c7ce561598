//! Blocked commands under a disguise: they may start, and must have no effect.

use crate::{
    Attack, Group,
    Wall::{self, *},
    attack::Way,
    expectation::{capabilities_may_be_granted, denied_may_start, root_inside_may, unlisted_may_start},
};

const fn disguise(name: &'static str, walls: &'static [Wall], tries: &'static str) -> Attack {
    Attack::new(Group::Disguise, Way::Inside, name, walls, tries)
}

/// All of the group.
pub(super) const ATTACKS: &[Attack] = &[
    disguise(
        "copy_under_another_name",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked as a copy named `ls`",
    )
    .expecting(root_inside_may),
    disguise(
        "copy_in_home",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked as a copy named `git` in HOME",
    )
    .expecting(root_inside_may),
    disguise(
        "link_under_another_name",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked by a link with another name",
    )
    .expecting(root_inside_may),
    disguise(
        "hard_link_under_another_name",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked by a hard link with another name",
    )
    .expecting(root_inside_may),
    disguise(
        "program_without_a_file",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked from memory, without a file",
    )
    .expecting(root_inside_may),
    disguise(
        "script_with_interpreter",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked as the interpreter of a script",
    )
    .expecting(root_inside_may),
    disguise(
        "base64_into_shell",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked out of base64, piped into a shell",
    )
    .expecting(root_inside_may),
    disguise(
        "variable_hides_the_name",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked by a name that a variable hides",
    )
    .expecting(root_inside_may),
    disguise(
        "quotes_hide_the_name",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked by a name that quotes hide",
    )
    .expecting(root_inside_may),
    disguise(
        "nested_shells",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked through shells in shells",
    )
    .expecting(root_inside_may),
    disguise(
        "through_xargs_and_find",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked through xargs and find",
    )
    .expecting(root_inside_may),
    disguise(
        "through_python",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked through Python's os.system",
    )
    .expecting(root_inside_may),
    disguise(
        "through_perl",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked through Perl's system",
    )
    .expecting(root_inside_may),
    disguise(
        "through_node",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked through Node",
    )
    .expecting(root_inside_may),
    disguise(
        "through_awk",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked through awk",
    )
    .expecting(root_inside_may),
    disguise(
        "through_background_daemon",
        &[SystemCallFilter, Capabilities, NoNewPrivileges, MountNamespace],
        "Runs what is blocked as a daemon that leaves its session",
    )
    .expecting(root_inside_may),
    disguise("denied_program", &[Programs], "Starts programs that the policy took away").expecting(denied_may_start),
    disguise("unlisted_program", &[Programs], "Starts a program that is not on the policy's list")
        .expecting(unlisted_may_start),
    disguise("loader_mount", &[Capabilities, SystemCallFilter], "Runs `mount` by way of the loader"),
    disguise("loader_unshare", &[SystemCallFilter, UserNamespace], "Runs `unshare` by way of the loader"),
    disguise("loader_su", &[NoNewPrivileges, Identity], "Runs `su` by way of the loader").expecting(root_inside_may),
    disguise("loader_sudo", &[NoNewPrivileges, Identity], "Runs `sudo` by way of the loader")
        .expecting(root_inside_may),
    disguise("loader_systemctl", &[MountNamespace], "Runs `systemctl` by way of the loader"),
    disguise("loader_docker", &[MountNamespace], "Runs `docker` by way of the loader"),
    disguise("loader_ip", &[NetworkNamespace, Capabilities], "Runs `ip` by way of the loader, to add an interface"),
    disguise("loader_nsenter", &[SystemCallFilter, Capabilities], "Runs `nsenter` by way of the loader"),
    disguise("loader_chroot", &[Capabilities], "Runs `chroot` by way of the loader")
        .expecting(capabilities_may_be_granted),
    disguise("loader_dd", &[Devices, MountNamespace], "Runs `dd` on a disk by way of the loader"),
    disguise(
        "loader_mkfs",
        &[Devices, MountNamespace],
        "Runs `mkfs` on a disk by way of the loader (so that nothing is written)",
    ),
    disguise("loader_dmesg", &[SystemCallFilter, Devices, Capabilities], "Runs `dmesg` by way of the loader"),
    disguise("loader_insmod", &[SystemCallFilter, Capabilities], "Runs `insmod` by way of the loader"),
    disguise("loader_shutdown", &[MountNamespace], "Runs `shutdown` by way of the loader (to ask, not to do)"),
    disguise(
        "loader_passwd",
        &[NoNewPrivileges, Identity],
        "Runs `passwd` by way of the loader, to read who has a password",
    )
    .expecting(root_inside_may),
];
