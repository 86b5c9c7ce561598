//! What shells do themselves, and the programs that make files: what they change in what is known.

use super::{
    look::{Input, Look},
    output, paths,
    run::quote,
    state::{File, HIDDEN},
};

/// What shells do themselves.
#[rustfmt::skip]
pub const BUILTINS: [&str; 62] = [
    ".", ":", "[", "alias", "bg", "bind", "break", "builtin", "caller", "cd", "command", "compgen", "complete", "compopt",
    "continue", "declare", "dirs", "disown", "echo", "enable", "eval", "exec", "exit", "export", "false", "fc", "fg",
    "getopts", "hash", "help", "history", "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd",
    "pwd", "read", "readarray", "readonly", "return", "set", "shift", "shopt", "source", "suspend", "test", "times",
    "trap", "true", "type", "typeset", "ulimit", "umask", "unalias", "unset", "wait", "chdir",
];

impl Look<'_> {
    /// What the shell does itself. `None` if it is none of that.
    pub fn builtin(&mut self, name: &str, words: &[String], input: &Input) -> Option<Option<String>> {
        let quiet = Some(Some(String::new()));
        match name {
            "eval" => Some(self.given_text(&words.join(" "), "inside `eval`", input)),
            "." | "source" => Some(match words.first().map(|path| (path, self.state.file(path).cloned())) {
                Some((path, Some(File::Text(text)))) => self.script(&text, &format!("in the file `{path}`"), input),
                Some((path, _)) if path == "/dev/stdin" => self.text_from(input, name),
                Some((path, _)) => {
                    self.hide("a script is run that cannot be seen from here".to_owned(), &format!("{name} {path}"));
                    None
                }
                None => None,
            }),
            "trap" => {
                if let Some(text) = words.iter().find(|word| !word.starts_with('-')) {
                    self.given_text(&text.clone(), "in a trap", &Input::Outside);
                }
                quiet
            }
            "alias" => {
                for word in words {
                    if let Some((name, text)) = word.split_once('=') {
                        self.state.aliases.insert(name.to_owned(), text.to_owned());
                    }
                }
                quiet
            }
            "unalias" => {
                words.iter().for_each(|word| drop(self.state.aliases.remove(word)));
                quiet
            }
            "hash" => {
                if let [option, path, name, ..] = words
                    && option == "-p"
                {
                    self.state.aliases.insert(name.clone(), quote(path));
                }
                quiet
            }
            "export" | "declare" | "local" | "readonly" | "typeset" => {
                for word in words.iter().filter(|word| !word.starts_with('-')) {
                    if let Some((name, value)) = word.split_once('=') {
                        self.set_by_command(name, value.to_owned());
                    }
                }
                quiet
            }
            "unset" => {
                words.iter().for_each(|word| self.state.unset(word));
                quiet
            }
            "set" => {
                if let Some(at) = words.iter().position(|word| word == "--") {
                    self.state.positional = Some(words[at + 1..].to_vec());
                } else if words.first().is_some_and(|word| !word.starts_with(['-', '+'])) {
                    self.state.positional = Some(words.to_vec());
                }
                quiet
            }
            "shift" => {
                if let Some(values) = self.state.positional.as_mut().filter(|values| !values.is_empty()) {
                    values.remove(0);
                }
                quiet
            }
            "read" | "mapfile" | "readarray" | "getopts" => {
                let line = match input {
                    Input::Known(text) if name == "read" => text.lines().next().unwrap_or_default().to_owned(),
                    _ => HIDDEN.to_string(),
                };
                let names: Vec<_> = words.iter().filter(|word| !word.starts_with('-')).collect();
                let mut rest = line.as_str();
                for (at, variable) in names.iter().enumerate() {
                    let (value, after) = match rest.split_once([' ', '\t']) {
                        Some((value, after)) if at + 1 < names.len() => (value, after),
                        _ => (rest, ""),
                    };
                    let value = if line.starts_with(HIDDEN) { line.clone() } else { value.to_owned() };
                    self.set_by_command(variable, value);
                    rest = after;
                }
                quiet
            }
            "cd" | "chdir" | "pushd" => {
                let folder = words.iter().find(|word| !word.starts_with('-')).map_or(paths::HOME, String::as_str);
                self.state.folder = paths::resolve(folder, self.state.folder.as_deref());
                quiet
            }
            "popd" => {
                self.state.folder = None;
                quiet
            }
            "printf" if words.first().is_some_and(|word| word == "-v") => {
                if let Some((variable, rest)) = words.get(1..).and_then(<[String]>::split_first) {
                    let value = output::of("printf", rest, input, &self.state).unwrap_or_else(|| HIDDEN.to_string());
                    self.set_by_command(variable, value);
                }
                quiet
            }
            ":" | "true" | "false" | "test" | "[" | "shopt" | "umask" | "ulimit" | "wait" | "return" | "exit" => quiet,
            _ => None,
        }
    }

    /// Files that are made, as far as it matters later.
    pub fn files(&mut self, name: &str, words: &[String]) {
        let operands: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
        match (name, operands.as_slice()) {
            ("cp" | "ln" | "mv" | "install" | "rsync", [sources @ .., target]) => {
                self.written(target, &format!("{name} … {target}"));
                for source in sources {
                    let known = match self.state.file(source) {
                        Some(file) => file.clone(),
                        None => File::Program(paths::base(source).to_owned()),
                    };
                    self.state.write(&format!("{target}/{}", paths::base(source)), Some(known.clone()));
                    self.state.write(target, Some(known));
                }
            }
            ("tee", targets) => {
                for target in targets {
                    self.written(target, &format!("tee {target}"));
                }
            }
            ("shred" | "wipefs" | "blkdiscard" | "truncate", targets) => {
                for target in targets {
                    self.written(target, &format!("{name} {target}"));
                }
            }
            _ => {}
        }
    }
}
