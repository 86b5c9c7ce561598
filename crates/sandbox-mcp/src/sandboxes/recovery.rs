//! What was found at start, in words.

use std::{collections::BTreeMap, fmt};

use sandbox_core::SessionId;
use serde::Serialize;

/// What an earlier server left, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoveryReport {
    /// Still running, looked after again.
    pub adopted: Vec<SessionId>,
    /// Ended; their files are kept until idle clean-up.
    pub ended: Vec<SessionId>,
    /// What was removed, by kind.
    pub removed: BTreeMap<String, usize>,
    /// Why nothing could be found out.
    pub failed: Option<String>,
}

impl RecoveryReport {
    /// Nothing was left.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.adopted.is_empty() {
            parts.push(format!(
                "{} still running, looked after again ({})",
                count(&self.adopted),
                names(&self.adopted)
            ));
        }
        if !self.ended.is_empty() {
            parts.push(format!(
                "{} ended, with files kept until idle clean-up ({})",
                count(&self.ended),
                names(&self.ended)
            ));
        }
        if !self.removed.is_empty() {
            let kinds: Vec<String> = self.removed.iter().map(|(kind, n)| format!("{n} × {kind}")).collect();
            parts.push(format!("leftovers removed: {}", kinds.join(", ")));
        }
        if let Some(why) = &self.failed {
            parts.push(format!("looking for leftovers failed: {why}"));
        }
        match parts.is_empty() {
            true => f.write_str("an earlier server left nothing"),
            false => write!(f, "after an earlier server: {}", parts.join("; ")),
        }
    }
}

fn count(ids: &[SessionId]) -> String {
    format!("{} sandbox{}", ids.len(), if ids.len() == 1 { "" } else { "es" })
}

fn names(ids: &[SessionId]) -> String {
    let shown: Vec<&str> = ids.iter().take(5).map(SessionId::as_str).collect();
    let rest = ids.len().saturating_sub(shown.len());
    if rest == 0 { shown.join(", ") } else { format!("{} and {rest} more", shown.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_was_found() {
        assert_eq!(RecoveryReport::default().to_string(), "an earlier server left nothing");
        let removed = BTreeMap::from([("cgroup".to_owned(), 2)]);
        let report = RecoveryReport { removed, ..RecoveryReport::default() };
        assert_eq!(report.to_string(), "after an earlier server: leftovers removed: 2 × cgroup");
    }
}
