//! Finds the id of a request that is too long to be parsed: one pass over its bytes, nothing kept but the id.

use rmcp::model::RequestId;

/// No sensible id is longer.
const MAX_ID: usize = 256;

/// Looks for the member `id` of the outermost object.
#[derive(Default)]
pub struct IdScanner {
    depth: u32,
    place: Place,
    token: Vec<u8>,
    id: Option<Vec<u8>>,
}

/// Where in the text the scanner stands.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    /// Before a member's name, or anywhere that does not matter.
    #[default]
    Outside,
    /// In a string.
    Text(Role),
    /// After a backslash in a string.
    Escape(Role),
    /// After `"id"`, before the colon.
    AfterId,
    /// Before or in the id's value.
    Value,
}

/// What a string is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It stands directly in the outermost object, so it may be the name `id`.
    Name,
    /// The value of the id.
    Id,
    /// Something else.
    Other,
}

impl IdScanner {
    /// Takes the next bytes of the line.
    pub fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.place = self.step(byte);
        }
    }

    /// The id, if the line had one.
    pub fn into_id(self) -> Option<RequestId> {
        serde_json::from_slice(&self.id?).ok()
    }

    fn step(&mut self, byte: u8) -> Place {
        match self.place {
            Place::Escape(role) => self.keep(byte, role),
            Place::Text(role) if byte == b'\\' => {
                self.keep(byte, role);
                Place::Escape(role)
            }
            Place::Text(role) if byte == b'"' => self.end_of_text(role),
            Place::Text(role) => self.keep(byte, role),
            Place::AfterId if byte == b':' => {
                self.token.clear();
                Place::Value
            }
            Place::AfterId if byte.is_ascii_whitespace() => Place::AfterId,
            Place::Value if byte == b'"' && self.token.is_empty() => {
                self.token.push(byte);
                Place::Text(Role::Id)
            }
            Place::Value if byte.is_ascii_digit() || byte == b'-' => {
                self.keep(byte, Role::Id);
                Place::Value
            }
            Place::Value if byte.is_ascii_whitespace() && self.token.is_empty() => Place::Value,
            Place::Value => {
                self.found();
                self.structure(byte)
            }
            Place::AfterId | Place::Outside => self.structure(byte),
        }
    }

    fn structure(&mut self, byte: u8) -> Place {
        match byte {
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b'"' => {
                self.token.clear();
                return Place::Text(if self.depth == 1 { Role::Name } else { Role::Other });
            }
            _ => {}
        }
        Place::Outside
    }

    fn end_of_text(&mut self, role: Role) -> Place {
        match role {
            Role::Name if self.token == b"id" => Place::AfterId,
            Role::Id => {
                self.token.push(b'"');
                self.found();
                Place::Outside
            }
            _ => Place::Outside,
        }
    }

    fn keep(&mut self, byte: u8, role: Role) -> Place {
        if role != Role::Other && self.token.len() < MAX_ID {
            self.token.push(byte);
        }
        Place::Text(role)
    }

    fn found(&mut self) {
        if self.id.is_none() && !self.token.is_empty() {
            self.id = Some(std::mem::take(&mut self.token));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Option<String> {
        let mut scanner = IdScanner::default();
        for piece in text.as_bytes().chunks(3) {
            scanner.feed(piece);
        }
        scanner.into_id().map(|id| id.to_string())
    }

    #[test]
    fn the_outermost_id_is_found() {
        assert_eq!(id(r#"{"id":42,"params":{"id":1}}"#).as_deref(), Some("42"));
        assert_eq!(id(r#"{"params":{"id":1,"x":["id",{"id":2}]},"id" : "a\"b" }"#).as_deref(), Some("a\"b"));
        assert_eq!(id(r#"{"method":"id","id":7}"#).as_deref(), Some("7"));
    }

    #[test]
    fn without_one_nothing_is_made_up() {
        for text in ["", "rubbish", r#"{"params":{"id":1}}"#, r#"{"x":"\"id\":5"}"#, r#"{"id":null}"#] {
            assert_eq!(id(text), None, "{text}");
        }
    }
}
