//! What each program has to be told, and how what it says is understood. Whatever comes from inside is hostile: nothing here
//! believes more of it than a picture for whoever watches, and whether the program thinks that it has finished.

use std::collections::BTreeMap;

use sandbox_core::exec::Exit;
use serde_json::Value;

use super::home::HomeFile;
use crate::{
    agent::{Note, WorkError, words},
    config::ModelApi,
    sandboxes::access::Inquiry,
};

/// So much of a tool's input or result is shown.
const SHOWN: usize = 2000;

/// What a program is started with.
pub(super) struct Start<'a> {
    /// The program, inside.
    pub program: &'a str,
    /// Where its model is.
    pub address: &'a str,
    /// How that is spoken to.
    pub api: ModelApi,
    /// Which model.
    pub model: &'a str,
    /// What it can read at once, in tokens.
    pub context: u64,
    /// How much it may write at once.
    pub answer: u64,
    /// The conversation to go on with.
    pub resume: &'a Resume,
    /// The name of a new conversation.
    pub session: &'a str,
    /// Whether hooks, plugins and servers that lie in the workspace may run.
    pub trusts_workspace: bool,
    /// Whether a person may be asked something.
    pub asks: bool,
    /// What it is told beside the task.
    pub prompt: &'a str,
    /// The file that holds the same, inside.
    pub prompt_file: &'a str,
}

/// The conversation that a program goes on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    /// None: a new one begins.
    Nothing,
    /// The last one that there is: the server was killed before the program said what it calls it.
    Last,
    /// The one of this name.
    Named(String),
}

/// How to start it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Invocation {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// The name of its conversation, where it does not choose one itself.
    pub session: Option<String>,
}

/// Something that a program said.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    /// The conversation has this name.
    Session(String),
    /// Something to show.
    Note(Note),
    /// It has begun to use a tool, so that it may be silent for a while.
    Began(String),
    /// A tool has ended.
    Ended(String),
    /// It asks the person, and waits for the answers.
    Asks(Asked),
    /// It waits to hear this.
    Hears(Vec<u8>),
    /// It has answered what it was told last.
    Turn,
}

/// What a program asks at once.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    /// What it calls that.
    pub id: String,
    /// In its form.
    pub form: Value,
    /// In ours.
    pub inquiries: Vec<Inquiry>,
}

/// One program's way of speaking.
pub(super) trait Dialect: Send + Sync {
    /// How to start it.
    fn invocation(&self, start: &Start<'_>) -> Invocation;

    /// What it finds in its home.
    fn home(&self) -> Result<Vec<HomeFile>, WorkError>;

    /// What it would run out of the workspace whatever it is told: where such a thing lies, it does not work.
    fn unstoppable(&self) -> &'static [&'static str] {
        &[]
    }

    /// What it reads to be told something. Some can be told only once.
    fn message(&self, text: &str) -> Vec<u8>;

    /// Whether it can be told something while it works.
    fn listens(&self) -> bool;

    /// What it reads to hear the answers, in the order of the questions; nothing for one that nobody answered.
    fn answer(&self, _: &Asked, _: &[Option<String>]) -> Vec<u8> {
        Vec::new()
    }

    /// Understands one line.
    fn line(&mut self, line: &Value) -> Vec<Said>;

    /// What came of it, now that it has ended: what it says, or what went wrong.
    fn outcome(&self, exit: Exit) -> Result<String, String>;

    /// Whether it could not find the conversation that it was to go on with.
    fn has_forgotten(&self) -> bool;
}

/// A call of a tool, to be shown.
pub(super) fn call(id: &str, tool: &str, input: &Value) -> Note {
    let shown = input["command"].as_str().map_or_else(|| input.to_string(), str::to_owned);
    Note::Call {
        call: short(id, 100),
        tool: short(tool, 100),
        input: short(&shown, SHOWN),
        words: in_words(tool, input),
    }
}

/// What came of a call.
pub(super) fn result(id: &str, well: bool, text: &str, seconds: f64) -> Note {
    Note::Result { call: short(id, 100), well, summary: short(text, SHOWN), seconds }
}

/// The programs call their tools and fields by other names than we do.
fn in_words(tool: &str, input: &Value) -> String {
    let path = ["file_path", "filePath", "path"].iter().find_map(|name| input[name].as_str()).unwrap_or_default();
    let editor = |command: &str| {
        words::of_call("str_replace_based_edit_tool", &serde_json::json!({ "command": command, "path": path }))
    };
    match tool.to_ascii_lowercase().as_str() {
        "bash" => words::of_call("bash", input),
        "read" => editor("view"),
        "write" => editor("create"),
        "edit" | "multiedit" | "notebookedit" | "patch" => editor("str_replace"),
        "glob" | "grep" | "list" => "Searching in the files".to_owned(),
        "todowrite" | "todoread" => "Planning the steps".to_owned(),
        "task" | "agent" => "Working on a part of it".to_owned(),
        _ => words::of_call(tool, input),
    }
}

/// Not longer than this.
pub(super) fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// What a tool said, out of the forms that it may have.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}
