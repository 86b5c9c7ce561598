//! Policies by name: the presets, the operator's own in a folder, and the ceiling that bounds them all.
//!
//! A file `NAME.toml` in that folder is the policy `NAME`. It is read when it is asked for, so a broken one harms nobody
//! who does not use it; `doctor` reads them all.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use sandbox_core::{
    Policy,
    exec::Exec,
    policy::{Examples, PRESETS, WrittenPolicy},
};

use super::{ConfigError, Settings, nearest, typed::in_words};
use crate::commands::{Rules, Verdict};

/// No policy is longer.
const LONGEST: u64 = 64 << 10;
/// What runs outside a sandbox; see docs/policy.md.
const OUTSIDE: &str = "builtin";
/// The preset that reaches the ports of this machine that the operator names.
const DEVELOPMENT: &str = "development";
/// How a policy's file ends.
const ENDING: &str = "toml";

impl Settings {
    /// The policy of this name, as the operator's settings bound it.
    pub fn policy(&self, name: &str) -> Result<Policy, ConfigError> {
        Ok(self.bounded(self.unbounded(name)?))
    }

    /// The policy that a person at the terminal names: by its name, or as the path of a file.
    pub fn policy_at_terminal(&self, said: &str) -> Result<Policy, ConfigError> {
        Ok(self.bounded(self.unbounded_at_terminal(said)?))
    }

    /// Every policy that can be named, with what is wrong with it if it cannot be used.
    pub fn policies(&self) -> Vec<(String, Result<Policy, ConfigError>)> {
        let names = PRESETS.iter().map(|name| (*name).to_owned()).chain(self.own_policies());
        names.map(|name| (name.clone(), self.policy(&name))).collect()
    }

    /// What a policy has less of than its author wrote, in words: the ceiling's doing.
    pub fn lowered_by_ceiling(&self, name: &str) -> Vec<String> {
        self.lowered(|| self.unbounded(name))
    }

    /// The same for what a person at the terminal named.
    pub fn lowered_at_terminal(&self, said: &str) -> Vec<String> {
        self.lowered(|| self.unbounded_at_terminal(said))
    }

    fn lowered(&self, written: impl FnOnce() -> Result<Policy, ConfigError>) -> Vec<String> {
        let Some(ceiling) = &self.ceiling else { return Vec::new() };
        let Ok(written) = written() else { return Vec::new() };
        let lowered = written.within(ceiling).less_than(&written);
        lowered.into_iter().map(|what| format!("{what}: the ceiling `{}` says so", ceiling.name)).collect()
    }

    /// What the operator asks of every policy.
    pub fn bound(&self, policy: &mut Policy) {
        policy.strict |= self.strict;
        policy.allow_unenforced.extend(&self.allow_unenforced);
    }

    /// A policy that a sandbox was made with, as far as today's settings still give it.
    pub fn bounded_now(&self, mut policy: Policy) -> Policy {
        if policy.name == DEVELOPMENT {
            policy.host_ports.retain(|port| self.development_ports.contains(port));
        }
        self.ceiling.as_ref().map_or(policy.clone(), |ceiling| policy.within(ceiling))
    }

    fn bounded(&self, mut policy: Policy) -> Policy {
        // The usual run time of a preset means "as long as the operator lets anything run"; a shorter one is a limit.
        // The ceiling's is a limit whatever it is.
        policy.limits.run = match policy.limits.run {
            usual if usual == Policy::default().limits.run => self.max_timeout,
            other => other.min(self.max_timeout),
        };
        if let Some(ceiling) = &self.ceiling {
            policy = policy.within(ceiling);
        }
        self.bound(&mut policy);
        policy
    }

    fn unbounded_at_terminal(&self, said: &str) -> Result<Policy, ConfigError> {
        let path = Path::new(said);
        let is_file = path.extension().is_some_and(|ending| ending == ENDING) || said.contains('/');
        if is_file { load(path) } else { self.unbounded(said) }
    }

    fn unbounded(&self, name: &str) -> Result<Policy, ConfigError> {
        if let Some(mut policy) = Policy::preset(name) {
            if name == DEVELOPMENT {
                policy.host_ports.extend(&self.development_ports);
            }
            return Ok(policy);
        }
        match &self.policy_folder {
            Some(folder) if self.own_policies().contains(name) => load(&file(folder, name)),
            _ => Err(self.unknown_policy(name)),
        }
    }

    pub(super) fn unknown_policy(&self, name: &str) -> ConfigError {
        let own = self.own_policies();
        let known: Vec<&str> = PRESETS.into_iter().chain(own.iter().map(String::as_str)).collect();
        if name == OUTSIDE {
            return ConfigError::NotForSandboxes { name: name.to_owned(), known: known.join(", ") };
        }
        let nearest = nearest(name, known.iter().copied()).map(str::to_owned);
        ConfigError::UnknownPolicy { name: name.chars().take(60).collect(), nearest, known: known.join(", ") }
    }

    /// Names of the operator's own. What is not there is no policy, and no error.
    pub(super) fn own_policies(&self) -> BTreeSet<String> {
        let name = |file: PathBuf| Some(name_of(&file).ok()?.to_owned());
        self.policy_files().into_iter().filter_map(name).collect()
    }

    /// Files of the folder that are no policy because of their names, and why.
    pub fn ignored_policies(&self) -> Vec<(PathBuf, String)> {
        let why = |file: PathBuf| name_of(&file).err().map(|why| (file.clone(), why));
        self.policy_files().into_iter().filter_map(why).collect()
    }

    fn policy_files(&self) -> BTreeSet<PathBuf> {
        let entries = self.policy_folder.as_deref().and_then(|folder| fs::read_dir(folder).ok());
        let files = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        files.filter(|file| file.extension().is_some_and(|ending| ending == ENDING)).collect()
    }
}

/// What the policy in a file is called, or why it cannot be called so.
fn name_of(file: &Path) -> Result<&str, String> {
    let name = file.file_stem().and_then(|stem| stem.to_str()).filter(|stem| is_name(stem));
    match name {
        Some(preset) if PRESETS.contains(&preset) => Err(format!("`{preset}` is a preset")),
        Some(name) => Ok(name),
        None => Err("its name must be 1 to 40 letters, digits, `_` and `-`".to_owned()),
    }
}

/// The policy that a file holds, under the file's name.
fn load(file: &Path) -> Result<Policy, ConfigError> {
    let refuse = |why: String| ConfigError::Policy { file: file.to_owned(), why };
    let name = name_of(file).map_err(refuse)?;
    let text = read(file).map_err(|error| refuse(error.to_string()))?;
    let written: WrittenPolicy = toml::from_str(&text).map_err(|error| refuse(with_line(&error, &text)))?;
    let policy = written.meaning(name).map_err(|error| refuse(error.to_string()))?;
    check_examples(&policy, &written.examples).map_err(refuse)?;
    sandbox_egress::Rules::of_policy(&policy, &[]).map_err(|error| refuse(error.to_string()))?;
    Ok(policy)
}

/// An error with the line that it is about.
fn with_line(error: &toml::de::Error, text: &str) -> String {
    let words = in_words(error, text);
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line: String = text[line..].lines().next().unwrap_or_default().trim().chars().take(80).collect();
    if line.is_empty() { words } else { format!("{words} (in `{line}`)") }
}

/// Whether the lists of commands can be read, and say what their author expects of them.
fn check_examples(policy: &Policy, examples: &Examples) -> Result<(), String> {
    let rules = Rules::parse(&policy.commands).map_err(|error| error.to_string())?;
    let denied = |text: &String| matches!(rules.judge(&Exec::shell(text)), Verdict::Denied(_));
    if let Some(text) = examples.allowed.iter().find(|text| denied(text)) {
        return Err(format!("its example `{text}` should be allowed, and is denied"));
    }
    match examples.denied.iter().find(|text| !denied(text)) {
        Some(text) => Err(format!("its example `{text}` should be denied, and is not")),
        None => Ok(()),
    }
}

fn read(file: &Path) -> io::Result<String> {
    let opened = fs::File::open(file)?;
    if !opened.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(opened, LONGEST + 1), &mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {LONGEST} bytes")));
    }
    Ok(text)
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.{ENDING}"))
}

fn is_name(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{Flags, Typed};
    use sandbox_core::{Bytes, policy::Root};

    fn settings(files: &[(&str, &str)], text: &str) -> (tempfile::TempDir, Result<Settings, ConfigError>) {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let mut typed = Typed::default();
        let text = format!("policy_folder = {:?}\n{text}", folder.path());
        typed.add_file(Path::new("/etc/x.toml"), &text).unwrap();
        typed.add_flags(&Flags { state: Some("/nowhere/state".into()), ..Flags::default() }).unwrap();
        let settings = Settings::from_typed(typed);
        (folder, settings)
    }

    #[test]
    fn a_policy_of_ones_own_is_named_after_its_file() {
        let small = "extends = \"user_added\"\n[limits]\nmemory = \"64MiB\"\nrun_seconds = 20\n";
        let (_folder, settings) = settings(&[("small.toml", small), ("notes.txt", "")], "default_policy = \"small\"");
        let settings = settings.unwrap();
        let policy = settings.policy("small").unwrap();
        assert_eq!(
            (policy.name.as_str(), policy.limits.memory, policy.limits.run.as_secs()),
            ("small", Bytes::mib(64), 20)
        );
        assert_eq!(settings.default_policy.name, "small");
        assert_eq!(settings.policies().len(), PRESETS.len() + 1);
        let unknown = settings.policy("smal").unwrap_err().to_string();
        assert!(unknown.contains("did you mean `small`"), "{unknown}");
    }

    #[test]
    fn a_name_never_leads_out_of_the_folder() {
        let (folder, settings) = settings(&[("a.toml", "")], "");
        let settings = settings.unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        fs::write(folder.path().join("inner/b.toml"), "").unwrap();
        for name in ["inner/b", "../a", "/etc/passwd", "a.toml", "", "."] {
            assert!(matches!(settings.policy(name), Err(ConfigError::UnknownPolicy { .. })), "{name}");
        }
        let path = folder.path().join("inner/b.toml");
        assert_eq!(settings.policy_at_terminal(path.to_str().unwrap()).unwrap().name, "b");
    }

    #[test]
    fn what_is_wrong_with_a_policy_is_said_with_its_file() {
        let files = [
            ("typo.toml", "[limits]\nmemry = 3\n"),
            ("none.toml", "extends = \"yolo-9\"\n"),
            ("broken.toml", "limits = \n"),
            ("yolo-1.toml", ""),
            ("rule.toml", "[commands]\ndeny = [\"/usr/bin/x\"]\n"),
            ("strict.toml", "[examples]\nallowed = [\"sudo id\"]\n"),
            ("loose.toml", "[examples]\ndenied = [\"sudo id\", \"ls\"]\n"),
            ("way.toml", "[[network_rules]]\nallow = [\"a b\"]\n"),
        ];
        let (_folder, settings) = settings(&files, "");
        let settings = settings.unwrap();
        let wrong = [
            ("typo", "memry"),
            ("none", "yolo-9"),
            ("broken", "line 1"),
            ("rule", "/usr/bin/x"),
            ("strict", "`sudo id` should be allowed"),
            ("loose", "`ls` should be denied"),
            ("way", "`a b`"),
        ];
        for (name, says) in wrong {
            let refused = settings.policy(name).unwrap_err().to_string();
            assert!(refused.contains(says) && refused.contains(&format!("{name}.toml")), "{refused}");
        }
        assert_eq!(settings.policy("yolo-1").unwrap(), {
            let mut preset = Policy::preset("yolo-1").unwrap();
            settings.bound(&mut preset);
            preset
        });
    }

    #[test]
    fn the_example_of_a_policy_can_be_used() {
        let (_folder, settings) = settings(&[], "");
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/policies/data-work.toml");
        let policy = settings.unwrap().policy_at_terminal(file).unwrap();
        assert_eq!((policy.name.as_str(), policy.limits.memory), ("data-work", Bytes::gib(2)));
    }

    #[test]
    fn nothing_passes_the_operators_ceiling() {
        let mine = "extends = \"production\"\n[limits]\nmemory = \"1GiB\"\npids = 100\n";
        let (_folder, settings) = settings(&[("most.toml", mine)], "ceiling = \"most\"");
        let settings = settings.unwrap();
        for name in PRESETS {
            let policy = settings.policy(name).unwrap();
            assert!(policy.limits.memory <= Bytes::gib(1) && policy.limits.pids <= 100, "{name}");
            assert_eq!(policy.filesystem.root, Root::ReadOnly, "{name}");
        }
        let lowered = settings.lowered_by_ceiling("yolo-4");
        assert!(lowered.iter().any(|what| what.contains("memory is 1 GiB instead of 4 GiB")), "{lowered:?}");
        assert!(lowered.iter().any(|what| what.contains("root is read-only instead of writable")), "{lowered:?}");
        assert_eq!(settings.lowered_by_ceiling("most"), Vec::<String>::new());
        assert_eq!(settings.default_policy.limits.pids, 100);
    }
}
