//! request_access: asking a person in advance for more than the policy gives.

use std::sync::Arc;

use super::{
    answers::{Access, Answer, Denial, Outcome},
    arguments::{For, RequestAccess, Wanted},
    error::ToolError,
};
use crate::sandboxes::{
    Session,
    access::{AccessKind, AccessRequest, MOST_MINUTES, Person, Refused, Span, shown},
};

/// A grant for a time lasts so long if nobody says how long.
const MINUTES: u32 = 10;
/// Longest target and reason that are looked at.
const LONGEST: usize = 8 << 10;

/// Asks, and answers with what came of it.
pub async fn request_access(
    session: Arc<Session>,
    asked: RequestAccess,
    person: &dyn Person,
) -> Result<Answer, ToolError> {
    if asked.target.trim().is_empty() || asked.target.len().max(asked.reason.len()) > LONGEST {
        let what = format!("target and reason must be told, in at most {LONGEST} bytes each");
        return Err(ToolError::Invalid(what));
    }
    let request = AccessRequest {
        kind: kind(asked.kind),
        target: asked.target,
        reason: Some(asked.reason).filter(|reason| !reason.trim().is_empty()),
        span: span(asked.span, asked.minutes)?,
    };
    let shown_target = shown(&request.target, (240, 60));
    let mut answer = Access {
        session_id: session.id().to_string(),
        granted: true,
        target: shown_target,
        granted_for: None,
        message: String::new(),
        denials: Vec::new(),
    };
    match session.request(request, person).await {
        Ok(given) => {
            answer.granted_for = given.span.map(|span| span.to_string());
            answer.message = given.message;
            Ok(Answer::of(&answer))
        }
        Err(refused @ Refused::Denied(_)) => {
            answer.granted = false;
            answer.message = refused.to_string();
            if let Refused::Denied(denials) = &refused {
                answer.denials = denials.iter().map(Denial::from).collect();
            }
            Ok(Answer::of(&answer).with_outcome(Outcome::Partial))
        }
        Err(other) => Err(other.into()),
    }
}

fn kind(wanted: Wanted) -> AccessKind {
    match wanted {
        Wanted::Command => AccessKind::Command,
        Wanted::Limit => AccessKind::Limit,
        Wanted::Network => AccessKind::Network,
        Wanted::Filesystem => AccessKind::Filesystem,
        Wanted::Privilege => AccessKind::Privilege,
        Wanted::Secret => AccessKind::Secret,
    }
}

fn span(asked: Option<For>, minutes: Option<u32>) -> Result<Span, ToolError> {
    match (asked, minutes) {
        (_, Some(minutes)) if !(1..=MOST_MINUTES).contains(&minutes) => {
            Err(ToolError::Invalid(format!("minutes must be from 1 to {MOST_MINUTES}")))
        }
        (Some(For::Minutes), minutes) => Ok(Span::Minutes(minutes.unwrap_or(MINUTES))),
        (None, Some(minutes)) => Ok(Span::Minutes(minutes)),
        (Some(For::Sandbox), _) => Ok(Span::Sandbox),
        (Some(For::Once) | None, _) => Ok(Span::Once),
    }
}
