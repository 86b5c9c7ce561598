//! The presets as a table that people read. `docs/policy.md` holds what [`markdown`] says, and a test compares them.

use std::fmt::{self, Write as _};

use super::{DeniedPrograms, PRESETS, Policy, Root, SecurityProfile, User};

/// A row for every preset, and what is denied to all of them.
pub fn markdown() -> String {
    let mut text = String::from(
        "| preset | network | root | user, capabilities | system calls | memory | cpus | pids | /tmp | disk | start, run | denied programs |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for policy in PRESETS.iter().filter_map(|name| Policy::preset(name)) {
        let (limits, privileges) = (&policy.limits, &policy.privileges);
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {}, {} | {} | {} | {} | {} | {} | {} | {} s, {} s | {} |",
            policy.name,
            policy.network,
            policy.filesystem.root,
            privileges.user,
            privileges.capabilities,
            privileges.system_calls,
            limits.memory,
            f64::from(limits.cpu_millis) / 1000.0,
            limits.pids,
            limits.tmp,
            limits.disk,
            limits.start.as_secs(),
            limits.run.as_secs(),
            policy.commands.denied_programs,
        );
    }
    text.push_str(
        "| `builtin` | runs outside a sandbox: only for servers that ship with this program | | | | | | | | | | |\n",
    );
    text
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "read-only",
            Self::Writable => "writable",
        })
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sandbox => "uid 1000",
            Self::Root => "root inside",
        })
    }
}

impl fmt::Display for SecurityProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Named(name) => name,
        })
    }
}

impl fmt::Display for DeniedPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Explained => "explained",
            Self::Removed => "removed",
        })
    }
}
