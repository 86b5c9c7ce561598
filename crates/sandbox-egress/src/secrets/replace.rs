//! Replaces texts by others in a stream, holding back no more than what might be the beginning of one.
//!
//! Where several could begin at one place the longest is taken, and the result is the same however the stream is cut.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

/// What is replaced by what.
pub(crate) struct Plan {
    automaton: AhoCorasick,
    pairs: Vec<Pair>,
    longest: usize,
}

/// A text and what stands in its place afterwards. One of the two may be the value of a secret, so neither is ever shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
}

/// One stream in which things are replaced.
pub(crate) struct Replacer {
    plan: Arc<Plan>,
    /// Might be the beginning of something that is replaced.
    held: Vec<u8>,
    count: usize,
}

impl Pair {
    pub(crate) fn new(from: impl Into<Vec<u8>>, to: impl Into<Vec<u8>>) -> Self {
        Self { from: from.into(), to: to.into() }
    }
}

impl Plan {
    /// Nothing if there is nothing to replace.
    pub(crate) fn new(mut pairs: Vec<Pair>) -> Option<Arc<Self>> {
        pairs.retain(|pair| !pair.from.is_empty());
        let longest = pairs.iter().map(|pair| pair.from.len()).max()?;
        let needles = pairs.iter().map(|pair| &pair.from);
        // The small kind: there may be one for every connection, and what is searched for is rare.
        let mut builder = AhoCorasick::builder();
        builder.kind(Some(AhoCorasickKind::ContiguousNFA)).match_kind(MatchKind::LeftmostLongest);
        let automaton = builder.build(needles).ok()?;
        Some(Arc::new(Self { automaton, pairs, longest }))
    }

    /// All of it, and how often something was replaced.
    pub(crate) fn replace(self: &Arc<Self>, text: &[u8]) -> (Vec<u8>, usize) {
        let mut replacer = Replacer::new(Arc::clone(self));
        let mut out = replacer.push(text);
        out.extend(replacer.finish());
        (out, replacer.count)
    }

    /// From where on the end of a text might become something that is replaced.
    fn undecided(&self, text: &[u8], from: usize) -> usize {
        let first = text.len().saturating_sub(self.longest - 1).max(from);
        let begins = |at: &usize| {
            let end = &text[*at..];
            self.pairs.iter().any(|pair| pair.from.len() > end.len() && pair.from.starts_with(end))
        };
        (first..text.len()).find(begins).unwrap_or(text.len())
    }
}

impl Replacer {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        Self { plan, held: Vec::new(), count: 0 }
    }

    /// How often something was replaced so far.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Takes the next piece, and gives what is certain by now.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        let text = std::mem::take(&mut self.held);
        let undecided = |from| self.plan.undecided(&text, from);
        let (out, end, count) = self.plan.certain(&text, undecided);
        self.held = text[end..].to_vec();
        self.count += count;
        out
    }

    /// What was held back, when nothing more comes.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let text = std::mem::take(&mut self.held);
        let (out, _, count) = self.plan.certain(&text, |_| text.len());
        self.count += count;
        out
    }
}

impl Plan {
    /// Replaces until something is undecided: what came out, how much of the text that was, and how often it happened.
    fn certain(&self, text: &[u8], undecided: impl Fn(usize) -> usize) -> (Vec<u8>, usize, usize) {
        let (mut out, mut at, mut count) = (Vec::with_capacity(text.len()), 0, 0);
        let mut limit = undecided(0);
        let mut matches = self.automaton.find_iter(text);
        while let Some(found) = matches.next().filter(|found| found.start() < limit) {
            out.extend_from_slice(&text[at..found.start()]);
            out.extend_from_slice(&self.pairs[found.pattern().as_usize()].to);
            at = found.end();
            count += 1;
            if at > limit {
                limit = undecided(at);
            }
        }
        out.extend_from_slice(&text[at..limit.max(at)]);
        (out, limit.max(at), count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(pairs: &[(&str, &str)]) -> Arc<Plan> {
        Plan::new(pairs.iter().map(|(from, to)| Pair::new(*from, *to)).collect()).expect("a plan")
    }

    /// What must come out, said as plainly as possible.
    fn model(pairs: &[(&str, &str)], text: &str) -> String {
        let (mut rest, mut out) = (text, String::new());
        while let Some(first) = rest.chars().next() {
            let fits = pairs.iter().filter(|(from, _)| rest.starts_with(from)).max_by_key(|(from, _)| from.len());
            match fits {
                Some((from, to)) => {
                    out.push_str(to);
                    rest = &rest[from.len()..];
                }
                None => {
                    out.push(first);
                    rest = &rest[1..];
                }
            }
        }
        out
    }

    #[test]
    fn only_what_might_be_a_beginning_is_held_back() {
        let mut replacer = Replacer::new(plan(&[("secret", "X")]));
        assert_eq!(replacer.push(b"data: s"), b"data: ");
        assert_eq!(replacer.push(b"e"), b"");
        assert_eq!(replacer.push(b"a\n\n"), b"sea\n\n");
        assert_eq!(replacer.push(b"sec"), b"");
        assert_eq!(replacer.push(b"ret!"), b"X!");
        assert_eq!(replacer.push(b"secre"), b"");
        assert_eq!((replacer.finish(), replacer.count()), (b"secre".to_vec(), 1));
    }

    proptest! {
        #[test]
        fn any_split_gives_what_replacing_the_whole_gives(text in "[abc]{0,60}", cuts in prop::collection::vec(0usize..61, 0..12)) {
            for pairs in [
                &[("abca", "1")][..],
                &[("ab", "1"), ("abc", "2"), ("cab", "3")],
                &[("aaab", "1"), ("aa", "2"), ("b", "")],
                &[("abcabc", "1"), ("bca", "2"), ("c", "ab")],
            ] {
                let plan = plan(pairs);
                let expected = model(pairs, &text);
                prop_assert_eq!(plan.replace(text.as_bytes()).0, expected.as_bytes());
                let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(text.len())).collect();
                cuts.push(text.len());
                cuts.sort_unstable();
                let (mut replacer, mut out, mut at) = (Replacer::new(plan), Vec::new(), 0);
                for cut in cuts {
                    out.extend(replacer.push(&text.as_bytes()[at..cut]));
                    prop_assert!(replacer.held.len() < 6);
                    at = cut;
                }
                out.extend(replacer.finish());
                prop_assert_eq!(out, expected.as_bytes());
            }
        }
    }
}
