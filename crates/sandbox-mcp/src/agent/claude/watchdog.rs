//! Notices an agent that does the same again and again: it would go on until its budget is used up.

use std::collections::VecDeque;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Turns that are looked back upon.
const LOOK_BACK: usize = 12;
/// The same turn so often is worth a word,
const WARN: usize = 3;
/// and so often it is the end.
const STOP: usize = 6;

/// Remembers the last turns.
#[derive(Default)]
pub(super) struct Watchdog(VecDeque<[u8; 32]>);

impl Watchdog {
    /// Looks at one more turn: nothing, a warning for the model, or why it is stopped.
    pub fn look(&mut self, calls: &[&Value], results: &[Value]) -> Result<Option<String>, String> {
        let mut digest = Sha256::new();
        for call in calls {
            digest.update(call["name"].to_string());
            digest.update(call["input"].to_string());
        }
        for result in results {
            digest.update(result["content"].to_string());
        }
        let turn: [u8; 32] = digest.finalize().into();
        self.0.push_back(turn);
        if self.0.len() > LOOK_BACK {
            self.0.pop_front();
        }
        match self.0.iter().filter(|other| **other == turn).count() {
            often if often >= STOP => Err(format!(
                "the agent did the same {often} times, with the same result each time. What it made is kept; say the task in \
                 other words, or with more detail"
            )),
            often if often >= WARN => Ok(Some(format!(
                "You have now done exactly this {often} times, with the same result. Do something else, or finish and say \
                 what is in the way."
            ))),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_circle_is_noticed_and_progress_is_not() {
        let mut dog = Watchdog::default();
        let call = |number: u32| json!({"name": "bash", "input": {"command": format!("try {number}")}});
        let result = [json!({"content": "no"})];
        for number in 0..100 {
            assert_eq!(dog.look(&[&call(number)], &result), Ok(None));
        }
        // Two steps in turn are a circle too.
        let looked: Vec<_> = (0..12).map(|number| dog.look(&[&call(number % 2)], &result)).collect();
        assert_eq!(looked[3], Ok(None));
        assert!(looked[4].as_ref().is_ok_and(Option::is_some) && looked[11].is_err(), "{looked:?}");
    }
}
