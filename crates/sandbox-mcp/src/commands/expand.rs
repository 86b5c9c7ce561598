//! What words become: braces, variables, substitutions, and the splitting into fields.

use super::{
    braces::braces,
    look::{Input, Look},
    paths,
    state::{HIDDEN, UNSET, has_hidden},
    syntax::{Part, Variable, Word, parse},
};

/// How many fields a command may have.
const MOST_FIELDS: usize = 4096;

/// The fields that words become, in the making.
struct Fields {
    done: Vec<String>,
    current: Option<String>,
    /// Whether they fall apart where a value has separators.
    splitting: Splitting,
}

#[derive(PartialEq, Eq)]
enum Splitting {
    AtSeparators,
    Nowhere,
}

impl Fields {
    fn new(splitting: Splitting) -> Self {
        Self { done: Vec::new(), current: None, splitting }
    }

    fn text(&mut self, text: &str) {
        self.current.get_or_insert_default().push_str(text);
    }

    /// Text that falls apart at these characters.
    fn split(&mut self, text: &str, separators: &str) {
        if self.splitting == Splitting::Nowhere {
            return self.text(text);
        }
        for character in text.chars() {
            if separators.contains(character) {
                self.end();
            } else {
                self.current.get_or_insert_default().push(character);
            }
        }
    }

    fn end(&mut self) {
        self.done.extend(self.current.take().filter(|_| self.done.len() < MOST_FIELDS));
    }
}

impl Look<'_> {
    /// The fields that these words become, where variables have the values of this choice. What is substituted in them
    /// is looked through on the way.
    pub fn fields(&mut self, words: &[Word], choice: usize) -> Vec<String> {
        let mut fields = Fields::new(Splitting::AtSeparators);
        for word in words {
            for word in braces(word) {
                if self.tired() {
                    fields.text(&HIDDEN.to_string());
                    fields.end();
                    return fields.done;
                }
                self.expand(&word, choice, &mut fields);
                fields.end();
            }
        }
        fields.done
    }

    /// The one text that a word becomes where nothing is split.
    pub fn text(&mut self, word: &Word, choice: usize) -> String {
        let mut fields = Fields::new(Splitting::Nowhere);
        self.expand(word, choice, &mut fields);
        fields.end();
        fields.done.join(" ")
    }

    fn expand(&mut self, word: &Word, choice: usize, fields: &mut Fields) {
        for (at, part) in word.0.iter().enumerate() {
            if self.tired() {
                return fields.text(&HIDDEN.to_string());
            }
            match part {
                Part::Plain(text) => match text.strip_prefix('~') {
                    Some(rest) if at == 0 && (rest.is_empty() || rest.starts_with('/')) => {
                        let home = self.state.value("HOME", choice).map(|home| home.join(" ")).unwrap_or_default();
                        fields.text(&home);
                        fields.text(rest);
                    }
                    _ => fields.text(text),
                },
                Part::Quoted(text) => fields.text(text),
                Part::Variable(variable) => self.variable(variable, choice, fields),
                Part::Output { commands, quoted, unreadable } => {
                    if let Some(unreadable) = unreadable {
                        self.hide(unreadable.to_string(), "`…`");
                    }
                    let output =
                        self.inside("in a command substitution", |look| look.commands(commands, &Input::Outside));
                    let output = output.unwrap_or_else(|| HIDDEN.to_string());
                    let output = output.trim_end_matches('\n');
                    let separators = self.separators(choice);
                    if *quoted { fields.text(output) } else { fields.split(output, &separators) }
                }
                Part::Process(commands) => {
                    let output =
                        self.inside("in a process substitution", |look| look.commands(commands, &Input::Outside));
                    fields.text(&self.process_file(output));
                }
                Part::Arithmetic(inner) => {
                    self.text(inner, choice);
                    fields.text(&HIDDEN.to_string());
                }
            }
        }
    }

    /// A name for what a process substitution prints, by which it is found again.
    fn process_file(&mut self, output: Option<String>) -> String {
        let path = format!("/dev/fd/{}", 10_000 + self.state.files.len());
        self.state.write(&path, output.map(super::state::File::Text));
        path
    }

    fn separators(&mut self, choice: usize) -> String {
        self.width = self.width.max(self.state.values("IFS").len());
        self.state.value("IFS", choice).map(|value| value.concat()).unwrap_or_else(|| " \t\n".to_owned())
    }

    fn variable(&mut self, variable: &Variable, choice: usize, fields: &mut Fields) {
        let mut value = self.value_of(variable, choice);
        if !self.charge(value.iter().map(String::len).sum()) {
            value = vec![HIDDEN.to_string()];
        }
        let all =
            variable.name == "@" || variable.name == "*" || variable.index.as_deref().is_some_and(|i| "@*".contains(i));
        match (variable.quoted, value.as_slice()) {
            (true, values) if all => {
                for (at, value) in values.iter().enumerate() {
                    if at > 0 {
                        fields.end();
                    }
                    fields.text(value);
                }
            }
            (true, values) => fields.text(&values.join(" ")),
            (false, values) => {
                let separators = self.separators(choice);
                for (at, value) in values.iter().enumerate() {
                    if at > 0 {
                        fields.end();
                    }
                    fields.split(value, &separators);
                }
            }
        }
    }

    fn value_of(&mut self, variable: &Variable, choice: usize) -> Vec<String> {
        let mut name = variable.name.clone();
        if variable.indirect {
            name = self.raw(&name, None, choice).map(|value| value.concat()).unwrap_or_default();
        }
        let value = self.raw(&name, variable.index.as_deref(), choice);
        // Looked through even where the value does not need it.
        let operand = self.text(&variable.operand, choice);
        if variable.length {
            return vec![HIDDEN.to_string()];
        }
        match (variable.operator.as_str(), value) {
            ("", Some(value)) => value,
            (":-" | "-" | ":=" | "=", None) => {
                if variable.operator.contains('=') {
                    self.state.add(&name, vec![operand.clone()]);
                }
                vec![operand]
            }
            (":-" | ":=", Some(value)) if value.concat().is_empty() => vec![operand],
            (":+" | "+", Some(value)) if !value.concat().is_empty() => vec![operand],
            (":+" | "+", _) => Vec::new(),
            (_, None) => vec![UNSET.to_string()],
            (_, Some(value)) if !self.charge(value.concat().len().pow(2) * operand.len() / 8) => {
                vec![HIDDEN.to_string()]
            }
            (operator, Some(value)) => value.iter().map(|value| changed(value, operator, &operand)).collect(),
        }
    }

    /// The value as it was assigned; none, if it was not.
    fn raw(&mut self, name: &str, index: Option<&str>, choice: usize) -> Option<Vec<String>> {
        if let Some(number) = name.parse::<usize>().ok().filter(|number| *number > 0) {
            return match &self.state.positional {
                Some(values) => Some(values.get(number - 1).cloned().into_iter().collect()),
                None => Some(vec![HIDDEN.to_string()]),
            };
        }
        match name {
            "@" | "*" => Some(self.state.positional.clone().unwrap_or_else(|| vec![HIDDEN.to_string()])),
            "#" => Some(vec![HIDDEN.to_string()]),
            "PWD" => self.state.folder.clone().map(|folder| vec![folder]),
            name => {
                self.width = self.width.max(self.state.values(name).len());
                let value = self.state.value(name, choice)?.clone();
                match index {
                    Some("@" | "*") => Some(value),
                    Some(index) => Some(match index.parse::<usize>() {
                        Ok(index) => value.get(index).cloned().into_iter().collect(),
                        Err(_) => vec![HIDDEN.to_string()],
                    }),
                    None => Some(value.into_iter().take(1).collect()),
                }
            }
        }
    }

    /// Reads a text and follows it, as a shell would that was given it.
    pub fn script(&mut self, text: &str, place: &str, input: &Input) -> Option<String> {
        if !self.charge(text.len()) {
            return None;
        }
        let script = parse(text);
        self.inside(place, |look| {
            let output = look.commands(&script.commands, input);
            match script.unreadable {
                Some(unreadable) => {
                    look.hide(unreadable.to_string(), text);
                    None
                }
                None => output,
            }
        })
    }
}

/// The value after `#`, `%`, `/`, `:` and the like.
fn changed(value: &str, operator: &str, operand: &str) -> String {
    if has_hidden(value) || has_hidden(operand) || value.len() > 1024 || operand.len() > 1024 {
        return HIDDEN.to_string();
    }
    let cuts = || value.char_indices().map(|(at, _)| at).chain([value.len()]);
    let from_start = |at: &usize| paths::matches(operand, &value[..*at]);
    let to_end = |at: &usize| paths::matches(operand, &value[*at..]);
    match operator {
        ":-" | "-" | ":=" | "=" | ":?" | "?" | "@" => value.to_owned(),
        "^^" => value.to_uppercase(),
        ",," => value.to_lowercase(),
        "#" => value[cuts().find(from_start).unwrap_or(0)..].to_owned(),
        "##" => value[cuts().rev_find(from_start).unwrap_or(0)..].to_owned(),
        "%" => value[..cuts().rev_find(to_end).unwrap_or(value.len())].to_owned(),
        "%%" => value[..cuts().find(to_end).unwrap_or(value.len())].to_owned(),
        ":" => substring(value, operand).unwrap_or_else(|| HIDDEN.to_string()),
        "/" | "//" | "/#" | "/%" => {
            let (pattern, replacement) = operand.split_once('/').unwrap_or((operand, ""));
            match operator {
                _ if paths::is_pattern(pattern) || pattern.is_empty() => HIDDEN.to_string(),
                "/" => value.replacen(pattern, replacement, 1),
                "//" => value.replace(pattern, replacement),
                _ => HIDDEN.to_string(),
            }
        }
        _ => HIDDEN.to_string(),
    }
}

trait RevFind: Iterator<Item = usize> + Sized {
    /// The last that fits. The cuts of a value come in one direction only.
    fn rev_find(self, fits: impl Fn(&usize) -> bool) -> Option<usize> {
        self.filter(fits).last()
    }
}
impl<I: Iterator<Item = usize>> RevFind for I {}

fn substring(value: &str, operand: &str) -> Option<String> {
    let mut numbers = operand.split(':').map(|number| number.trim().parse::<i64>());
    let length = i64::try_from(value.chars().count()).ok()?;
    let start = numbers.next()?.ok()?;
    let start = if start < 0 { length.checked_add(start)? } else { start };
    let count = match numbers.next() {
        None => length,
        Some(count) => count.ok()?,
    };
    let count = if count < 0 { (length - start).checked_add(count)? } else { count };
    let (start, count) = (usize::try_from(start).ok()?, usize::try_from(count).ok()?);
    Some(value.chars().skip(start).take(count).collect())
}
