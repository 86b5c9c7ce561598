//! The newest part of a job's output, by offset over both streams in the order of arrival.

use std::collections::VecDeque;

use sandbox_core::exec::Stream;

/// What a change of stream is charged, so that a job that changes at every byte does not take many times its share.
const RUN_COST: usize = size_of::<Run>();

/// Where output of one stream begins. It goes on to the next one's begin.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    stream: Stream,
}

/// Kept output.
#[derive(Debug)]
pub struct History {
    bytes: VecDeque<u8>,
    runs: VecDeque<Run>,
    first: u64,
    limit: usize,
}

/// A part of the kept output, of one stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Its stream.
    pub stream: Stream,
    /// Its first byte's offset: later than asked for, where that is no longer kept.
    pub offset: u64,
    /// Its bytes, in two pieces because it is kept in a ring.
    pub data: (&'a [u8], &'a [u8]),
}

impl History {
    /// An empty one that keeps about so many bytes.
    pub fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(4 * RUN_COST);
        Self { bytes: VecDeque::new(), runs: VecDeque::new(), first: 0, limit }
    }

    /// Offset of the oldest kept byte.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Offset after the newest byte.
    pub fn next(&self) -> u64 {
        self.first + self.bytes.len() as u64
    }

    /// What it takes.
    pub fn cost(&self) -> usize {
        self.bytes.len() + self.runs.len() * RUN_COST
    }

    /// Adds output, and drops the oldest where that is too much.
    pub fn push(&mut self, stream: Stream, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        // Only the end of a piece that is larger than all that is kept is copied.
        let keep = data.len().min(self.limit - RUN_COST);
        let skipped = data.len() - keep;
        if skipped > 0 {
            self.first = self.next() + skipped as u64;
            self.bytes.clear();
            self.runs.clear();
        } else {
            self.drop_oldest((self.cost() + keep + RUN_COST).saturating_sub(self.limit));
        }
        if self.runs.back().is_none_or(|run| run.stream != stream) {
            self.runs.push_back(Run { start: self.next(), stream });
        }
        self.grow(keep);
        self.bytes.extend(&data[skipped..]);
    }

    /// Drops at least so many bytes' worth of the oldest output, if there is as much.
    pub fn drop_oldest(&mut self, excess: usize) {
        let target = self.cost().saturating_sub(excess);
        while self.cost() > target && !self.bytes.is_empty() {
            let count = (self.cost() - target).min(self.bytes.len());
            self.bytes.drain(..count);
            self.first += count as u64;
            self.drop_passed_runs();
        }
    }

    /// Forgets all of it, and gives its memory back.
    pub fn clear(&mut self) {
        self.first = self.next();
        self.bytes = VecDeque::new();
        self.runs = VecDeque::new();
    }

    /// At most `longest` bytes of one stream, from this offset or the first kept one.
    pub fn read(&self, offset: u64, longest: usize) -> Option<Part<'_>> {
        let offset = offset.max(self.first);
        if offset >= self.next() {
            return None;
        }
        let after = self.runs.partition_point(|run| run.start <= offset);
        let stream = self.runs.get(after.checked_sub(1)?)?.stream;
        let end = self.runs.get(after).map_or(self.next(), |run| run.start).min(offset + longest as u64);
        let (from, to) = ((offset - self.first) as usize, (end - self.first) as usize);
        let (front, back) = self.bytes.as_slices();
        let middle = front.len();
        let data =
            (&front[from.min(middle)..to.min(middle)], &back[from.max(middle) - middle..to.max(middle) - middle]);
        Some(Part { stream, offset, data })
    }

    /// Doubles like any buffer, but not beyond the limit.
    fn grow(&mut self, more: usize) {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() {
            let capacity = needed.max((2 * self.bytes.capacity()).min(self.limit));
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
    }

    /// Runs that end before the first kept byte say nothing any more.
    fn drop_passed_runs(&mut self) {
        while self.runs.get(1).is_some_and(|run| run.start <= self.first) {
            self.runs.pop_front();
        }
        if self.bytes.is_empty() {
            self.runs.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_kept_is_the_end_of_what_was_written(
            pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)), 0..60),
            limit in 1u64..2000,
            longest in 1usize..200,
        ) {
            let mut history = History::new(limit);
            let mut model: Vec<(Stream, u8)> = Vec::new();
            for (first, data) in pieces {
                let stream = if first { Stream::Stdout } else { Stream::Stderr };
                history.push(stream, &data);
                model.extend(data.iter().map(|&byte| (stream, byte)));
                prop_assert!(history.cost() <= (limit as usize).max(4 * RUN_COST));
                prop_assert!(history.bytes.capacity() <= 2 * (limit as usize).max(4 * RUN_COST));
            }
            prop_assert_eq!(history.next(), model.len() as u64);
            let mut offset = 0;
            let mut read = Vec::new();
            while let Some(part) = history.read(offset, longest) {
                let data = [part.data.0, part.data.1].concat();
                prop_assert!(!data.is_empty() && data.len() <= longest);
                offset = part.offset + data.len() as u64;
                read.extend(data.into_iter().map(|byte| (part.stream, byte)));
            }
            prop_assert_eq!(offset.max(history.first()), history.next());
            prop_assert_eq!(&read[..], &model[model.len() - read.len()..]);
            prop_assert_eq!(read.len() as u64, history.next() - history.first());
        }
    }
}
