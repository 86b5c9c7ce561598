//! A person who types our program's name, with a home of their own.

use std::{
    fs,
    io::{Read, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::BINARY;

/// A person with a home of their own.
pub struct Person {
    home: TempDir,
}

impl Person {
    pub fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Our program with these words.
    pub fn types(&self, words: &[&str]) -> Command {
        self.starts(BINARY, words)
    }

    pub fn starts(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.home.path()).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", self.folder("state")).env("XDG_CONFIG_HOME", self.folder("config"));
        // Who runs the tests may have one, and it is not theirs to spend.
        command.env_remove("ANTHROPIC_API_KEY");
        command
    }

    /// What stands in their settings.
    pub fn settles(&self, text: &str) {
        fs::create_dir_all(self.folder("config/sandbox-mcp")).unwrap();
        fs::write(self.folder("config/sandbox-mcp/config.toml"), text).unwrap();
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.types(words).output().unwrap()
    }

    pub fn shell(&self, script: &str) -> Output {
        self.starts("sh", &["-c", script]).env("BIN", BINARY).process_group(0).output().unwrap()
    }

    /// The one JSON value that a command answers with.
    pub fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap().trim()
}

/// What a person sees at a real terminal, when a question comes up and they type this.
pub fn at_a_terminal(person: &Person, script: &str, typed: &str) -> String {
    at_a_terminal_after(person, script, "anything else: no] ", typed)
}

/// The same, when this text is on the screen.
pub fn at_a_terminal_after(person: &Person, script: &str, awaited: &str, typed: &str) -> String {
    typing_at_a_terminal(person, script, &[(awaited, typed)])
}

/// The same, with one thing typed after the other, each when its text is on the screen.
pub fn typing_at_a_terminal(person: &Person, script: &str, steps: &[(&str, &str)]) -> String {
    let mut command = person.starts("script", &["-qec", script, "/dev/null"]);
    command.env("BIN", BINARY).env("SANDBOX_MCP_ANSWER_SECONDS", "20").process_group(0);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut steps) = (Vec::new(), steps.iter());
    let mut next = steps.next();
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = screen.read(&mut bytes) {
        shown.extend_from_slice(&bytes[..length]);
        if let Some((awaited, typed)) = next
            && String::from_utf8_lossy(&shown).contains(awaited)
        {
            keys.write_all(typed.as_bytes()).unwrap();
            next = steps.next();
        }
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&shown).into_owned()
}
