//! Whether a model is asked again, and when: pure.

use std::time::Duration;

use super::ModelError;

/// The first pause; each is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(8);
/// Whoever is told to wait longer gives up and says so: the task's time is limited.
const TOO_LONG: Duration = Duration::from_secs(120);

/// So often somebody who is not there is asked again.
const A_FEW: u32 = 2;

/// How long to wait before the next attempt; nothing where another one makes no sense.
pub(super) fn after(error: &ModelError, attempt: u32) -> Option<Duration> {
    let usual = FIRST.saturating_mul(1 << attempt.saturating_sub(1).min(8)).min(LONGEST);
    match error {
        ModelError::Status { again: Some(false), .. } => None,
        ModelError::Status { kind, .. } if kind == "enforced_spend_limit_reached" => None,
        ModelError::Status { status, again, after, .. } => {
            let helps = again == &Some(true) || matches!(status, 408 | 409 | 429 | 500..);
            helps.then(|| after.unwrap_or(usual)).filter(|pause| *pause <= TOO_LONG)
        }
        ModelError::Stream { kind, .. } => {
            let ours = ["invalid_request_error", "authentication_error", "permission_error", "billing_error"];
            (!ours.contains(&kind.as_str())).then_some(usual)
        }
        ModelError::Unreachable(_) | ModelError::Cut(_) | ModelError::Silent(_) | ModelError::Malformed(_) => {
            Some(usual)
        }
        // One that is just being started is worth a moment.
        ModelError::Absent(_) => (attempt <= A_FEW).then_some(usual),
        ModelError::Key(_) | ModelError::Untrusted(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, kind: &str, again: Option<bool>, after: Option<u64>) -> ModelError {
        let after = after.map(Duration::from_secs);
        ModelError::Status { status, kind: kind.to_owned(), message: String::new(), again, after }
    }

    #[test]
    fn the_rules_are_those_of_the_servers() {
        let half = Some(Duration::from_millis(500));
        for (error, expected) in [
            (status(429, "rate_limit_error", None, None), half),
            (status(429, "rate_limit_error", None, Some(7)), Some(Duration::from_secs(7))),
            (status(429, "rate_limit_error", None, Some(7200)), None),
            (status(429, "enforced_spend_limit_reached", None, Some(1)), None),
            (status(529, "overloaded_error", None, None), half),
            (status(500, "api_error", Some(false), None), None),
            (status(400, "invalid_request_error", None, None), None),
            (status(400, "", Some(true), None), half),
            (status(401, "authentication_error", None, None), None),
            (ModelError::Cut(String::new()), half),
            (ModelError::Silent(Duration::from_secs(1)), half),
            (ModelError::Key(String::new()), None),
            (ModelError::Absent(String::new()), half),
            (ModelError::Stream { kind: "overloaded_error".into(), message: String::new() }, half),
            (ModelError::Stream { kind: "invalid_request_error".into(), message: String::new() }, None),
        ] {
            assert_eq!(after(&error, 1), expected, "{error:?}");
        }
        assert_eq!(after(&ModelError::Absent(String::new()), 3), None);
        assert_eq!(after(&status(503, "", None, None), 3), Some(Duration::from_secs(2)));
        assert_eq!(after(&status(503, "", None, None), 40), Some(LONGEST));
    }
}
