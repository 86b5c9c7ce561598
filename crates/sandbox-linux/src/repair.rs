//! What `doctor --fix` can put right: our AppArmor profiles, loaded now and kept for the next start of the machine.
//!
//! Loading needs root. Anybody else gets the files written to a folder of their own, and the commands to type.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Serialize;

use crate::security_module::{self, INSIDE, SecurityModule};

const PROFILES: &str = "/etc/apparmor.d";
const OUTSIDE: &str = "sandbox-mcp";
const OUTSIDE_TEXT: &str = include_str!("../apparmor/sandbox-mcp");
const INSIDE_TEXT: &str = include_str!("../apparmor/sandbox-mcp-inside");

/// One thing that was not as it should be.
#[derive(Debug, Serialize)]
pub struct Repair {
    /// What it is about.
    pub subject: String,
    /// What became of it.
    pub outcome: RepairOutcome,
}

/// What became of something that was not as it should be.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairOutcome {
    /// These things were done.
    Done(Vec<String>),
    /// Only root can do it, with these commands.
    Commands(Vec<String>),
    /// It could not be done.
    Failed(String),
}

/// A step of a repair failed.
#[derive(Debug, thiserror::Error)]
enum RepairError {
    #[error("the program apparmor_parser is missing: install the package `apparmor` and try again")]
    NoParser,
    #[error("the path of this program cannot stand in a profile: {0}")]
    ProgramPath(PathBuf),
    #[error("finding this program failed: {0}")]
    Program(io::Error),
    #[error("writing {} failed: {why}", path.display())]
    Write { path: PathBuf, why: io::Error },
    #[error("starting {} failed: {why}", parser.display())]
    Start { parser: PathBuf, why: io::Error },
    #[error("apparmor_parser did not take the profile: {0}")]
    Refused(String),
}

/// Puts right what can be. `scratch` is a folder of the caller's own. Nothing comes back where nothing is wrong.
pub fn repair(scratch: &Path) -> Vec<Repair> {
    if !matches!(SecurityModule::look(), SecurityModule::AppArmor { .. }) {
        return Vec::new();
    }
    let mut wanted = vec![(INSIDE, Ok(INSIDE_TEXT.to_owned()))];
    if security_module::restricts_user_namespaces() {
        wanted.push((OUTSIDE, outside_text()));
    }
    wanted.into_iter().filter_map(|(name, text)| profile(name, text, scratch)).collect()
}

/// The profile of this program, wherever it is.
fn outside_text() -> Result<String, RepairError> {
    let program = std::env::current_exe().and_then(fs::canonicalize).map_err(RepairError::Program)?;
    match program.to_str().and_then(quoted) {
        Some(path) => Ok(OUTSIDE_TEXT.replace("@PROGRAM@", &path)),
        None => Err(RepairError::ProgramPath(program)),
    }
}

/// A path as it stands between the quotes of a profile, where some characters are patterns; see apparmor.d(5).
fn quoted(path: &str) -> Option<String> {
    let mut quoted = String::with_capacity(path.len());
    for character in path.chars() {
        match character {
            control if control.is_control() => return None,
            '*' | '?' | '[' | ']' | '{' | '}' | '^' | '"' | '\\' | '@' => quoted.extend(['\\', character]),
            plain => quoted.push(plain),
        }
    }
    Some(quoted)
}

fn profile(name: &str, text: Result<String, RepairError>, scratch: &Path) -> Option<Repair> {
    let outcome = match text {
        Ok(text) if is_installed(name, &text) => return None,
        Ok(text) => install(name, &text, scratch),
        Err(error) => Err(error),
    };
    let outcome = outcome.unwrap_or_else(|error| RepairOutcome::Failed(error.to_string()));
    Some(Repair { subject: format!("AppArmor profile {name}"), outcome })
}

fn is_installed(name: &str, text: &str) -> bool {
    let kept = fs::read_to_string(Path::new(PROFILES).join(name)).is_ok_and(|found| found == text);
    kept && match security_module::apparmor_profile_mode(name) {
        Some(mode) => name != INSIDE || mode == "enforce",
        None => false,
    }
}

/// Loads it first: what the parser does not take is not kept for the next start either.
fn install(name: &str, text: &str, scratch: &Path) -> Result<RepairOutcome, RepairError> {
    let (draft, kept) = (scratch.join(name), Path::new(PROFILES).join(name));
    let writing = |path: &Path| {
        let path = path.to_owned();
        move |why| RepairError::Write { path, why }
    };
    fs::create_dir_all(scratch).and_then(|()| fs::write(&draft, text)).map_err(writing(&draft))?;
    let parser = parser().ok_or(RepairError::NoParser)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(RepairOutcome::Commands(vec![
            format!("sudo install -m 644 '{}' {}", draft.display().to_string().replace('\'', r"'\''"), kept.display()),
            format!("sudo {} --replace {}", parser.display(), kept.display()),
        ]));
    }
    let loaded = Command::new(&parser).args(["--replace", "--skip-cache"]).arg(&draft).output();
    let loaded = loaded.map_err(|why| RepairError::Start { parser: parser.clone(), why })?;
    if !loaded.status.success() {
        return Err(RepairError::Refused(String::from_utf8_lossy(&loaded.stderr).trim().to_owned()));
    }
    fs::write(&kept, text).map_err(writing(&kept))?;
    let _ = fs::remove_file(&draft);
    Ok(RepairOutcome::Done(vec![format!("loaded it with {}", parser.display()), format!("wrote {}", kept.display())]))
}

fn parser() -> Option<PathBuf> {
    let known =
        ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"].map(|folder| Path::new(folder).join("apparmor_parser"));
    known.into_iter().find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_in_a_path_are_plain_characters_of_the_profile() {
        assert_eq!(quoted("/home/me/my tools/sandbox-mcp").as_deref(), Some("/home/me/my tools/sandbox-mcp"));
        assert_eq!(quoted("/a*b/{c}\"d").as_deref(), Some(r#"/a\*b/\{c\}\"d"#));
        assert_eq!(quoted("/a\nb"), None);
    }

    #[test]
    fn the_texts_are_of_the_profiles_that_are_asked_for() {
        assert!(INSIDE_TEXT.contains(&format!("profile {INSIDE} ")));
        assert!(OUTSIDE_TEXT.contains(&format!("profile {OUTSIDE} \"@PROGRAM@\"")));
    }
}
