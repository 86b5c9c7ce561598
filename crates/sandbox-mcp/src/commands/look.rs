//! The walk through everything that a script could run. What each program makes of its words is in [`super::run`].

use sandbox_core::Reason;

use super::{
    Hidden, Refused, explain, paths,
    rules::{Rule, Rules},
    state::{File, Function, HIDDEN, State, shown},
    syntax::{Assignment, Block, Certainty, Command, Redirect, Simple},
};

/// How many commands and words are looked at.
const MOST_STEPS: usize = 50_000;

/// How much text is read, with all that is found inside.
const MOST_TEXT: usize = 2 * 1024 * 1024;

/// How deep it goes: scripts in scripts, functions in functions.
const DEEPEST: usize = 64;

/// How many choices of values are tried for one command.
const MOST_CHOICES: usize = 40;

/// What a command reads.
#[derive(Clone, Debug)]
pub enum Input {
    /// What the whole command was given.
    Outside,
    /// Something that this prints and that is not known here.
    Hidden(String),
    /// This text.
    Known(String),
}

/// The file that output goes to.
struct Written {
    path: String,
    append: bool,
}

/// One walk.
pub struct Look<'a> {
    pub rules: &'a Rules,
    pub state: State,
    pub denied: Option<Refused>,
    pub hidden: Option<Hidden>,
    /// How many values the variables of the present command may have.
    pub width: usize,
    places: Vec<String>,
    certain: Certainty,
    steps: usize,
    text: usize,
}

impl<'a> Look<'a> {
    /// A walk that starts in this state.
    pub fn new(rules: &'a Rules, state: State) -> Self {
        let (denied, hidden, places) = (None, None, Vec::new());
        Self { rules, state, denied, hidden, width: 1, places, certain: Certainty::Surely, steps: 0, text: 0 }
    }

    /// Whether enough has been seen. Counts a step.
    pub fn tired(&mut self) -> bool {
        self.steps += 1;
        if self.steps == MOST_STEPS {
            self.hide("there is too much in it to look through".to_owned(), "");
        }
        self.denied.is_some() || self.steps >= MOST_STEPS || self.text > MOST_TEXT
    }

    /// Whether this much more text may be read.
    pub fn charge(&mut self, length: usize) -> bool {
        self.text = self.text.saturating_add(length);
        if self.text > MOST_TEXT {
            self.hide("there is too much in it to look through".to_owned(), "");
        }
        self.text <= MOST_TEXT
    }

    /// Does something in a place that people are told of. An empty name is no place of its own.
    pub fn inside<T: Default>(&mut self, place: &str, look: impl FnOnce(&mut Self) -> T) -> T {
        if self.places.len() >= DEEPEST {
            self.hide("it is nested too deeply to be looked through".to_owned(), "");
            return T::default();
        }
        self.places.push(place.to_owned());
        let result = look(self);
        self.places.pop();
        result
    }

    /// Follows what a shell of its own does: its variables are gone when it has ended.
    pub fn in_own_shell(&mut self, look: impl FnOnce(&mut Self) -> Option<String>) -> Option<String> {
        let variables = self.state.variables();
        if !self.charge(variables.len() * 16) {
            return None;
        }
        let certain = std::mem::replace(&mut self.certain, Certainty::Surely);
        let folder = self.state.folder.clone();
        let output = look(self);
        (self.certain, self.state.folder) = (certain, folder);
        self.state.restore(variables);
        output
    }

    /// Remembers that something cannot be seen from here.
    pub fn hide(&mut self, what: String, target: &str) {
        self.hidden.get_or_insert_with(|| Hidden { what, target: shortened(target) });
    }

    /// Remembers that something is denied.
    pub fn deny(&mut self, rule: &Rule, target: &str) {
        let (why, instead) = explain::denied(rule);
        self.refuse(Reason::CommandDenied, rule.text.clone(), target, why, instead);
    }

    /// Remembers that something is not on the list of what is allowed.
    pub fn deny_unlisted(&mut self, name: &str, target: &str) {
        let (why, instead) = explain::unlisted(name);
        self.refuse(Reason::CommandNotAllowed, "commands.allow".to_owned(), target, why, instead);
    }

    fn refuse(&mut self, reason: Reason, rule: String, target: &str, why: String, instead: String) {
        let place = self.places.iter().rev().find(|place| !place.is_empty()).cloned();
        let target = shortened(target);
        self.denied.get_or_insert(Refused { reason, rule, target, place, why, instead });
    }

    /// Follows commands one after the other. Answers what they print, if that is known.
    pub fn commands(&mut self, commands: &[Command], input: &Input) -> Option<String> {
        let mut printed = Some(String::new());
        for command in commands {
            if self.tired() {
                return None;
            }
            let output = self.inside("", |look| look.command(command, input));
            printed = printed.zip(output).map(|(before, output)| before + &output).filter(|all| all.len() < 64 * 1024);
        }
        printed
    }

    fn command(&mut self, command: &Command, input: &Input) -> Option<String> {
        match command {
            Command::Simple(simple) => self.simple(simple, input),
            Command::Pipeline(commands) => self.pipeline(commands, input),
            Command::Block(block) => self.block(block, input),
            Command::For { variable, words, body } => {
                let values = match words {
                    Some(words) => self.fields(words, 0),
                    None => self.state.positional.clone().unwrap_or_else(|| vec![HIDDEN.to_string()]),
                };
                for value in values {
                    self.state.add(variable, vec![value]);
                }
                self.commands(body, input);
                None
            }
            Command::Case { words, bodies } => {
                self.fields(words, 0);
                self.commands(bodies, input);
                None
            }
            Command::Function { name, body } => {
                let function = Function { body: body.clone(), called: false };
                self.state.functions.insert(name.clone(), function);
                Some(String::new())
            }
            Command::Test(words) => {
                self.fields(words, 0);
                Some(String::new())
            }
        }
    }

    fn pipeline(&mut self, commands: &[Command], input: &Input) -> Option<String> {
        let before = std::mem::replace(&mut self.certain, Certainty::Perhaps);
        let mut input = input.clone();
        let mut output = None;
        for command in commands {
            output = self.inside("", |look| look.command(command, &input));
            input = match &output {
                Some(text) => Input::Known(text.clone()),
                None => Input::Hidden(name_of(command)),
            };
        }
        self.certain = before;
        output
    }

    fn block(&mut self, block: &Block, input: &Input) -> Option<String> {
        let (redirected, file) = self.redirects(&block.redirects, 0);
        let input = redirected.unwrap_or_else(|| input.clone());
        let before = self.certain;
        if block.certain == Certainty::Perhaps {
            self.certain = Certainty::Perhaps;
        }
        let output = self.commands(&block.body, &input);
        self.certain = before;
        self.printed(output, file)
    }

    /// Where what was printed goes: into a file, or on.
    fn printed(&mut self, output: Option<String>, file: Option<Written>) -> Option<String> {
        let Some(Written { path, append }) = file else { return output };
        let text = output.map(|output| match self.state.file(&path) {
            Some(File::Text(before)) if append && before.len() < 16 * 1024 => format!("{before}{output}"),
            _ => output,
        });
        self.state.write(&path, text.map(File::Text));
        Some(String::new())
    }

    fn simple(&mut self, simple: &Simple, input: &Input) -> Option<String> {
        let (redirected, file) = self.redirects(&simple.redirects, 0);
        let input = redirected.unwrap_or_else(|| input.clone());
        // What is set for one command only does not replace what was there.
        let certain = if simple.words.is_empty() { self.certain } else { Certainty::Perhaps };
        for assignment in &simple.assignments {
            self.assign(assignment, certain);
        }
        self.width = 1;
        let fields = self.fields(&simple.words, 0);
        let width = self.width.min(MOST_CHOICES);
        let mut output = self.run(&fields, &input);
        for choice in 1..width {
            if self.tired() {
                return None;
            }
            let fields = self.fields(&simple.words, choice);
            self.run(&fields, &input);
            output = None;
        }
        self.printed(output, file)
    }

    fn assign(&mut self, assignment: &Assignment, certain: Certainty) {
        let mut values = Vec::new();
        match assignment.values.as_slice() {
            [one] => values.push(self.text(one, 0)),
            many => values = self.fields(many, 0),
        }
        if assignment.append {
            let before = self.state.value(&assignment.name, usize::MAX).cloned().unwrap_or_default();
            values = match (before.as_slice(), values.as_slice()) {
                ([before], [value]) => vec![format!("{before}{value}")],
                _ => before.into_iter().chain(values).collect(),
            };
        }
        self.set(&assignment.name, values, certain);
    }

    /// Gives a variable a value, as one more where it is not sure that it gets it.
    fn set(&mut self, name: &str, values: Vec<String>, certain: Certainty) {
        match certain {
            Certainty::Surely => self.state.set(name, values),
            Certainty::Perhaps => self.state.add(name, values),
        }
    }

    /// Gives a variable the value that a command such as `read` or `export` gives it.
    pub fn set_by_command(&mut self, name: &str, value: String) {
        self.set(name, vec![value], self.certain);
    }

    /// Follows redirections. Answers what is read from them, and the file that the output goes to.
    fn redirects(&mut self, redirects: &[Redirect], choice: usize) -> (Option<Input>, Option<Written>) {
        let mut input = None;
        let mut file = None;
        for redirect in redirects {
            match redirect {
                Redirect::Document(body) => {
                    let text = body.get().map(|body| self.text(body, choice)).unwrap_or_default();
                    input = Some(Input::Known(text));
                }
                Redirect::Text(word) => input = Some(Input::Known(self.text(word, choice) + "\n")),
                Redirect::From(word) => {
                    let path = self.text(word, choice);
                    input = Some(match self.state.file(&path) {
                        Some(File::Text(text)) => Input::Known(text.clone()),
                        _ => Input::Hidden(shown(&path)),
                    });
                }
                Redirect::To { file: word, output, append } => {
                    let path = self.text(word, choice);
                    self.written(&path, &format!("> {path}"));
                    if *output {
                        file = Some(Written { path, append: *append });
                    }
                }
                Redirect::Copy(word) => {
                    self.text(word, choice);
                }
            }
        }
        (input, file)
    }

    /// Judges a file that is about to be written.
    pub fn written(&mut self, path: &str, target: &str) {
        if paths::is_device(path, self.state.folder.as_deref())
            && let Some(rule) = self.rules.devices()
        {
            self.deny(rule, target);
        }
    }

    /// Follows a function with these words. Answers what it prints.
    pub fn call(&mut self, name: &str, words: Option<Vec<String>>, input: &Input) -> Option<String> {
        let body = self.state.functions.get_mut(name).map(|function| {
            function.called = true;
            function.body.clone()
        })?;
        let before = std::mem::replace(&mut self.state.positional, words);
        let output = self.inside(&format!("in the function `{name}`"), |look| look.commands(&body, input));
        self.state.positional = before;
        output
    }

    /// Looks at the functions that nobody called.
    pub fn uncalled(&mut self) {
        let waiting: Vec<String> = self
            .state
            .functions
            .iter()
            .filter(|(_, function)| !function.called)
            .map(|(name, _)| name.clone())
            .collect();
        for name in waiting {
            if self.tired() {
                return;
            }
            // What they were given is not known, but they may never be called either.
            let hidden = self.hidden.clone();
            self.call(&name, None, &Input::Outside);
            self.hidden = hidden;
        }
    }
}

/// A text for people: one line, not long.
pub fn shortened(text: &str) -> String {
    const LONGEST: usize = 80;
    let text = shown(&text.chars().take(10 * LONGEST).collect::<String>());
    let line: String = text.split_whitespace().take(40).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// What to call a command whose output is not known.
fn name_of(command: &Command) -> String {
    match command {
        Command::Simple(simple) => simple.words.first().and_then(|word| word.bare()).unwrap_or("a command").to_owned(),
        _ => "a group of commands".to_owned(),
    }
}
