//! Where input comes from and output goes: redirections and here-documents.

use std::{cell::OnceCell, rc::Rc};

use super::{Part, Read, Reader, Redirect, Unreadable, Word};

/// A here-document whose lines have not come yet.
pub struct Document {
    end: String,
    /// `<<-`: tabs at the start of lines do not count.
    indented: bool,
    /// Nothing is substituted in it.
    literal: bool,
    body: Rc<OnceCell<Word>>,
}

impl Reader {
    /// The redirection that starts here, if one does.
    pub fn redirect(&mut self) -> Read<Option<Redirect>> {
        let start = self.at;
        let digits =
            self.text.get(start..).unwrap_or_default().iter().take_while(|digit| digit.is_ascii_digit()).count();
        let output = match digits {
            0 => true,
            _ => digits == 1 && self.peek() == Some('1'),
        };
        self.at += digits;
        if digits == 0 && self.sees("{") {
            let name = self
                .text
                .iter()
                .skip(start + 1)
                .take(64)
                .take_while(|next| next.is_ascii_alphanumeric() || **next == '_');
            let length = name.count();
            if self.peek_at(length + 1) == Some('}') && matches!(self.peek_at(length + 2), Some('<' | '>')) {
                self.at += length + 2;
            }
        }
        let both = digits == 0 && self.peek() == Some('&') && self.peek_at(1) == Some('>');
        if both {
            self.at += 1;
        }
        if !matches!(self.peek(), Some('<' | '>')) || self.peek_at(1) == Some('(') && digits == 0 {
            self.at = start;
            return Ok(None);
        }
        if self.take("<<<") {
            return Ok(Some(Redirect::Text(self.target()?)));
        }
        if self.take("<<") {
            return self.here_document().map(Some);
        }
        if self.take("<&") || self.take(">&") {
            let target = self.target()?;
            let file = target
                .bare()
                .is_none_or(|text| !text.trim_end_matches('-').chars().all(|digit| digit.is_ascii_digit()));
            return Ok(Some(if file {
                Redirect::To { file: target, output, append: false }
            } else {
                Redirect::Copy(target)
            }));
        }
        let append = self.sees(">>");
        if self.take("<>") || self.take(">>") || self.take(">|") || self.take(">") {
            return Ok(Some(Redirect::To { file: self.target()?, output, append }));
        }
        self.expect("<")?;
        Ok(Some(Redirect::From(self.target()?)))
    }

    /// The word after a redirection.
    fn target(&mut self) -> Read<Word> {
        self.blanks();
        let word = self.word()?;
        if word.0.is_empty() { Err(Unreadable::Syntax) } else { Ok(word) }
    }

    fn here_document(&mut self) -> Read<Redirect> {
        let indented = self.take("-");
        let word = self.target()?;
        let mut end = String::new();
        let mut literal = false;
        for part in &word.0 {
            match part {
                Part::Plain(text) => end.push_str(text),
                Part::Quoted(text) => {
                    literal = true;
                    end.push_str(text);
                }
                _ => return Err(Unreadable::Syntax),
            }
        }
        let body = Rc::new(OnceCell::new());
        self.documents.push(Document { end, indented, literal, body: Rc::clone(&body) });
        Ok(Redirect::Document(body))
    }

    /// Reads the lines of a here-document.
    pub fn read_document(&mut self, document: &Document) -> Read<()> {
        let mut body = String::new();
        while self.peek().is_some() {
            let mut line = String::new();
            while let Some(character) = self.next() {
                line.push(character);
                if character == '\n' {
                    break;
                }
            }
            let text = if document.indented { line.trim_start_matches('\t') } else { &line };
            if text.trim_end_matches('\n') == document.end {
                break;
            }
            body.push_str(text);
        }
        let word = match document.literal {
            true => Word(vec![Part::Quoted(body)]),
            false => self.deeper(|reader| Self::document(&body, reader.depth))?,
        };
        // Each is read once.
        let _ = document.body.set(word);
        Ok(())
    }
}
