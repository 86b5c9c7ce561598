//! What a program makes of its words: whether it is denied, and what it runs in turn.

use super::{
    builtins::BUILTINS,
    code,
    look::{Input, Look},
    output, paths,
    state::{File, HIDDEN, UNSET, has_hidden},
    wrappers::{self, Runs},
};

/// Shells, which read text that is run.
const SHELLS: [&str; 11] = ["sh", "bash", "dash", "zsh", "ash", "ksh", "mksh", "rbash", "fish", "yash", "busybox-sh"];

impl Look<'_> {
    /// Follows a program with its words. Answers what it prints, if that is known.
    pub fn run(&mut self, fields: &[String], input: &Input) -> Option<String> {
        let Some((name, words)) = fields.split_first() else { return Some(String::new()) };
        if self.tired() {
            return None;
        }
        if name.chars().all(|character| character == UNSET) {
            // A variable that nobody set is nothing, and the next word is the command.
            if !words.is_empty() {
                self.inside("", |look| look.run(words, input));
            }
            if !name.is_empty() {
                self.hide_name(fields);
            }
            return None;
        }
        if let Some(text) = self.state.aliases.get(name).cloned() {
            let text = std::iter::once(text).chain(words.iter().map(|word| quote(word))).collect::<Vec<_>>().join(" ");
            // An alias may be named as what it stands for.
            let alias = self.state.aliases.remove_entry(name);
            let output = self.script(&text, &format!("by the alias `{name}`"), input);
            self.state.aliases.extend(alias);
            return output;
        }
        if self.state.functions.contains_key(name) {
            return self.call(&name.clone(), Some(words.to_vec()), input);
        }
        self.program(name, fields, input)
    }

    fn program(&mut self, path: &str, fields: &[String], input: &Input) -> Option<String> {
        let words = fields.get(1..).unwrap_or_default();
        let target = || fields.join(" ");
        let found = self.state.file(path).cloned();
        let name = match &found {
            Some(File::Program(name)) if path.contains('/') => name.clone(),
            _ => paths::base(path).replace(UNSET, ""),
        };
        if let Some(rule) = self.rules.denies(&name, words, self.state.folder.as_deref()) {
            return self.denied_by(rule.clone(), &target());
        }
        if paths::base(path).contains([HIDDEN, UNSET]) {
            self.hide_name(fields);
            return None;
        }
        if paths::is_pattern(&name) && name != "[" && !wrappers::is_loader(&name) {
            let letters = name.chars().filter(|letter| letter.is_alphanumeric()).count();
            if let Some(rule) = self.rules.denies_pattern(&name).filter(|_| letters > 1) {
                return self.denied_by(rule.clone(), &target());
            }
            self.hide("the name of the program is a pattern".to_owned(), &target());
            return None;
        }
        if !BUILTINS.contains(&path) && !self.rules.allows(path, self.state.folder.as_deref()) {
            self.deny_unlisted(&name, &target());
            return None;
        }
        if let Some(File::Text(text)) = found
            && path.contains('/')
        {
            return self.inside("", |look| look.in_own_shell(|look| look.file(path, &text, words)));
        }
        self.inside("", |look| look.known_program(&name, words, input))
    }

    fn denied_by(&mut self, rule: super::rules::Rule, target: &str) -> Option<String> {
        self.deny(&rule, target);
        None
    }

    fn hide_name(&mut self, fields: &[String]) {
        self.hide("the name of the program is computed".to_owned(), &fields.join(" "));
    }

    /// A file that was written here and is now run.
    fn file(&mut self, path: &str, text: &str, words: &[String]) -> Option<String> {
        let place = format!("in the file `{path}`");
        let first = text.lines().next().unwrap_or_default();
        let interpreter =
            first.strip_prefix("#!").map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        if let Some(mut fields) = interpreter.filter(|fields| !fields.is_empty()) {
            let shell = fields.iter().any(|word| SHELLS.contains(&paths::base(word)));
            if !shell {
                fields.push(path.to_owned());
                return self.inside(&place, |look| look.run(&fields, &Input::Outside));
            }
        }
        let before = self.state.positional.replace(words.to_vec());
        let output = self.script(text, &place, &Input::Outside);
        self.state.positional = before;
        output
    }

    fn known_program(&mut self, name: &str, words: &[String], input: &Input) -> Option<String> {
        if SHELLS.contains(&name) {
            return self.in_own_shell(|look| look.shell(name, words, input));
        }
        if let Some(language) = code::language(name) {
            self.interpreter(name, language, words, input);
            return None;
        }
        if wrappers::is_loader(name) {
            let rest = wrappers::after_options(
                words,
                &["--library-path", "--preload", "--audit", "--argv0", "--inhibit-rpath"],
                "",
            );
            return self.inside("run by the loader", |look| look.run(rest, input));
        }
        match wrappers::runs(name, words) {
            Runs::Nothing => {}
            Runs::Program(words) => {
                return self.inside(&format!("run by {name}"), |look| look.run(&words, input));
            }
            Runs::Programs(commands) => {
                for words in commands {
                    self.inside(&format!("run by {name}"), |look| look.run(&words, &Input::Outside));
                }
                return None;
            }
            Runs::Script(text) => return self.given_text(&text, &format!("run by {name}"), input),
            Runs::Scripts(texts) => {
                for text in texts {
                    self.given_text(&text, &format!("run by {name}"), &Input::Outside);
                }
                return None;
            }
            Runs::InputWith(words) => return self.arguments_from_input(name, words, input),
        }
        if let Some(output) = self.builtin(name, words, input) {
            return output;
        }
        self.files(name, words);
        if let Input::Known(text) = input
            && !self.charge(text.len())
        {
            return None;
        }
        output::of(name, words, input, &self.state).filter(|output| self.charge(output.len()))
    }

    /// Text that is run by a shell.
    pub fn given_text(&mut self, text: &str, place: &str, input: &Input) -> Option<String> {
        if has_hidden(text) {
            self.hide("text that is computed is run as a command".to_owned(), text);
        }
        self.script(text, place, input)
    }

    /// `sh -c TEXT`, `sh FILE`, `sh` with text as its input.
    fn shell(&mut self, name: &str, words: &[String], input: &Input) -> Option<String> {
        let mut at = 0;
        let mut asked = false;
        while let Some(word) = words.get(at).filter(|word| word.starts_with(['-', '+']) && word.len() > 1) {
            at += 1;
            if word.starts_with("--") {
                at += usize::from(matches!(word.as_str(), "--rcfile" | "--init-file"));
                if word == "--" {
                    break;
                }
                continue;
            }
            asked |= word.starts_with('-') && word.contains('c');
            at += usize::from(word.ends_with(['o', 'O']));
        }
        let rest = words.get(at..).unwrap_or_default();
        match rest.split_first() {
            Some((text, rest)) if asked => {
                // The first word after the text is `$0`.
                let words = rest.get(1..).unwrap_or_default().to_vec();
                let before = self.state.positional.replace(words);
                self.state.set("0", vec![rest.first().cloned().unwrap_or_else(|| name.to_owned())]);
                let output = self.given_text(text, &format!("inside `{name} -c`"), input);
                self.state.positional = before;
                output
            }
            Some((path, words)) if path != "-" && path != "/dev/stdin" => match self.state.file(path).cloned() {
                Some(File::Text(text)) => self.file(path, &text, words),
                _ => {
                    self.hide("a script is run that cannot be seen from here".to_owned(), &format!("{name} {path}"));
                    None
                }
            },
            _ => self.text_from(input, name),
        }
    }

    /// Text that a shell reads.
    pub fn text_from(&mut self, input: &Input, name: &str) -> Option<String> {
        match input {
            Input::Known(text) => self.given_text(&text.clone(), &format!("read by {name}"), &Input::Outside),
            Input::Hidden(from) => {
                let target = format!("{from} | {name}");
                self.hide(format!("{name} runs whatever `{from}` gives it"), &target);
                None
            }
            Input::Outside => {
                self.hide(format!("{name} runs whatever it will be sent"), name);
                None
            }
        }
    }

    fn interpreter(&mut self, name: &str, language: code::Language, words: &[String], input: &Input) {
        let mut texts = code::texts(language, words);
        if texts.is_empty() {
            match (code::file(words), input) {
                (Some(path), _) => match self.state.file(path) {
                    Some(File::Text(text)) => texts.push(text.clone()),
                    // A program like any other.
                    _ => return,
                },
                (None, Input::Known(text)) => texts.push(text.clone()),
                (None, Input::Hidden(from)) => {
                    let target = format!("{from} | {name}");
                    return self.hide(format!("{name} runs whatever `{from}` gives it"), &target);
                }
                (None, Input::Outside) => return,
            }
        }
        for text in texts {
            if !self.charge(text.len()) {
                return;
            }
            for found in code::look(language, &text) {
                let place = format!("inside {name} code");
                match found {
                    code::Found::Script(script) => drop(self.script(&script, &place, &Input::Outside)),
                    code::Found::Program(words) => drop(self.inside(&place, |look| look.run(&words, &Input::Outside))),
                    code::Found::Computed => {
                        self.hide(format!("{name} code runs a command that is computed"), &text);
                    }
                }
            }
        }
    }

    /// `xargs` and `parallel`: words come from the input.
    fn arguments_from_input(&mut self, name: &str, words: wrappers::FromInput, input: &Input) -> Option<String> {
        let given = match input {
            Input::Known(text) => Some(text.split_whitespace().take(256).map(str::to_owned).collect::<Vec<_>>()),
            _ => None,
        };
        let hidden = || vec![HIDDEN.to_string()];
        let mut fields = words.words;
        match words.replaces {
            Some(mark) => {
                let values = given.unwrap_or_else(hidden);
                for value in values.iter().take(16) {
                    let replaced: Vec<String> = fields.iter().map(|word| word.replace(&mark, value)).collect();
                    self.inside(&format!("run by {name}"), |look| look.run(&replaced, &Input::Outside));
                }
            }
            None => {
                fields.extend(given.unwrap_or_else(hidden));
                self.inside(&format!("run by {name}"), |look| look.run(&fields, &Input::Outside));
            }
        }
        None
    }
}

/// A word so that a shell reads it as just this word.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
