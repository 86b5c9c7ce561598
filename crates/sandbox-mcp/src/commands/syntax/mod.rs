//! The grammar of the shell, as far as it decides which programs run: POSIX, and what bash adds to it.
//!
//! A reader of our own: whoever writes the text may want to stop the server, so it must neither panic nor recurse nor
//! take time without bound, and the parsers that can be had do (a descriptor of twenty digits, ten thousand braces).
//! It is linear in the text, nests [`DEEPEST`] levels, and keeps what it had read when it meets what it cannot read,
//! because a shell runs that much too.

mod command;
mod quote;
mod redirect;
mod word;

use std::{cell::OnceCell, rc::Rc};

pub use quote::escapes;

/// Longest text that is read.
pub const LONGEST: usize = 256 * 1024;

/// Deepest nesting that is read.
pub const DEEPEST: usize = 48;

/// What could be read of a text.
#[derive(Debug)]
pub struct Script {
    /// What was read.
    pub commands: Vec<Command>,
    /// Why there is no more of it.
    pub unreadable: Option<Unreadable>,
}

/// Why a text cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Unreadable {
    #[error("the command is too long to be looked through")]
    TooLong,
    #[error("the command is nested too deeply to be looked through")]
    TooDeep,
    #[error("the command is not written as a shell expects")]
    Syntax,
}

/// One command, simple or not. What only decides whether something runs (the words of `if`, `while`, `&&`) is
/// flattened: everything that could run is looked at.
#[derive(Debug)]
pub enum Command {
    /// Words, with what is assigned and redirected for them.
    Simple(Simple),
    /// Commands that feed each other.
    Pipeline(Vec<Command>),
    /// Commands that run one after the other.
    Block(Block),
    /// `for` and `select`.
    For { variable: String, words: Option<Vec<Word>>, body: Vec<Command> },
    /// `case`: what is compared, and the bodies.
    Case { words: Vec<Word>, bodies: Vec<Command> },
    /// A function, which does nothing yet.
    Function { name: String, body: Rc<Vec<Command>> },
    /// `[[ … ]]` and `(( … ))`, which run nothing but what is substituted in them.
    Test(Vec<Word>),
}

/// Commands that belong together.
#[derive(Debug)]
pub struct Block {
    /// Whether they run for sure, so that what they assign replaces what was there.
    pub certain: Certainty,
    /// The commands.
    pub body: Vec<Command>,
    /// What is redirected for all of them.
    pub redirects: Vec<Redirect>,
}

/// Whether something runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Certainty {
    Surely,
    Perhaps,
}

/// A simple command.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Simple {
    pub assignments: Vec<Assignment>,
    pub words: Vec<Word>,
    pub redirects: Vec<Redirect>,
}

/// `name=value`, `name+=value`, `name=(values)`.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Assignment {
    pub name: String,
    pub append: bool,
    pub values: Vec<Word>,
}

/// Where input comes from or output goes.
#[derive(Debug)]
pub enum Redirect {
    /// A file that is read.
    From(Word),
    /// A file that is written; `1` or nothing before it makes it the standard output.
    To { file: Word, output: bool, append: bool },
    /// A here-document, filled in when its lines have been read.
    Document(Rc<OnceCell<Word>>),
    /// A here-string.
    Text(Word),
    /// One descriptor made the same as another.
    Copy(Word),
}

/// A word: parts without a space between them.
#[derive(Clone, Debug, Default)]
pub struct Word(pub Vec<Part>);

/// A part of a word.
#[derive(Clone, Debug)]
pub enum Part {
    /// As it stands, and open to braces, `~` and splitting.
    Plain(String),
    /// As it stands, whatever it is.
    Quoted(String),
    /// The value of a variable.
    Variable(Rc<Variable>),
    /// What a command prints.
    Output { commands: Rc<Vec<Command>>, quoted: bool, unreadable: Option<Unreadable> },
    /// A path to what a command prints or reads.
    Process(Rc<Vec<Command>>),
    /// Arithmetic, for what is substituted in it.
    Arithmetic(Word),
}

/// `$name` or `${name…}`.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Variable {
    pub name: String,
    pub quoted: bool,
    /// `${!name}`.
    pub indirect: bool,
    /// `${#name}`.
    pub length: bool,
    /// `[…]`.
    pub index: Option<String>,
    /// `:-`, `#`, `//` and so on, and what comes after it.
    pub operator: String,
    pub operand: Word,
}

impl Word {
    /// The word if it is written without any quoting or substitution, as reserved words must be.
    pub fn bare(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Part::Plain(text)] => Some(text),
            _ => None,
        }
    }
}

/// Reads a script.
pub fn parse(text: &str) -> Script {
    nested(text, 0)
}

/// Reads a script that stands so deep within another.
fn nested(text: &str, depth: usize) -> Script {
    if text.len() > LONGEST {
        return Script { commands: Vec::new(), unreadable: Some(Unreadable::TooLong) };
    }
    let mut reader = Reader { text: text.chars().collect(), at: 0, depth, documents: Vec::new() };
    let mut commands = Vec::new();
    let unreadable = reader.script(&mut commands).err();
    Script { commands, unreadable }
}

/// Where the reading stands.
struct Reader {
    text: Vec<char>,
    at: usize,
    depth: usize,
    /// Here-documents whose lines have not come yet.
    documents: Vec<redirect::Document>,
}

type Read<T> = Result<T, Unreadable>;

impl Reader {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn peek_at(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    fn sees(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(ahead, character)| self.peek_at(ahead) == Some(character))
    }

    fn take(&mut self, text: &str) -> bool {
        let seen = self.sees(text);
        if seen {
            self.at += text.chars().count();
        }
        seen
    }

    fn expect(&mut self, text: &str) -> Read<()> {
        if self.take(text) { Ok(()) } else { Err(Unreadable::Syntax) }
    }

    /// Reads something that may contain itself.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        if self.depth >= DEEPEST {
            return Err(Unreadable::TooDeep);
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}
