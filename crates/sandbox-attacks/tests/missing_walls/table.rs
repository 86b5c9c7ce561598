//! The table: a wall, what backs it up and so is left out with it, and the attacks that break through then.

use sandbox_attacks::Wall;
use sandbox_core::{
    Policy,
    policy::{Capabilities, SystemCalls, User},
};

/// One wall.
pub struct Row {
    /// Its name.
    pub wall: &'static str,
    /// What would hold the attacks all the same, or cannot stand without it.
    pub and: &'static [&'static str],
    /// Who notices.
    pub notice: Notice,
}

/// Who notices that a wall is missing.
#[derive(Clone, Copy)]
pub enum Notice {
    /// These, each of them.
    Attacks { who: Who, place: Where, attacks: &'static [&'static str] },
    /// Nobody could, for this reason.
    Nothing(&'static str),
}

/// Where a wall is at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    Anywhere,
    WithoutCgroup,
    SeveralIds,
    OneId,
}

/// Whose sandbox is attacked. All have a read-only root and no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A user without privileges.
    Plain,
    /// Root inside, without privileges: the owner of what the mounts and Landlock protect.
    Root,
    /// Root inside with what container engines give.
    ContainerRoot,
    /// A user with a tenth of a processor, which even a busy machine has to spare.
    Slow,
    /// A user who may execute only some programs.
    Listed,
}

impl Who {
    pub const ALL: [Self; 5] = [Self::Plain, Self::Root, Self::ContainerRoot, Self::Slow, Self::Listed];

    pub fn policy(self) -> Policy {
        let mut policy = Policy::preset("user_added").expect("a preset");
        // The filter is to hold nothing that another wall should.
        policy.privileges.system_calls = SystemCalls::Standard;
        match self {
            Self::Plain => {}
            Self::Root => policy.privileges.user = User::Root,
            Self::ContainerRoot => {
                policy.privileges.user = User::Root;
                policy.privileges.capabilities = Capabilities::CONTAINER;
            }
            Self::Slow => policy.limits.cpu_millis = 100,
            Self::Listed => policy.commands.allow = Some(["@standard".to_owned(), "/workspace/".to_owned()].into()),
        }
        policy
    }
}

const fn row(wall: &'static str, and: &'static [&'static str], who: Who, attacks: &'static [&'static str]) -> Row {
    Row { wall, and, notice: Notice::Attacks { who, place: Where::Anywhere, attacks } }
}

impl Row {
    const fn only(self, place: Where) -> Self {
        let notice = match self.notice {
            Notice::Attacks { who, attacks, .. } => Notice::Attacks { who, place, attacks },
            nothing => nothing,
        };
        Self { notice, ..self }
    }

    /// All that is left out.
    pub fn walls(&self) -> Vec<&'static str> {
        [self.wall].iter().chain(self.and).copied().collect()
    }

    pub fn attacks(&self) -> &'static [&'static str] {
        match self.notice {
            Notice::Attacks { attacks, .. } => attacks,
            Notice::Nothing(_) => &[],
        }
    }

    pub fn who(&self) -> Option<Who> {
        match self.notice {
            Notice::Attacks { who, .. } => Some(who),
            Notice::Nothing(_) => None,
        }
    }

    /// Others would disturb it, or be disturbed.
    pub fn is_apart(&self) -> bool {
        let alone = |wall: &Wall| matches!(wall, Wall::UserLimits | Wall::CpuLimit);
        sandbox_attacks::all().any(|attack| self.attacks().contains(&attack.name) && attack.walls.iter().any(alone))
    }
}

/// Who may gain nothing by executing needs neither filter nor Landlock to be root; who may, has none of the two.
const NEED_NO_NEW_PRIVS: &[&str] = &["seccomp", "landlock"];

pub const ROWS: &[Row] = &[
    row("seccomp", &[], Who::Plain, &["unfiltered", "add_key"]),
    row("landlock", &["read_only_root"], Who::Root, &["write_root"]),
    row("read_only_root", &["landlock"], Who::Root, &["write_root"]),
    row("no_new_privs", NEED_NO_NEW_PRIVS, Who::Plain, &["gain_by_exec"]),
    row("capabilities", &[], Who::Plain, &["hold_capabilities"]),
    row("no_setuid", &["no_new_privs", "seccomp", "landlock"], Who::ContainerRoot, &["setuid_for_another"])
        .only(Where::SeveralIds),
    row("no_devices", &[], Who::Plain, &["device_files"]),
    row("masks", &[], Who::Plain, &["interrupts"]),
    row("frozen_proc", &["capabilities"], Who::Root, &["user_namespace_limit"]),
    row("old_root", &[], Who::Plain, &["above_the_root"]),
    row("user_namespace_count", &["seccomp"], Who::Plain, &["unshare_user", "clone_with_namespaces"]),
    row("inotify_counts", &[], Who::Plain, &["share_of_watchers"]),
    row("network", &[], Who::Plain, &["host_loopback_tcp", "host_abstract_socket"]),
    row("ipc_namespace", &["visible_memory"], Who::Plain, &["shared_memory_segment"]),
    row("uts_namespace", &[], Who::Plain, &["host_name"]),
    row("cgroup_namespace", &[], Who::Plain, &["cgroup_path"]),
    row("session", &[], Who::Plain, &["session_of_first_process"]),
    row("environment", &[], Who::Plain, &["environment"]),
    row("pid_limit", &[], Who::Plain, &["fork_bomb"]),
    row("memory_limit", &[], Who::Plain, &["memory_private"]),
    row("visible_memory", &[], Who::Plain, &["memory_file"]).only(Where::WithoutCgroup),
    row("cpu_limit", &["cpu_weight"], Who::Slow, &["cpu_by_processes"]),
    Row {
        wall: "cpu_weight",
        and: &[],
        notice: Notice::Nothing(
            "a weight forbids nothing: it shows in how soon others are answered, which is measured",
        ),
    },
    row("disk_watch", &[], Who::Plain, &["disk_by_name"]),
    row("file_size", &["disk_watch"], Who::Plain, &["disk_sparse_then_filled"]),
    row("tmp_size", &[], Who::Plain, &["tmp_beyond_its_size"]),
    row("descriptors", &[], Who::Plain, &["share_of_files"]),
    row("queued_signals", &[], Who::Plain, &["share_of_signals"]),
    row("terminals", &[], Who::Plain, &["share_of_terminals"]),
    row("executor_identity", &[], Who::Plain, &["hold_capabilities"]).only(Where::SeveralIds),
    row("own_user", &[], Who::Plain, &["pipe_buffers"]).only(Where::SeveralIds),
    row("own_network", &[], Who::Plain, &["socket_table"]),
    row("denied_programs", &[], Who::Plain, &["denied_program"]),
    row("program_list", &[], Who::Listed, &["unlisted_program"]),
    row("dumpable", &["executor_identity"], Who::Plain, &["first_process_descriptors", "first_process_memory"]),
    row("command_capabilities", &["capabilities", "seccomp"], Who::Plain, &["unshare_uts"]).only(Where::OneId),
    row("output_pipes", &[], Who::Plain, &["read_own_output"]).only(Where::SeveralIds),
];
