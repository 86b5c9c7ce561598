//! Commands: lists, pipelines, what `if`, `for`, `case` and braces hold together, and redirections.

use std::rc::Rc;

use super::{Assignment, Block, Certainty, Command, Part, Read, Reader, Simple, Unreadable, Word, word};

/// Words that end a list where they stand in place of a command.
const CLOSERS: [&str; 8] = ["then", "else", "elif", "fi", "do", "done", "esac", "}"];

impl Reader {
    /// All of it. What was read before something unreadable stays in `commands`.
    pub fn script(&mut self, commands: &mut Vec<Command>) -> Read<()> {
        self.list(commands)?;
        if self.peek().is_none() { Ok(()) } else { Err(Unreadable::Syntax) }
    }

    /// `… )`, of which the opening has been read.
    pub fn until_parenthesis(&mut self) -> Read<Vec<Command>> {
        let mut commands = Vec::new();
        self.list(&mut commands)?;
        self.expect(")")?;
        Ok(commands)
    }

    /// `… }`, of which the opening has been read.
    pub fn until_brace(&mut self) -> Read<Vec<Command>> {
        let mut commands = Vec::new();
        self.list(&mut commands)?;
        self.expect("}")?;
        Ok(commands)
    }

    /// Commands up to something that can only close what was opened outside.
    fn list(&mut self, commands: &mut Vec<Command>) -> Read<()> {
        let mut certain = Certainty::Surely;
        loop {
            self.lines()?;
            if self.at_end_of_list() {
                return Ok(());
            }
            let command = self.deeper(Self::pipeline)?;
            commands.push(match certain {
                Certainty::Surely => command,
                Certainty::Perhaps => Command::Block(Block { certain, body: vec![command], redirects: Vec::new() }),
            });
            self.blanks();
            certain = Certainty::Surely;
            if self.take("&&") || self.take("||") {
                certain = Certainty::Perhaps;
                continue;
            }
            let ends_case = self.sees(";;") || self.sees(";&");
            if ends_case || !(self.take(";") || self.take("&")) && self.peek() != Some('\n') {
                return Ok(());
            }
        }
    }

    fn at_end_of_list(&self) -> bool {
        match self.peek() {
            None | Some(')') => true,
            Some(';') => self.sees(";;") || self.sees(";&"),
            _ => CLOSERS.iter().any(|closer| self.sees_reserved(closer)),
        }
    }

    fn sees_reserved(&self, reserved: &str) -> bool {
        let next = self.peek_at(reserved.len());
        self.sees(reserved) && next.is_none_or(word::ends_word)
    }

    fn take_reserved(&mut self, reserved: &str) -> bool {
        self.sees_reserved(reserved) && self.take(reserved)
    }

    /// Passes blanks, comments and escaped line ends.
    pub fn blanks(&mut self) {
        loop {
            match self.peek() {
                Some(' ' | '\t' | '\r') => self.at += 1,
                Some('\\') if self.peek_at(1) == Some('\n') => self.at += 2,
                Some('#') => {
                    while self.peek().is_some_and(|character| character != '\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    /// Passes blanks and line ends, and reads the here-documents that come after them.
    fn lines(&mut self) -> Read<()> {
        loop {
            self.blanks();
            if !self.take("\n") {
                return Ok(());
            }
            for document in std::mem::take(&mut self.documents) {
                self.read_document(&document)?;
            }
        }
    }

    fn pipeline(&mut self) -> Read<Command> {
        let mut commands = Vec::new();
        loop {
            while self.take_reserved("!") || self.take_time() {
                self.blanks();
            }
            commands.push(self.command()?);
            self.blanks();
            if self.sees("||") || !(self.take("|&") || self.take("|")) {
                break;
            }
            self.lines()?;
        }
        match commands.len() {
            1 => commands.pop().ok_or(Unreadable::Syntax),
            _ => Ok(Command::Pipeline(commands)),
        }
    }

    /// Passes `time` where it is the shell's own word. With other options than `-p` it is the program.
    fn take_time(&mut self) -> bool {
        let start = self.at;
        if !self.take_reserved("time") {
            return false;
        }
        self.blanks();
        if self.take_reserved("-p") {
            self.blanks();
        }
        let nothing = matches!(self.peek(), None | Some('\n' | ';' | '|' | '&' | ')' | '-'));
        if nothing {
            self.at = start;
        }
        !nothing
    }

    fn command(&mut self) -> Read<Command> {
        if self.sees("((") && self.closes_twice(0) {
            self.at += 2;
            let test = Word(vec![self.arithmetic()?]);
            return self.redirected(Certainty::Surely, vec![Command::Test(vec![test])]);
        }
        if self.take("(") {
            let body = self.until_parenthesis()?;
            return self.redirected(Certainty::Perhaps, body);
        }
        if self.take_reserved("{") {
            let body = self.until_brace()?;
            return self.redirected(Certainty::Surely, body);
        }
        if self.take_reserved("if") {
            return self.branches(&["then", "elif", "else"], "fi");
        }
        if self.take_reserved("while") || self.take_reserved("until") {
            return self.branches(&["do"], "done");
        }
        if self.take_reserved("for") || self.take_reserved("select") {
            return self.each();
        }
        if self.take_reserved("case") {
            return self.case();
        }
        if self.take_reserved("[[") {
            return self.test();
        }
        if self.take_reserved("function") {
            self.blanks();
            let name = self.word()?.bare().ok_or(Unreadable::Syntax)?.to_owned();
            self.blanks();
            if self.take("(") {
                self.blanks();
                self.expect(")")?;
            }
            return self.function(name);
        }
        if self.take_reserved("coproc") {
            self.blanks();
            return self.deeper(Self::coprocess);
        }
        self.simple()
    }

    /// A coprocess, which may have a name if it is not a simple command.
    fn coprocess(&mut self) -> Read<Command> {
        let start = self.at;
        let named = self.word()?.bare().is_some() && {
            self.blanks();
            self.sees("(") || self.sees_reserved("{") || self.sees_reserved("if") || self.sees_reserved("while")
        };
        if !named {
            self.at = start;
        }
        self.command()
    }

    /// Bodies between reserved words. Any of them may run.
    fn branches(&mut self, between: &[&str], end: &str) -> Read<Command> {
        let mut body = Vec::new();
        loop {
            self.list(&mut body)?;
            if self.take_reserved(end) {
                return self.redirected(Certainty::Perhaps, body);
            }
            if !between.iter().any(|word| self.take_reserved(word)) {
                return Err(Unreadable::Syntax);
            }
        }
    }

    /// `for` and `select`, of which the first word has been read.
    fn each(&mut self) -> Read<Command> {
        self.blanks();
        if self.sees("((") {
            self.at += 2;
            let mut body = vec![Command::Test(vec![Word(vec![self.arithmetic()?])])];
            self.blanks();
            self.take(";");
            body.extend(self.body()?);
            return self.redirected(Certainty::Perhaps, body);
        }
        let variable = self.word()?.bare().ok_or(Unreadable::Syntax)?.to_owned();
        self.lines()?;
        let words = match self.take_reserved("in") {
            true => Some(self.words()?),
            false => None,
        };
        self.blanks();
        self.take(";");
        let body = self.body()?;
        self.redirected(Certainty::Perhaps, vec![Command::For { variable, words, body }])
    }

    /// `do … done` or `{ … }`.
    fn body(&mut self) -> Read<Vec<Command>> {
        self.lines()?;
        if self.take_reserved("{") {
            return self.until_brace();
        }
        if !self.take_reserved("do") {
            return Err(Unreadable::Syntax);
        }
        let mut body = Vec::new();
        self.list(&mut body)?;
        if self.take_reserved("done") { Ok(body) } else { Err(Unreadable::Syntax) }
    }

    fn words(&mut self) -> Read<Vec<Word>> {
        let mut words = Vec::new();
        loop {
            self.blanks();
            let word = self.word()?;
            if word.0.is_empty() {
                return Ok(words);
            }
            words.push(word);
        }
    }

    fn case(&mut self) -> Read<Command> {
        self.blanks();
        let mut words = vec![self.word()?];
        let mut bodies = Vec::new();
        self.lines()?;
        if !self.take_reserved("in") {
            return Err(Unreadable::Syntax);
        }
        loop {
            self.lines()?;
            if self.take_reserved("esac") {
                return self.redirected(Certainty::Perhaps, vec![Command::Case { words, bodies }]);
            }
            self.take("(");
            loop {
                self.blanks();
                words.push(self.word()?);
                self.blanks();
                if !self.take("|") {
                    break;
                }
            }
            self.expect(")")?;
            self.list(&mut bodies)?;
            let _ = self.take(";;&") || self.take(";;") || self.take(";&");
        }
    }

    /// `[[ … ]]`, of which the opening has been read. Its operators are of no interest.
    fn test(&mut self) -> Read<Command> {
        let mut words = Vec::new();
        loop {
            self.lines()?;
            let word = self.word()?;
            match word.bare() {
                Some("]]") => return self.redirected(Certainty::Surely, vec![Command::Test(words)]),
                _ if word.0.is_empty() => {
                    if !matches!(self.next(), Some('<' | '>' | '&' | '|' | '(' | ')')) {
                        return Err(Unreadable::Syntax);
                    }
                }
                _ => words.push(word),
            }
        }
    }

    fn function(&mut self, name: String) -> Read<Command> {
        self.lines()?;
        let body = Rc::new(vec![self.deeper(Self::command)?]);
        Ok(Command::Function { name, body })
    }

    /// What was read, with the redirections that come after it.
    fn redirected(&mut self, certain: Certainty, body: Vec<Command>) -> Read<Command> {
        let mut redirects = Vec::new();
        loop {
            self.blanks();
            match self.redirect()? {
                Some(redirect) => redirects.push(redirect),
                None => return Ok(Command::Block(Block { certain, body, redirects })),
            }
        }
    }

    fn simple(&mut self) -> Read<Command> {
        let mut simple = Simple::default();
        loop {
            self.blanks();
            if let Some(redirect) = self.redirect()? {
                simple.redirects.push(redirect);
                continue;
            }
            let word = self.word()?;
            if word.0.is_empty() {
                break;
            }
            if simple.words.is_empty()
                && let Some(assignment) = self.assignment(&word)?
            {
                simple.assignments.push(assignment);
                continue;
            }
            if let Some(name) = word.bare()
                && simple.words.is_empty()
                && self.parenthesis_pair()
            {
                return self.function(name.to_owned());
            }
            simple.words.push(word);
        }
        if simple.assignments.is_empty() && simple.words.is_empty() && simple.redirects.is_empty() {
            return Err(Unreadable::Syntax);
        }
        Ok(Command::Simple(simple))
    }

    /// Passes `()`, if it is what comes.
    fn parenthesis_pair(&mut self) -> bool {
        let start = self.at;
        self.blanks();
        let pair = self.take("(") && {
            self.blanks();
            self.take(")")
        };
        if !pair {
            self.at = start;
        }
        pair
    }

    fn assignment(&mut self, word: &Word) -> Read<Option<Assignment>> {
        let Some((Part::Plain(text), rest)) = word.0.split_first() else { return Ok(None) };
        let Some((left, right)) = text.split_once('=') else { return Ok(None) };
        let (left, append) = left.strip_suffix('+').map_or((left, false), |left| (left, true));
        let name = left.split('[').next().unwrap_or_default();
        let first = name.chars().next().is_some_and(|first| first == '_' || first.is_ascii_alphabetic());
        if !first || !name.chars().all(|character| character == '_' || character.is_ascii_alphanumeric()) {
            return Ok(None);
        }
        let name = name.to_owned();
        if right.is_empty() && rest.is_empty() && self.take("(") {
            let mut values = Vec::new();
            loop {
                self.lines()?;
                let value = self.word()?;
                if value.0.is_empty() {
                    break;
                }
                values.push(value);
            }
            self.expect(")")?;
            return Ok(Some(Assignment { name, append, values }));
        }
        let mut value = vec![Part::Plain(right.to_owned())];
        value.extend(rest.iter().cloned());
        Ok(Some(Assignment { name, append, values: vec![Word(value)] }))
    }
}
