//! Finds placeholders in what leaves, byte by byte, so that it does not matter how a stream is cut into pieces.
//!
//! What is looked for is a placeholder's random part (its mark): it is lower-case hexadecimal, so it survives host names,
//! which know neither underscores nor upper case. A mark is found as it is, percent-encoded, and in base64, where it looks
//! different at each of three offsets but the same in both alphabets: none of its digits leads to the two characters in
//! which they differ. Whoever encodes otherwise is not noticed, and has carried out something that is worth nothing.

use aho_corasick::{
    Anchored,
    automaton::{Automaton, StateID},
    dfa::DFA,
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};

/// Looks for the marks of all secrets of a sandbox at once.
pub(crate) struct Finder {
    automaton: DFA,
    start: StateID,
    /// Which secret a form of a mark belongs to.
    secrets: Vec<usize>,
}

/// Why they cannot be looked for.
#[derive(Debug, thiserror::Error)]
pub enum FinderError {
    /// They are too many.
    #[error("placeholders cannot be looked for: {0}")]
    Build(#[from] aho_corasick::BuildError),
    /// That cannot be.
    #[error("placeholders cannot be looked for: {0}")]
    Start(#[from] aho_corasick::MatchError),
}

/// How far one stream was looked at.
#[derive(Clone, Copy)]
pub(crate) struct Trace {
    plain: StateID,
    decoded: StateID,
    escape: Escape,
}

/// Where in a percent-encoded byte a stream is.
#[derive(Clone, Copy)]
enum Escape {
    Outside,
    Percent,
    Digit(u8),
}

impl Finder {
    /// For these marks, each with the number of its secret; nothing if there are none.
    pub(crate) fn new(marks: &[(usize, String)]) -> Result<Option<Self>, FinderError> {
        let forms = marks.iter().flat_map(|(secret, mark)| forms(mark).into_iter().map(|form| (*secret, form)));
        let (secrets, forms): (Vec<usize>, Vec<String>) = forms.unzip();
        if secrets.is_empty() {
            return Ok(None);
        }
        // Host names lose their case, base64 with them; what is random is not met by chance in any case.
        let automaton = DFA::builder().ascii_case_insensitive(true).build(&forms)?;
        let start = automaton.start_state(Anchored::No)?;
        Ok(Some(Self { automaton, start, secrets }))
    }

    /// A stream that nothing was seen of.
    pub(crate) fn begin(&self) -> Trace {
        Trace { plain: self.start, decoded: self.start, escape: Escape::Outside }
    }

    /// Looks at the next piece of a stream: the first secret in it that `minds` says something about, and what.
    pub(crate) fn look<T>(&self, trace: &mut Trace, piece: &[u8], minds: impl Fn(usize) -> Option<T>) -> Option<T> {
        let mut rest = piece;
        while let [next, after @ ..] = rest {
            let found = if trace.is_plain() && *next != b'%' {
                rest = self.skip(trace, rest);
                self.matched(trace.plain, &minds)
            } else {
                rest = after;
                self.step(trace, *next, &minds)
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Goes on as long as nothing is encoded and nothing is found; what is left then.
    fn skip<'a>(&self, trace: &mut Trace, piece: &'a [u8]) -> &'a [u8] {
        let mut state = trace.plain;
        let mut length = 0;
        for &byte in piece.iter().take_while(|byte| **byte != b'%') {
            state = self.automaton.next_state(Anchored::No, state, byte);
            length += 1;
            if self.automaton.is_special(state) && self.automaton.is_match(state) {
                break;
            }
        }
        (trace.plain, trace.decoded) = (state, state);
        &piece[length..]
    }

    fn step<T>(&self, trace: &mut Trace, byte: u8, minds: impl Fn(usize) -> Option<T>) -> Option<T> {
        trace.plain = self.automaton.next_state(Anchored::No, trace.plain, byte);
        let mut found = self.matched(trace.plain, &minds);
        let (bytes, escape) = trace.escape.next(byte);
        trace.escape = escape;
        for byte in bytes.into_iter().flatten() {
            trace.decoded = self.automaton.next_state(Anchored::No, trace.decoded, byte);
            found = found.or_else(|| self.matched(trace.decoded, &minds));
        }
        found
    }

    /// As [`Finder::look`], for what is there whole.
    pub(crate) fn look_once<T>(&self, text: &[u8], minds: impl Fn(usize) -> Option<T>) -> Option<T> {
        self.look(&mut self.begin(), text, minds)
    }

    fn matched<T>(&self, state: StateID, minds: impl Fn(usize) -> Option<T>) -> Option<T> {
        if !self.automaton.is_match(state) {
            return None;
        }
        let forms = (0..self.automaton.match_len(state)).map(|number| self.automaton.match_pattern(state, number));
        forms.into_iter().find_map(|form| minds(*self.secrets.get(form.as_usize())?))
    }
}

impl Trace {
    /// Whether nothing that was encoded matters any more, as is nearly always so.
    fn is_plain(&self) -> bool {
        self.plain == self.decoded && matches!(self.escape, Escape::Outside)
    }
}

impl Escape {
    /// The bytes that are known now, and where the stream is then.
    fn next(self, byte: u8) -> ([Option<u8>; 3], Self) {
        let digit = char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        match (self, byte, digit) {
            (Self::Outside, b'%', _) => ([None; 3], Self::Percent),
            (Self::Outside, _, _) => ([Some(byte), None, None], Self::Outside),
            (Self::Percent, b'%', _) => ([Some(b'%'), None, None], Self::Percent),
            (Self::Percent, _, Some(_)) => ([None; 3], Self::Digit(byte)),
            (Self::Percent, _, None) => ([Some(b'%'), Some(byte), None], Self::Outside),
            (Self::Digit(first), b'%', _) => ([Some(b'%'), Some(first), None], Self::Percent),
            (Self::Digit(first), _, Some(low)) => {
                let high = char::from(first).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or(0);
                ([Some(high << 4 | low), None, None], Self::Outside)
            }
            (Self::Digit(first), _, None) => ([Some(b'%'), Some(first), Some(byte)], Self::Outside),
        }
    }
}

/// Everything that a mark looks like.
fn forms(mark: &str) -> [String; 4] {
    let encoded = |offset: usize| {
        let text = STANDARD_NO_PAD.encode([&vec![0; offset][..], mark.as_bytes()].concat());
        // Characters at the borders also depend on what stands around.
        let (first, last) = ((offset * 8).div_ceil(6), (offset + mark.len()) * 8 / 6);
        text[first..last].to_owned()
    };
    [mark.to_owned(), encoded(0), encoded(1), encoded(2)]
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use proptest::prelude::*;

    use super::*;

    const MARK: &str = "0123456789abcdef0f1e2d3c4b5a6978";

    static FINDER: LazyLock<Finder> = LazyLock::new(|| finder(&[(7, MARK.to_owned())]));

    fn finder(marks: &[(usize, String)]) -> Finder {
        Finder::new(marks).expect("a finder").expect("marks")
    }

    fn finds(text: &[u8]) -> bool {
        FINDER.look_once(text, Some).inspect(|&secret| assert_eq!(secret, 7)).is_some()
    }

    #[test]
    fn a_mark_is_found_in_every_form() {
        assert!(finds(MARK.as_bytes()) && finds(MARK.to_uppercase().as_bytes()));
        let percent: String = MARK.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let mixed = MARK.replace('0', "%30").replace('f', "%66");
        // A percent sign before it takes its first digits for itself.
        let after = format!("%{MARK}");
        for text in [&percent, &mixed, &percent.to_uppercase(), &after, &format!("%%3{mixed}"), &format!("%3{mixed}")] {
            assert!(finds(text.as_bytes()), "{text}");
        }
        assert!(!finds(&MARK.as_bytes()[1..]) && !finds(b"") && !finds(&MARK.as_bytes()[..31]));
    }

    #[test]
    fn one_mark_may_be_minded_and_another_not() {
        let other = MARK.replace('0', "9");
        let finder = finder(&[(0, MARK.to_owned()), (1, other.clone())]);
        let minds = |secret: usize| (secret == 1).then_some(secret);
        assert_eq!(finder.look_once(MARK.as_bytes(), minds), None);
        assert_eq!(finder.look_once(format!("{MARK} {other}").as_bytes(), minds), Some(1));
        assert!(Finder::new(&[]).is_ok_and(|finder| finder.is_none()));
    }

    proptest! {
        #[test]
        fn a_mark_is_found_in_base64_whatever_stands_around(
            before in prop::collection::vec(any::<u8>(), 0..9),
            after in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let text = [&before[..], MARK.as_bytes(), &after].concat();
            prop_assert!(finds(STANDARD.encode(&text).as_bytes()));
            prop_assert!(finds(URL_SAFE.encode(&text).as_bytes()));
            prop_assert!(finds(STANDARD.encode(&text).to_lowercase().as_bytes()));
            prop_assert!(finds(&text));
        }

        #[test]
        fn it_does_not_matter_how_a_stream_is_cut(
            before in "[0-9a-f%]{0,20}", escaped in prop::collection::vec(any::<bool>(), 32), cuts in prop::collection::vec(0usize..130, 0..9),
        ) {
            let mark: String = MARK.chars().zip(escaped).map(|(digit, escaped)| {
                if escaped { format!("%{:02X}", u32::from(digit)) } else { digit.to_string() }
            }).collect();
            let text = format!("{before}{mark}");
            let whole = finds(text.as_bytes());
            let (mut trace, mut found, mut at) = (FINDER.begin(), None, 0);
            let mut cuts = cuts;
            cuts.push(text.len());
            cuts.sort_unstable();
            for cut in cuts.into_iter().map(|cut| cut.min(text.len())) {
                found = found.or(FINDER.look(&mut trace, &text.as_bytes()[at..cut], Some));
                at = cut;
            }
            prop_assert_eq!(found.is_some(), whole);
        }

        #[test]
        fn what_is_random_is_not_found(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(!finds(&bytes));
        }
    }
}
