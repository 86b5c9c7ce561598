//! What of a job's output goes into one answer: bounded, safe to put into JSON, and honest about what is missing.
//!
//! Bytes are kept as they came, with their offsets; text is made only at the end, because a character may arrive in
//! two pieces.

use std::collections::VecDeque;

use sandbox_core::exec::Stream;

use super::answers::LeftOut;

/// Output in one answer, unless the caller says otherwise.
pub const DEFAULT_BUDGET: usize = 32 << 10;
/// Output in one answer, whatever the caller says.
pub const MAX_BUDGET: usize = 1 << 20;
/// How much of the newest output is looked at for a line to show as progress.
const LAST_LINE: usize = 400;

/// Which part is kept when there is more than fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The beginning and the end.
    Ends,
    /// The beginning; the rest is for the next page.
    First,
}

/// Output as it was collected.
pub struct Transcript {
    keep: Keep,
    budget: usize,
    start: u64,
    end: u64,
    head: VecDeque<Chunk>,
    tail: VecDeque<Chunk>,
    newest: Vec<u8>,
}

/// Bytes of one stream that stand together.
#[derive(Clone, Debug)]
struct Chunk {
    stream: Stream,
    offset: u64,
    data: Vec<u8>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// Output as an answer carries it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// Text of standard output.
    pub stdout: String,
    /// Text of standard error.
    pub stderr: String,
    /// Where to read on.
    pub next_offset: u64,
    /// What is not in the text.
    pub left_out: Vec<LeftOut>,
    /// What happened to bytes that are no text.
    pub notes: Vec<String>,
}

impl Transcript {
    /// An empty one that begins at this offset.
    pub fn new(keep: Keep, budget: usize, start: u64) -> Self {
        let (head, tail) = (VecDeque::new(), VecDeque::new());
        Self { keep, budget, start, end: start, head, tail, newest: Vec::new() }
    }

    /// Takes the next piece.
    pub fn push(&mut self, stream: Stream, offset: u64, data: Vec<u8>) {
        self.newest.extend_from_slice(&data[data.len().saturating_sub(LAST_LINE)..]);
        let excess = self.newest.len().saturating_sub(LAST_LINE);
        self.newest.drain(..excess);
        self.end = offset + data.len() as u64;
        self.tail.push_back(Chunk { stream, offset, data });
        self.settle();
    }

    /// Notes that output up to here is no longer to be had.
    pub fn skip_to(&mut self, offset: u64) {
        self.end = self.end.max(offset);
    }

    /// Whether a page is full.
    pub fn is_full(&self) -> bool {
        self.keep == Keep::First && size(&self.head) >= self.budget
    }

    /// The newest line, for a person who waits.
    pub fn last_line(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.newest);
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.chars().filter(|c| !c.is_control()).take(200).collect())
    }

    /// Makes text of it. Characters that JSON has to spell out make it longer; then less is shown.
    pub fn render(mut self) -> Rendered {
        let most = self.budget + self.budget / 2 + 1024;
        loop {
            let rendered = self.text();
            let spelled = spelled_length(&rendered.stdout) + spelled_length(&rendered.stderr);
            if spelled <= most {
                return rendered;
            }
            self.shrink(self.budget / 2);
        }
    }

    fn shrink(&mut self, budget: usize) {
        self.budget = budget;
        let mut all = std::mem::take(&mut self.head);
        all.append(&mut self.tail);
        for chunk in all {
            self.tail.push_back(chunk);
            self.settle();
        }
    }

    /// Moves what belongs to the beginning there, and drops what does not fit.
    fn settle(&mut self) {
        let head_budget = match self.keep {
            Keep::Ends => self.budget / 2,
            Keep::First => self.budget,
        };
        let mut room = head_budget.saturating_sub(size(&self.head));
        while room > 0
            && let Some(mut chunk) = self.tail.pop_front()
        {
            if chunk.data.len() > room {
                let rest = chunk.data.split_off(room);
                self.tail.push_front(Chunk { stream: chunk.stream, offset: chunk.end(), data: rest });
            }
            room -= chunk.data.len();
            self.head.push_back(chunk);
        }
        let tail_budget = self.budget - head_budget;
        let mut excess = size(&self.tail).saturating_sub(tail_budget);
        while excess > 0
            && let Some(mut chunk) = self.tail.pop_front()
        {
            if chunk.data.len() > excess {
                let rest = chunk.data.split_off(excess);
                self.tail.push_front(Chunk { stream: chunk.stream, offset: chunk.end(), data: rest });
            }
            excess -= chunk.data.len();
        }
    }

    fn text(&self) -> Rendered {
        let mut rendered = Rendered::default();
        let (mut stdout, mut stderr) = (Decoder::default(), Decoder::default());
        let mut position = self.start;
        for chunk in self.head.iter().chain(&self.tail) {
            let decoder = if chunk.stream == Stream::Stdout { &mut stdout } else { &mut stderr };
            if chunk.offset > position {
                rendered.left_out.push(LeftOut { from_offset: position, to_offset: chunk.offset, kept: true });
                decoder.hole(chunk.offset - position);
            }
            decoder.bytes.extend_from_slice(&chunk.data);
            position = chunk.end();
        }
        rendered.next_offset = match self.keep {
            Keep::First if position > self.start => position - stdout.unfinished(&stderr, self.end > position),
            _ => self.end,
        };
        if self.keep == Keep::Ends && self.end > position {
            rendered.left_out.push(LeftOut { from_offset: position, to_offset: self.end, kept: true });
        }
        for (name, decoder, text) in
            [("stdout", stdout, &mut rendered.stdout), ("stderr", stderr, &mut rendered.stderr)]
        {
            let (decoded, quality) = decoder.finish();
            *text = decoded;
            if quality == Quality::Binary {
                rendered.notes.push(format!(
                    "{name} is not all text: bytes that are no UTF-8 are shown as \u{fffd}. For the exact bytes let \
                     the command write to a file and use get_files"
                ));
            }
        }
        rendered
    }
}

fn size(chunks: &VecDeque<Chunk>) -> usize {
    chunks.iter().map(|chunk| chunk.data.len()).sum()
}

/// Length as a JSON text.
fn spelled_length(text: &str) -> usize {
    text.bytes().map(|byte| if byte < 0x20 && !b"\n\r\t".contains(&byte) { 6 } else { 1 }).sum()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quality {
    Text,
    Binary,
}

/// Makes text of one stream's bytes.
#[derive(Default)]
struct Decoder {
    text: String,
    bytes: Vec<u8>,
    after_hole: bool,
    binary: bool,
}

impl Decoder {
    /// Something is missing here.
    fn hole(&mut self, length: u64) {
        self.flush(true);
        self.text.push_str(&format!("\n[… {length} bytes left out, see left_out …]\n"));
        self.after_hole = true;
    }

    /// Length of a character that a full page has cut in two. A page that ends with it would break it for ever.
    fn unfinished(&mut self, other: &Self, more: bool) -> u64 {
        let cut = incomplete_end(&self.bytes);
        if !more || cut == 0 || !other.bytes.is_empty() || cut == self.bytes.len() {
            return 0;
        }
        self.bytes.truncate(self.bytes.len() - cut);
        cut as u64
    }

    fn flush(&mut self, before_hole: bool) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut slice = bytes.as_slice();
        if self.after_hole {
            let continuation = slice.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
            slice = &slice[continuation..];
        }
        if before_hole {
            slice = &slice[..slice.len() - incomplete_end(slice)];
        }
        let text = String::from_utf8_lossy(slice);
        self.binary |= matches!(text, std::borrow::Cow::Owned(_)) || slice.contains(&0);
        self.text.push_str(&text);
    }

    fn finish(mut self) -> (String, Quality) {
        self.flush(false);
        (self.text, if self.binary { Quality::Binary } else { Quality::Text })
    }
}

/// Bytes at the end that are the beginning of a character.
fn incomplete_end(bytes: &[u8]) -> usize {
    match std::str::from_utf8(&bytes[bytes.len().saturating_sub(3)..]) {
        Err(error) if error.error_len().is_none() => bytes.len().min(3) - error.valid_up_to(),
        Err(_) => {
            let start = bytes.iter().rev().take(3).position(|byte| byte & 0xC0 == 0xC0).map(|back| back + 1);
            start
                .filter(|back| {
                    let lead = bytes[bytes.len() - back];
                    let whole = if lead >= 0xF0 {
                        4
                    } else if lead >= 0xE0 {
                        3
                    } else {
                        2
                    };
                    *back < whole
                })
                .unwrap_or(0)
        }
        Ok(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(keep: Keep, budget: usize, pieces: &[(Stream, &[u8])]) -> Rendered {
        let mut transcript = Transcript::new(keep, budget, 0);
        let mut offset = 0;
        for (stream, data) in pieces {
            transcript.push(*stream, offset, data.to_vec());
            offset += data.len() as u64;
        }
        transcript.render()
    }

    #[test]
    fn what_fits_is_whole_and_apart() {
        let pieces: [(Stream, &[u8]); 3] = [(Stream::Stdout, b"a"), (Stream::Stderr, b"e"), (Stream::Stdout, b"b")];
        let rendered = collect(Keep::Ends, 100, &pieces);
        let expected = Rendered { stdout: "ab".into(), stderr: "e".into(), next_offset: 3, ..Rendered::default() };
        assert_eq!(rendered, expected);
    }

    #[test]
    fn of_too_much_the_ends_are_kept_and_the_rest_is_named() {
        let all: Vec<u8> = (0..100_000u32).flat_map(|n| format!("{n}\n").into_bytes()).collect();
        let pieces: Vec<(Stream, &[u8])> = all.chunks(7001).map(|chunk| (Stream::Stdout, chunk)).collect();
        let rendered = collect(Keep::Ends, 2000, &pieces);
        assert!(rendered.stdout.starts_with("0\n1\n") && rendered.stdout.ends_with("99999\n"));
        let hole = LeftOut { from_offset: 1000, to_offset: all.len() as u64 - 1000, kept: true };
        assert_eq!((rendered.left_out, rendered.next_offset), (vec![hole], all.len() as u64));
    }

    #[test]
    fn pages_follow_each_other_without_loss_and_cut_no_character() {
        let all = "añ€😀".repeat(500).into_bytes();
        let (mut offset, mut seen) = (0, String::new());
        while offset < all.len() as u64 {
            let mut page = Transcript::new(Keep::First, 101, offset);
            page.push(Stream::Stdout, offset, all[offset as usize..].to_vec());
            assert!(page.is_full() || offset as usize + 101 >= all.len());
            let rendered = page.render();
            assert!(rendered.next_offset > offset, "a page must move on");
            seen.push_str(&rendered.stdout);
            offset = rendered.next_offset;
        }
        assert_eq!(seen.into_bytes(), all);
    }

    #[test]
    fn binary_output_stays_small_and_is_called_so() {
        let rendered = collect(Keep::Ends, DEFAULT_BUDGET, &[(Stream::Stdout, &[0; 100_000])]);
        assert!(spelled_length(&rendered.stdout) <= DEFAULT_BUDGET * 3 / 2 + 1024);
        assert!(rendered.notes[0].contains("not all text"));
        let random: Vec<u8> = (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let rendered = collect(Keep::Ends, DEFAULT_BUDGET, &[(Stream::Stderr, &random)]);
        assert!(spelled_length(&rendered.stderr) <= DEFAULT_BUDGET * 3 / 2 + 1024);
        assert_eq!(rendered.next_offset, 100_000);
    }

    #[test]
    fn the_newest_line_is_there_for_progress() {
        let mut transcript = Transcript::new(Keep::Ends, 10, 0);
        assert_eq!(transcript.last_line(), None);
        transcript.push(Stream::Stdout, 0, b"first\nsecond \x1b[1mline\n\n".to_vec());
        assert_eq!(transcript.last_line().as_deref(), Some("second [1mline"));
    }
}
