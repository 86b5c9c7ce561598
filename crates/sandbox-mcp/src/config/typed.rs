//! What was said, where, and not yet what it means. Unknown names are refused here.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use super::{
    ConfigError, KEYS,
    keys::{CONFIG_VARIABLE, INTERNAL, PREFIX},
    nearest,
    words::{Found, plain},
};

/// Tables of the file; see docs/agents.md, docs/secrets.md and docs/templates.md.
const TABLES: [&str; 4] = ["prices", "secrets", "services", "templates"];

/// Where something was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In this file.
    File(PathBuf),
    /// In the environment, under this name.
    Environment(String),
    /// As this flag.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Environment(name) => write!(f, "the environment variable {name}"),
            Self::Flag(flag) => write!(f, "the flag {flag}"),
        }
    }
}

/// Settings that were given as flags.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--state`.
    pub state: Option<PathBuf>,
}

/// Everything that was said; of each setting the last word.
#[derive(Debug, Default)]
pub struct Typed(pub(super) BTreeMap<&'static str, Said>);

/// A value with where it came from.
#[derive(Debug)]
pub(super) struct Said {
    pub source: Source,
    pub value: toml::Value,
}

impl Typed {
    /// A settings file.
    pub fn add_file(&mut self, file: &Path, text: &str) -> Result<(), ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::NotToml {
            file: file.to_owned(),
            why: in_words(&error, text),
        })?;
        for (name, value) in table {
            let source = Source::File(file.to_owned());
            if let Some(table) = TABLES.into_iter().find(|table| *table == name) {
                self.0.insert(table, Said { source, value });
                continue;
            }
            let Some(key) = KEYS.iter().find(|key| key.name == name) else {
                return Err(unknown(source, &name, KEYS.iter().map(|key| key.name).chain(TABLES)));
            };
            self.0.insert(key.name, Said { source, value });
        }
        Ok(())
    }

    /// The environment. Variables that are not ours are passed over; an empty one says nothing.
    pub fn add_environment(
        &mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(), ConfigError> {
        for (name, value) in variables {
            let Some(name) = name.to_str() else { continue };
            let source = Source::Environment(name.to_owned());
            match KEYS.iter().find(|key| key.variable == name) {
                Some(_) if value.is_empty() => {}
                Some(key) => {
                    let value = toml::Value::String(value.to_string_lossy().into_owned());
                    self.0.insert(key.name, Said { source, value });
                }
                None if name == CONFIG_VARIABLE || INTERNAL.contains(&name) => {}
                None if name.starts_with(PREFIX) => {
                    return Err(unknown(source, name, KEYS.iter().map(|key| key.variable)));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Flags have the last word.
    pub fn add_flags(&mut self, flags: &Flags) -> Result<(), ConfigError> {
        if let Some(state) = &flags.state {
            let value = toml::Value::String(state.to_string_lossy().into_owned());
            self.0.insert("state_folder", Said { source: Source::Flag("--state"), value });
        }
        Ok(())
    }
}

fn unknown(source_: Source, key: &str, known: impl Iterator<Item = &'static str>) -> ConfigError {
    let (shown, known): (String, Vec<_>) = (key.chars().take(60).collect(), known.collect());
    let nearest = nearest(key, known.iter().copied());
    ConfigError::UnknownKey { source_, nearest, key: shown, known: known.join(", ") }
}

pub(super) fn in_words(error: &toml::de::Error, text: &str) -> String {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let words = plain(error.message(), Found::Shown);
    match line {
        Some(line) => format!("line {line}: {words}"),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::Settings;
    use std::time::Duration;

    fn file(text: &str) -> Result<Settings, ConfigError> {
        let mut typed = Typed::default();
        typed.add_file(Path::new("/etc/x.toml"), text)?;
        typed.add_flags(&Flags { state: Some("/state".into()), ..Flags::default() })?;
        Settings::from_typed(typed)
    }

    fn complaint(text: &str) -> String {
        file(text).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_key_is_answered_with_the_nearest_known_one() {
        let message = complaint("auto_cleanup_minute = 5");
        assert!(
            message.contains("/etc/x.toml") && message.contains("did you mean `auto_cleanup_minutes`"),
            "{message}"
        );
        let message = complaint("[secret.a]\nenv = \"A\"");
        assert!(message.contains("did you mean `secrets`"), "{message}");
        let message = complaint("zzz = 5");
        assert!(!message.contains("did you mean") && message.contains("Known settings: state_folder"), "{message}");
    }

    #[test]
    fn an_unknown_variable_of_ours_is_refused_and_others_are_not_ours() {
        let mut typed = Typed::default();
        typed.add_environment([("PATH".into(), "/bin".into()), ("SANDBOX_MCP_STRICT".into(), "".into())]).unwrap();
        let refused = typed.add_environment([("SANDBOX_MCP_STRCIT".into(), "1".into())]).unwrap_err().to_string();
        assert!(refused.contains("did you mean `SANDBOX_MCP_STRICT`"), "{refused}");
    }

    #[test]
    fn a_bad_value_is_told_with_what_it_may_be() {
        for (text, expected) in [
            ("max_timeout_seconds = 0", "from 1 to"),
            ("max_timeout_seconds = \"soon\"", "number of seconds"),
            ("strict = 3", "true or false"),
            ("allow_unenforced = [\"disc\"]", "a list of: memory"),
            ("state_folder = \"relative\"", "absolute path"),
            ("default_policy = \"yolo-33\"", "did you mean `yolo-3`"),
            ("memory_floor = \"lots\"", "a size"),
            ("max_sandboxes = 1.5", "a whole number"),
            ("log = \"nonsense==\"", "a level"),
            ("allow_unenforced = [\"disc\"]", "system_calls, commands, "),
            ("this is not toml", "line 1"),
        ] {
            if text.starts_with("state_folder") {
                let mut typed = Typed::default();
                typed.add_file(Path::new("/etc/x.toml"), text).unwrap();
                assert!(Settings::from_typed(typed).unwrap_err().to_string().contains(expected));
                continue;
            }
            let message = complaint(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn a_setting_that_names_no_policy_is_told_with_its_place() {
        for (key, value) in [
            ("ceiling", "\"nope\""),
            ("default_policy", "\"nope\""),
            ("allowed_policies", "[\"nope\"]"),
            ("allowed_policies", "[\"yolo-1\"]"),
        ] {
            let message = complaint(&format!("{key} = {value}"));
            assert!(message.starts_with(&format!("/etc/x.toml: `{key}` cannot be followed: ")), "{message}");
        }
        assert!(complaint("ceiling = \"nope\"").contains("there is no policy `nope`"));
    }

    #[test]
    fn an_error_at_the_beginning_of_a_line_names_that_line() {
        for (text, line) in [
            ("strict = true\n\nask = \"never\"\nlog log\n", "line 4:"),
            ("strict = true\nstrict = false\n", "line 2:"),
            ("\n\n= 3", "line 3:"),
        ] {
            let message = complaint(text);
            assert!(message.contains(line), "{text}: {message}");
        }
    }

    #[test]
    fn the_environment_overrides_the_file_and_flags_override_both() {
        let mut typed = Typed::default();
        typed
            .add_file(Path::new("/x"), "state_folder = \"/file\"\nauto_cleanup_minutes = 5\nmax_timeout_seconds = 900")
            .unwrap();
        typed
            .add_environment([
                ("WORKSPACE_BASE".into(), "/environment".into()),
                ("AUTO_CLEANUP_MINUTES".into(), "0".into()),
            ])
            .unwrap();
        typed.add_flags(&Flags { state: Some("/flag".into()), ..Flags::default() }).unwrap();
        let settings = Settings::from_typed(typed).unwrap();
        assert_eq!(settings.state, Path::new("/flag"));
        assert_eq!(settings.idle, None);
        assert_eq!(settings.default_policy.limits.run, Duration::from_secs(900));
        assert_eq!(settings.policy("user_added").unwrap().limits.run, Duration::from_secs(300));
    }
}
