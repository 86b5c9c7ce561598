//! Server-sent events, put together out of pieces of any size.

use serde_json::Value;

use super::ModelError;

/// Longest event.
const LONGEST: usize = 16 << 20;
/// How those that speak like OpenAI end a stream.
const DONE: &[u8] = b"[DONE]";

/// What has come and is not a whole event yet.
#[derive(Default)]
pub(super) struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    after_return: bool,
}

impl Events {
    /// The events that are complete with this piece.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Value>, ModelError> {
        let mut events = Vec::new();
        for &byte in piece {
            let ends = byte == b'\r' || byte == b'\n' && !self.after_return;
            let is_rest = byte == b'\n' && self.after_return;
            self.after_return = byte == b'\r';
            match ends {
                true => events.extend(self.end_line()?),
                false if is_rest => {}
                false => self.line.push(byte),
            }
        }
        if self.line.len() + self.data.len() > LONGEST {
            return Err(ModelError::Malformed(format!("one event is longer than {LONGEST} bytes")));
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Result<Option<Value>, ModelError> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            let data = data.strip_suffix(b"\n").unwrap_or(&data);
            if data.is_empty() || data == DONE {
                return Ok(None);
            }
            let event = serde_json::from_slice(data);
            return event.map(Some).map_err(|error| ModelError::Malformed(format!("an event is no JSON: {error}")));
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            self.data.push(b'\n');
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(text: &str, size: usize) -> Vec<Value> {
        let mut events = Events::default();
        text.as_bytes().chunks(size).flat_map(|piece| events.push(piece).unwrap()).collect()
    }

    #[test]
    fn events_are_the_same_in_pieces_of_every_size() {
        let text = ": a comment\nevent: x\ndata: {\"a\":\ndata: 1}\n\nid: 7\r\ndata:{\"b\":2}\r\n\r\ndata: [DONE]\n\ndata: {\"half\":";
        for size in [1, 2, 3, 7, 1000] {
            assert_eq!(read(text, size), [json!({"a": 1}), json!({"b": 2})], "{size}");
        }
        assert_eq!(read("data: {\"c\":3}\r\r", 1), [json!({"c": 3})]);
    }

    #[test]
    fn what_is_no_json_or_endless_is_an_error() {
        assert!(Events::default().push(b"data: oops\n\n").is_err());
        let mut endless = Events::default();
        assert!((0..20).any(|_| endless.push(&vec![b'x'; 1 << 20]).is_err()));
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), size in 1usize..50) {
            let mut events = Events::default();
            for piece in bytes.chunks(size) {
                let _ = events.push(piece);
            }
        }
    }
}
