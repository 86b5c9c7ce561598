//! Words: quoting, variables and substitutions.

use std::rc::Rc;

use super::{Part, Read, Reader, Unreadable, Variable, Word, escapes, nested};

/// Where a piece of text stands, which decides where it ends and what is special in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Between blanks.
    Open,
    /// In double quotes; `"` ends it.
    Quotes,
    /// In a here-document or in arithmetic: the end of the text ends it.
    Document,
    /// In `${…}`; `}` ends it. It may stand in double quotes itself.
    Braces { quoted: bool },
}

impl Place {
    fn quoted(self) -> bool {
        matches!(self, Self::Quotes | Self::Document | Self::Braces { quoted: true })
    }
}

/// Whether a word ends here.
pub fn ends_word(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>')
}

fn is_name(character: char) -> bool {
    character == '_' || character.is_ascii_alphanumeric()
}

impl Reader {
    /// The word that starts here; without parts, if none does.
    pub fn word(&mut self) -> Read<Word> {
        self.parts(Place::Open)
    }

    /// The text of a here-document or of arithmetic, as a word.
    pub fn document(text: &str, depth: usize) -> Read<Word> {
        let mut reader = Self { text: text.chars().collect(), at: 0, depth, documents: Vec::new() };
        reader.parts(Place::Document)
    }

    fn parts(&mut self, place: Place) -> Read<Word> {
        let mut word = Word::default();
        loop {
            let Some(character) = self.peek() else {
                return match place {
                    Place::Open | Place::Document => Ok(word),
                    Place::Quotes | Place::Braces { .. } => Err(Unreadable::Syntax),
                };
            };
            match (character, place) {
                ('"', Place::Quotes) | ('}', Place::Braces { .. }) => {
                    self.at += 1;
                    return Ok(word);
                }
                ('<' | '>', Place::Open) if self.peek_at(1) == Some('(') => {
                    self.at += 2;
                    let commands = self.deeper(Self::until_parenthesis)?;
                    word.0.push(Part::Process(Rc::new(commands)));
                }
                ('(', Place::Open) if extended_pattern(&word) => self.pattern(&mut word)?,
                (character, Place::Open) if ends_word(character) => return Ok(word),
                ('\\', _) => self.backslash(place, &mut word),
                ('\'', Place::Open | Place::Braces { quoted: false }) => {
                    self.at += 1;
                    let text = self.until('\'')?;
                    word.0.push(Part::Quoted(text));
                }
                ('"', Place::Open | Place::Braces { .. }) => {
                    self.at += 1;
                    let inner = self.deeper(|reader| reader.parts(Place::Quotes))?;
                    // An empty pair of quotes is a word too.
                    word.0.push(Part::Quoted(String::new()));
                    word.0.extend(inner.0);
                }
                ('`', _) => self.backticks(place, &mut word)?,
                ('$', _) => self.dollar(place, &mut word)?,
                (character, _) => {
                    self.at += 1;
                    word.literal(place, character);
                }
            }
        }
    }

    fn backslash(&mut self, place: Place, word: &mut Word) {
        self.at += 1;
        match self.next() {
            None => word.literal(place, '\\'),
            Some('\n') => {}
            Some(escaped) => {
                let special = matches!(escaped, '$' | '`' | '"' | '\\');
                if place.quoted() && !special {
                    word.literal(place, '\\');
                }
                word.quoted_literal(escaped);
            }
        }
    }

    /// The text up to this character, which is passed.
    fn until(&mut self, end: char) -> Read<String> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|character| *character == end).ok_or(Unreadable::Syntax)?;
        let text = rest.iter().take(length).collect();
        self.at += length + 1;
        Ok(text)
    }

    /// `@(a|b)` and the like: part of a pattern, not a subshell.
    fn pattern(&mut self, word: &mut Word) -> Read<()> {
        let mut open = 0;
        while let Some(character) = self.next() {
            word.literal(Place::Open, character);
            match character {
                '(' => open += 1,
                ')' => open -= 1,
                '\n' => return Err(Unreadable::Syntax),
                _ => {}
            }
            if open == 0 {
                return Ok(());
            }
        }
        Err(Unreadable::Syntax)
    }

    fn backticks(&mut self, place: Place, word: &mut Word) -> Read<()> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next().ok_or(Unreadable::Syntax)? {
                '`' => break,
                '\\' => match self.next() {
                    Some(escaped @ ('`' | '\\' | '$')) => text.push(escaped),
                    Some('"') if place.quoted() => text.push('"'),
                    Some(other) => text.extend(['\\', other]),
                    None => return Err(Unreadable::Syntax),
                },
                other => text.push(other),
            }
        }
        let script = self.deeper(|reader| Ok(nested(&text, reader.depth)))?;
        let commands = Rc::new(script.commands);
        word.0.push(Part::Output { commands, quoted: place.quoted(), unreadable: script.unreadable });
        Ok(())
    }

    fn dollar(&mut self, place: Place, word: &mut Word) -> Read<()> {
        let quoted = place.quoted();
        let part = match self.peek_at(1) {
            Some('(') if self.peek_at(2) == Some('(') && self.closes_twice(1) => {
                self.at += 3;
                self.arithmetic()?
            }
            Some('(') => {
                self.at += 2;
                let commands = Rc::new(self.deeper(Self::until_parenthesis)?);
                Part::Output { commands, quoted, unreadable: None }
            }
            Some('{') => {
                self.at += 2;
                self.deeper(|reader| reader.braces(quoted))?
            }
            Some('\'') if !quoted => {
                self.at += 2;
                Part::Quoted(self.until_unescaped()?)
            }
            Some('"') if !quoted => {
                self.at += 1;
                return Ok(());
            }
            Some(first) if is_name(first) || "@*#?$!-".contains(first) => {
                self.at += 1;
                Part::Variable(Rc::new(Variable { name: self.variable_name(), quoted, ..Variable::default() }))
            }
            _ => {
                self.at += 1;
                word.literal(place, '$');
                return Ok(());
            }
        };
        word.0.push(part);
        Ok(())
    }

    /// The name of a variable or parameter, which starts here.
    fn variable_name(&mut self) -> String {
        let mut name = String::new();
        let Some(first) = self.next() else { return name };
        name.push(first);
        while (first == '_' || first.is_ascii_alphabetic())
            && let Some(next) = self.peek().filter(|next| is_name(*next))
        {
            name.push(next);
            self.at += 1;
        }
        name
    }

    /// `$'…'`, of which the opening has been read.
    fn until_unescaped(&mut self) -> Read<String> {
        let mut text = String::new();
        loop {
            match self.next().ok_or(Unreadable::Syntax)? {
                '\'' => return Ok(escapes(&text)),
                '\\' => text.extend(['\\', self.next().ok_or(Unreadable::Syntax)?]),
                other => text.push(other),
            }
        }
    }

    /// `${…}`, of which the opening has been read.
    fn braces(&mut self, quoted: bool) -> Read<Part> {
        if matches!(self.peek(), Some(' ' | '\t' | '\n' | '|')) {
            self.at += 1;
            let commands = Rc::new(self.until_brace()?);
            return Ok(Part::Output { commands, quoted, unreadable: None });
        }
        let mut variable = Variable { quoted, ..Variable::default() };
        let follows = |reader: &Self| reader.peek_at(1).is_some_and(|next| is_name(next) || "@*#?-$!".contains(next));
        if self.peek() == Some('!') && follows(self) {
            variable.indirect = self.take("!");
        } else if self.peek() == Some('#') && follows(self) {
            variable.length = self.take("#");
        }
        variable.name = self.variable_name();
        while variable.name.starts_with(|first: char| first.is_ascii_digit())
            && let Some(digit) = self.peek().filter(char::is_ascii_digit)
        {
            variable.name.push(digit);
            self.at += 1;
        }
        if self.take("[") {
            variable.index = Some(self.until(']')?);
        }
        const OPERATORS: [&str; 20] = [
            ":-", ":=", ":+", ":?", "##", "%%", "//", "/#", "/%", "^^", ",,", ":", "-", "=", "+", "?", "#", "%", "/",
            "@",
        ];
        let operator = OPERATORS.iter().chain(&["^", ","]).find(|operator| self.sees(operator));
        if let Some(operator) = operator {
            self.expect(operator)?;
            variable.operator = (*operator).to_owned();
        }
        variable.operand = self.parts(Place::Braces { quoted })?;
        Ok(Part::Variable(Rc::new(variable)))
    }

    /// Whether the parenthesis so far ahead, which opens twice, also closes twice: then it is arithmetic.
    pub fn closes_twice(&self, ahead: usize) -> bool {
        const FARTHEST: usize = 4096;
        let mut open = 0;
        let text = self.text.get(self.at + ahead..).unwrap_or_default();
        for (at, character) in text.iter().enumerate().take(FARTHEST) {
            match character {
                '(' => open += 1,
                ')' => open -= 1,
                _ => {}
            }
            if open == 1 && *character == ')' {
                return text.get(at + 1) == Some(&')');
            }
        }
        false
    }

    /// Arithmetic, of which the opening has been read.
    pub fn arithmetic(&mut self) -> Read<Part> {
        let mut open = 2;
        let mut text = String::new();
        while let Some(character) = self.next() {
            match character {
                '(' => open += 1,
                ')' => open -= 1,
                _ => {}
            }
            if open == 0 {
                text.pop();
                return self.deeper(|reader| Ok(Part::Arithmetic(Self::document(&text, reader.depth)?)));
            }
            text.push(character);
        }
        Err(Unreadable::Syntax)
    }
}

/// Whether the word so far makes a parenthesis after it part of a pattern.
fn extended_pattern(word: &Word) -> bool {
    matches!(word.0.last(), Some(Part::Plain(text)) if text.ends_with(['@', '?', '*', '+']))
}

impl Word {
    fn literal(&mut self, place: Place, character: char) {
        if place.quoted() {
            return self.quoted_literal(character);
        }
        match self.0.last_mut() {
            Some(Part::Plain(text)) => text.push(character),
            _ => self.0.push(Part::Plain(character.to_string())),
        }
    }

    fn quoted_literal(&mut self, character: char) {
        match self.0.last_mut() {
            Some(Part::Quoted(text)) => text.push(character),
            _ => self.0.push(Part::Quoted(character.to_string())),
        }
    }
}
