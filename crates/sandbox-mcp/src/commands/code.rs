//! A light look at code of other languages: text that is passed to what runs commands. It is no parser of these
//! languages; what is not a plain text in such a call is called computed.

use super::syntax::escapes;

/// A language, as far as its ways to run commands differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Language {
    Python,
    Perl,
    Ruby,
    Node,
    Php,
    Lua,
    Awk,
    Tcl,
}

/// Something that code runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Text, by a shell.
    Script(String),
    /// A program with words.
    Program(Vec<String>),
    /// What cannot be seen.
    Computed,
}

/// The language that this program runs.
pub fn language(name: &str) -> Option<Language> {
    let plain = name.trim_end_matches(|character: char| character.is_ascii_digit() || character == '.');
    Some(match plain {
        "python" | "pypy" | "ipython" => Language::Python,
        "perl" => Language::Perl,
        "ruby" | "irb" => Language::Ruby,
        "node" | "nodejs" | "deno" | "bun" => Language::Node,
        "php" => Language::Php,
        "lua" | "luajit" => Language::Lua,
        "awk" | "gawk" | "mawk" | "nawk" => Language::Awk,
        "tclsh" | "expect" => Language::Tcl,
        _ => return None,
    })
}

/// The code that stands in the words themselves.
pub fn texts(language: Language, words: &[String]) -> Vec<String> {
    let letters: &[&str] = match language {
        Language::Python | Language::Tcl => &["c"],
        Language::Perl => &["e", "E"],
        Language::Ruby | Language::Lua => &["e"],
        Language::Node => &["e", "p", "pe", "--eval", "--print", "eval"],
        Language::Php => &["r"],
        Language::Awk => return awk_program(words),
    };
    let mut texts = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let option = word.strip_prefix('-').filter(|option| !option.starts_with('-'));
        let said = letters.iter().any(|letter| match option {
            Some(option) => option.len() < 6 && option.ends_with(letter),
            None => word == letter,
        });
        if said {
            texts.extend(words.get(at + 1).cloned());
        } else if let Some(text) =
            word.strip_prefix("--eval=").or_else(|| word.strip_prefix("-c").filter(|text| text.len() > 1))
        {
            texts.push(text.to_owned());
        }
    }
    texts
}

fn awk_program(words: &[String]) -> Vec<String> {
    let rest = super::wrappers::after_options(words, &["--assign", "--field-separator"], "vF");
    let from_file = words.iter().any(|word| word == "-f");
    rest.first().filter(|_| !from_file).cloned().into_iter().collect()
}

/// The file of code that is run, if the words name one.
pub fn file(words: &[String]) -> Option<&str> {
    words.iter().find(|word| !word.starts_with('-')).map(String::as_str)
}

/// What runs a command in whichever of these languages.
const CALLS: [&str; 36] = [
    "system",
    "popen",
    "popen2",
    "popen3",
    "Popen",
    "check_call",
    "check_output",
    "getoutput",
    "getstatusoutput",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "execl",
    "execle",
    "execlp",
    "execlpe",
    "spawn",
    "spawnl",
    "spawnlp",
    "spawnv",
    "spawnvp",
    "spawnve",
    "posix_spawn",
    "posix_spawnp",
    "execSync",
    "spawnSync",
    "execFile",
    "execFileSync",
    "shell_exec",
    "passthru",
    "proc_open",
    "create_subprocess_shell",
    "create_subprocess_exec",
    "pcntl_exec",
    "startfile",
];

/// What does so only where the code speaks of processes; else it is an everyday name.
const EVERYDAY: [&str; 7] = ["run", "call", "exec", "capture", "capture2", "capture2e", "capture3"];

/// What can hide such a call.
const HIDING: [&str; 7] = ["getattr", "__import__", "importlib", "ctypes", "compile", "marshal", "fromCharCode"];

/// How calls begin that take the program first and then all of its words, with its name once more.
const NAMED_TWICE: [&str; 5] = ["execv", "execl", "spawnl", "spawnv", "posix_spawn"];

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Text(String),
    Backticks(String),
    Sign(char),
}

/// What this code runs.
pub fn look(language: Language, code: &str) -> Vec<Found> {
    look_deeper(language, code, 0)
}

fn look_deeper(language: Language, code: &str, depth: usize) -> Vec<Found> {
    let tokens = tokens(language, code);
    let speaks_of_processes =
        ["subprocess", "child_process", "Open3", "Command"].iter().any(|word| code.contains(word));
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate().take(20_000) {
        match token {
            Token::Backticks(text) if language != Language::Node && language != Language::Python => {
                found.push(Found::Script(text.clone()));
            }
            Token::Name(name) => {
                let shellish = matches!(language, Language::Perl | Language::Ruby | Language::Php | Language::Tcl);
                let call = CALLS.contains(&name.as_str())
                    || EVERYDAY.contains(&name.as_str()) && (speaks_of_processes || shellish && name == "exec");
                let call = call || language == Language::Lua && name == "execute";
                let evaluates = matches!(name.as_str(), "eval" | "exec") && !call;
                if call {
                    found.extend(called(language, name, &tokens[at + 1..]));
                } else if evaluates && called_at_all(&tokens[at + 1..]) {
                    match literals(&tokens[at + 1..]) {
                        (texts, true) if depth < 3 && !texts.is_empty() => {
                            found.extend(look_deeper(language, &texts.concat(), depth + 1));
                        }
                        _ => found.push(Found::Computed),
                    }
                } else if HIDING.contains(&name.as_str()) && speaks_of_system(code) {
                    found.push(Found::Computed);
                }
            }
            Token::Text(text) if language == Language::Awk => {
                let piped = |token: Option<&Token>| token == Some(&Token::Sign('|'));
                if piped(tokens.get(at + 1)) || at.checked_sub(1).is_some_and(|before| piped(tokens.get(before))) {
                    found.push(Found::Script(text.clone()));
                }
            }
            _ => {}
        }
    }
    found
}

/// Whether code that hides its calls could mean one that runs commands.
fn speaks_of_system(code: &str) -> bool {
    code.contains("getattr") || code.contains("ctypes") || code.contains("marshal") || code.contains("fromCharCode")
}

fn called_at_all(after: &[Token]) -> bool {
    matches!(after.first(), Some(Token::Sign('(') | Token::Text(_)))
}

/// What a call with these tokens after its name runs.
fn called(language: Language, name: &str, after: &[Token]) -> Vec<Found> {
    let opens = matches!(after.first(), Some(Token::Sign('(')));
    let bare = matches!(language, Language::Perl | Language::Ruby | Language::Tcl | Language::Lua | Language::Php);
    if !opens && !bare {
        return Vec::new();
    }
    if language == Language::Tcl {
        let word = |token: &Token| match token {
            Token::Name(text) | Token::Text(text) => Some(text.clone()),
            _ => None,
        };
        let words: Vec<String> = after.iter().map_while(word).collect();
        return if words.is_empty() { vec![Found::Computed] } else { vec![Found::Program(words)] };
    }
    let (texts, plain) = literals(after);
    let mut found = Vec::new();
    match texts.as_slice() {
        [] => {}
        [text] => found.push(Found::Script(text.clone())),
        [program, _, rest @ ..] if NAMED_TWICE.iter().any(|start| name.starts_with(start)) => {
            found.push(Found::Program(std::iter::once(program).chain(rest).cloned().collect()));
        }
        texts => found.push(Found::Program(texts.to_vec())),
    }
    if !plain || texts.is_empty() {
        found.push(Found::Computed);
    }
    found
}

/// The texts of a call up to its end, those joined by `+` or `.` as one, and whether there was nothing else in it.
fn literals(after: &[Token]) -> (Vec<String>, bool) {
    let mut texts: Vec<String> = Vec::new();
    let mut plain = true;
    let mut open = 0;
    let mut joined = false;
    for (at, token) in after.iter().enumerate().take(256) {
        let after_text = at > 0 && matches!(after[at - 1], Token::Text(_));
        match token {
            // A part of the text, or a text with something put into it.
            Token::Sign('[' | '%') if after_text => {
                plain = false;
                open += i32::from(*token == Token::Sign('['));
            }
            Token::Sign('(' | '[' | '{') => open += 1,
            Token::Sign(')' | ']' | '}') => {
                open -= 1;
                if open <= 0 {
                    break;
                }
            }
            Token::Sign('+' | '.') => joined = true,
            Token::Sign(';' | '\n') if open == 0 => break,
            Token::Sign(',') => joined = false,
            Token::Sign(_) => {}
            Token::Text(text) | Token::Backticks(text) => {
                match texts.last_mut() {
                    Some(last) if joined || after_text => last.push_str(text),
                    _ => texts.push(text.clone()),
                }
                joined = false;
            }
            // `shell=True`, `stdio: 'inherit'`, `os.P_WAIT`.
            Token::Name(name) if USUAL_WORDS.contains(&name.as_str()) => {}
            Token::Name(_) => plain = false,
        }
    }
    (texts, plain)
}

const USUAL_WORDS: [&str; 20] = [
    "shell",
    "True",
    "False",
    "check",
    "text",
    "capture_output",
    "stdout",
    "stderr",
    "stdin",
    "PIPE",
    "subprocess",
    "os",
    "P_WAIT",
    "P_NOWAIT",
    "stdio",
    "encoding",
    "true",
    "env",
    "environ",
    "universal_newlines",
];

fn tokens(language: Language, code: &str) -> Vec<Token> {
    let characters: Vec<char> = code.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&character) = characters.get(at) {
        match character {
            '\'' | '"' | '`' => {
                let triple = character != '`' && characters[at..].starts_with(&[character; 3]);
                let width = if triple { 3 } else { 1 };
                let (text, end) = quoted(&characters, at + width, character, width);
                tokens.push(if character == '`' { Token::Backticks(text) } else { Token::Text(text) });
                at = end;
            }
            _ if character == '_' || character.is_alphabetic() => {
                let length = characters[at..].iter().take_while(|next| **next == '_' || next.is_alphanumeric()).count();
                let name: String = characters[at..at + length].iter().collect();
                at += length;
                // `qx{…}`, `%x(…)`, `q(…)`.
                let quoting = match (language, name.as_str()) {
                    (Language::Perl, "q" | "qq" | "qx") | (Language::Ruby, "x" | "q" | "Q") => {
                        characters.get(at).copied()
                    }
                    _ => None,
                };
                match quoting.and_then(closing) {
                    Some(close) => {
                        let (text, end) = quoted(&characters, at + 1, close, 1);
                        tokens.push(if name.ends_with('x') { Token::Backticks(text) } else { Token::Text(text) });
                        at = end;
                    }
                    None => tokens.push(Token::Name(name)),
                }
            }
            _ => {
                if !character.is_whitespace() || character == '\n' {
                    tokens.push(Token::Sign(character));
                }
                at += 1;
            }
        }
    }
    tokens
}

fn closing(open: char) -> Option<char> {
    match open {
        '(' => Some(')'),
        '{' => Some('}'),
        '[' => Some(']'),
        '/' | '|' | '!' => Some(open),
        _ => None,
    }
}

/// The text up to where it closes, and where to go on.
fn quoted(characters: &[char], start: usize, close: char, width: usize) -> (String, usize) {
    let mut text = String::new();
    let mut at = start;
    while let Some(&character) = characters.get(at) {
        if character == close && characters[at..].iter().take(width).filter(|next| **next == close).count() == width {
            return (escapes(&text), at + width);
        }
        if character == '\\'
            && let Some(&next) = characters.get(at + 1)
        {
            text.extend([character, next]);
            at += 2;
            continue;
        }
        text.push(character);
        at += 1;
    }
    (escapes(&text), at)
}
