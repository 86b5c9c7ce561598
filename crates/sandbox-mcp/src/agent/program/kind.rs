//! The programs that work as agents inside: what they are called, and where they come from.

use std::path::Path;

/// One program.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// What callers call it.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// The beginning of its package's name at the npm registry; the platform comes after it.
    package: &'static str,
    /// The program, in the package.
    pub program: &'static str,
    /// Whether there is a package for processors without AVX2.
    has_baseline: bool,
}

/// Anthropic's own. Proprietary: everybody fetches it for themselves.
pub const CLAUDE_CODE: Kind = Kind {
    name: "claude-code",
    about: "Anthropic's Claude Code, inside the sandbox",
    package: "@anthropic-ai/claude-code-linux",
    program: "claude",
    has_baseline: false,
};

/// A free one, for models of all kinds.
pub const OPENCODE: Kind = Kind {
    name: "opencode",
    about: "OpenCode, inside the sandbox; it works with any model",
    package: "opencode-linux",
    program: "bin/opencode",
    has_baseline: true,
};

/// All of them.
pub const KINDS: [&Kind; 2] = [&CLAUDE_CODE, &OPENCODE];

/// Where programs are, inside.
pub(super) const INSIDE: &str = "/opt/agents";

impl Kind {
    /// The program of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        KINDS.into_iter().find(|kind| kind.name == name)
    }

    /// Its package for this machine; nothing where there is none.
    pub fn package(&self) -> Option<String> {
        let processor = match std::env::consts::ARCH {
            "x86_64" => "x64",
            "aarch64" => "arm64",
            _ => return None,
        };
        let baseline = if self.has_baseline && is_old() { "-baseline" } else { "" };
        let musl = if is_musl(Path::new("/")) { "-musl" } else { "" };
        Some(format!("{}-{processor}{baseline}{musl}", self.package))
    }

    /// The folder that it is in, inside.
    pub fn folder_inside(&self) -> String {
        format!("{INSIDE}/{}", self.name)
    }

    /// The program itself, inside.
    pub fn program_inside(&self) -> String {
        format!("{INSIDE}/{}/{}", self.name, self.program)
    }
}

#[cfg(target_arch = "x86_64")]
fn is_old() -> bool {
    !std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn is_old() -> bool {
    false
}

/// Whether programs of this machine are linked with musl; what is linked with glibc does not start then.
fn is_musl(root: &Path) -> bool {
    let loader = |name: &str| root.join(name).exists();
    let glibc = ["lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1"];
    let musl = ["lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1"];
    musl.into_iter().any(loader) && !glibc.into_iter().any(loader)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_program_has_its_package_and_its_place() {
        for kind in KINDS {
            assert!(Kind::named(kind.name).is_some_and(|found| found == kind));
            assert!(kind.package().is_none_or(|package| package.starts_with(kind.package)));
            assert!(kind.program_inside().starts_with(&kind.folder_inside()));
        }
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("lib")).unwrap();
        assert!(!is_musl(root.path()));
        std::fs::write(root.path().join("lib/ld-musl-x86_64.so.1"), "").unwrap();
        assert!(is_musl(root.path()));
    }
}
