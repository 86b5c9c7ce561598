//! What is known of a shell while its commands are followed: variables, functions, aliases, files that it wrote.
//!
//! A variable has several values where a condition decides. [`HIDDEN`] stands for text that is not known, [`UNSET`] for
//! the value of a variable that nobody has set here, which is most likely nothing at all.

use std::{collections::BTreeMap, rc::Rc};

use super::{paths, syntax};

/// Stands for text that is not known. No shell text can have it.
pub const HIDDEN: char = '\0';

/// Stands for the value of a variable that may not exist.
pub const UNSET: char = '\u{1}';

/// Longest value that is followed.
const LONGEST_VALUE: usize = 16 * 1024;

/// How many values of one variable are followed.
const MOST_VALUES: usize = 32;

/// The values that each variable may have; more than one string in one of them is an array.
pub type Variables = BTreeMap<String, Vec<Vec<String>>>;

/// What is known of a shell.
#[derive(Clone, Debug)]
pub struct State {
    variables: Rc<Variables>,
    /// `$1` and so on; not known inside a function that nobody calls.
    pub positional: Option<Vec<String>>,
    /// The functions that were defined, and whether they were looked at.
    pub functions: BTreeMap<String, Function>,
    /// The text that an alias stands for.
    pub aliases: BTreeMap<String, String>,
    /// What is in files that were written here.
    pub files: BTreeMap<String, File>,
    /// Where commands run, if that is known.
    pub folder: Option<String>,
}

/// A function.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Function {
    pub body: Rc<Vec<syntax::Command>>,
    pub called: bool,
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum File {
    /// Its content.
    Text(String),
    /// That it is another name of this program.
    Program(String),
}

impl State {
    /// A shell that has just been started in this folder with these variables on top of the usual ones.
    pub fn new(variables: &BTreeMap<String, String>, folder: Option<&str>) -> Self {
        let folder = paths::resolve(folder.unwrap_or(paths::WORKSPACE), Some(paths::WORKSPACE));
        let mut state = Self {
            variables: Rc::default(),
            positional: Some(Vec::new()),
            functions: BTreeMap::new(),
            aliases: BTreeMap::new(),
            files: BTreeMap::new(),
            folder,
        };
        let usual = [("HOME", paths::HOME), ("SHELL", "/bin/sh"), ("BASH", "/bin/bash"), ("IFS", " \t\n"), ("0", "sh")];
        for (name, value) in usual {
            state.set(name, vec![value.to_owned()]);
        }
        for name in ["PATH", "USER", "LANG", "PS1", "PS4", "_", "-", "?", "$", "!", "RANDOM", "SECONDS", "PPID", "UID"]
        {
            state.set(name, vec![HIDDEN.to_string()]);
        }
        for (name, value) in variables {
            state.set(name, vec![without_marks(value)]);
        }
        state
    }

    /// Gives a variable this value, and no other.
    pub fn set(&mut self, name: &str, value: Vec<String>) {
        Rc::make_mut(&mut self.variables).insert(name.to_owned(), vec![bounded(value)]);
    }

    /// Gives a variable one value more.
    pub fn add(&mut self, name: &str, value: Vec<String>) {
        let values = Rc::make_mut(&mut self.variables).entry(name.to_owned()).or_default();
        let value = bounded(value);
        if values.len() < MOST_VALUES && !values.contains(&value) {
            values.push(value);
        } else if values.len() == MOST_VALUES {
            values.push(vec![HIDDEN.to_string()]);
        }
    }

    /// Takes a variable away.
    pub fn unset(&mut self, name: &str) {
        Rc::make_mut(&mut self.variables).remove(name);
    }

    /// All variables, to be put back when a shell inside has ended.
    pub fn variables(&self) -> Rc<Variables> {
        Rc::clone(&self.variables)
    }

    /// Puts variables back.
    pub fn restore(&mut self, variables: Rc<Variables>) {
        self.variables = variables;
    }

    /// The values that a variable may have.
    pub fn values(&self, name: &str) -> &[Vec<String>] {
        self.variables.get(name).map_or(&[], Vec::as_slice)
    }

    /// The value of a variable in this choice among those that it may have.
    pub fn value(&self, name: &str, choice: usize) -> Option<&Vec<String>> {
        let values = self.values(name);
        values.get(choice).or(values.last())
    }

    /// What is known of the file at this path.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.get(&paths::resolve(path, self.folder.as_deref())?)
    }

    /// Remembers, or forgets, what is in a file.
    pub fn write(&mut self, path: &str, file: Option<File>) {
        let Some(path) = paths::resolve(path, self.folder.as_deref()) else { return };
        match file {
            Some(file) if self.files.len() < 256 => {
                self.files.insert(path, file);
            }
            _ => {
                self.files.remove(&path);
            }
        }
    }
}

/// The text without the characters that mark what is not known.
pub fn without_marks(text: &str) -> String {
    text.replace([HIDDEN, UNSET], "")
}

/// Whether some of the text is not known.
pub fn has_hidden(text: &str) -> bool {
    text.contains([HIDDEN, UNSET])
}

/// The text for people, with what is not known shown as such.
pub fn shown(text: &str) -> String {
    text.replace([HIDDEN, UNSET], "…")
}

fn bounded(value: Vec<String>) -> Vec<String> {
    let length: usize = value.iter().map(String::len).sum();
    if length > LONGEST_VALUE { vec![HIDDEN.to_string()] } else { value }
}
