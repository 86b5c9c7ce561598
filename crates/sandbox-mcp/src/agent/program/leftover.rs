//! Programs whose task is over while they still run: the server that followed them was killed. Nobody reads what they say,
//! and their model is no longer lent to them; they are ended before somebody goes on where they stood.

use sandbox_core::UserId;
use sandbox_executor::protocol::Target;
use serde_json::Value;

use super::{kind::INSIDE, placing::COPIES};
use crate::sandboxes::{Sandboxes, Session, patience};

/// SIGKILL: there is nobody to whom it could still say something.
const KILL: i32 = 9;

/// Ends what the task of this receipt left running, if its sandbox is still there.
pub async fn end_after(receipt: &Value, sandboxes: &Sandboxes) {
    let owner = receipt["user_id"].as_str().unwrap_or_default().parse::<UserId>();
    let session = receipt["session_id"].as_str().unwrap_or_default().parse();
    if let (Ok(owner), Ok(session)) = (owner, session)
        && let Ok(session) = sandboxes.find(&owner, &session).await
    {
        end_in(&session).await;
    }
}

/// Ends those that run in this sandbox. A sandbox has one task at a time, so they belong to nobody.
pub(super) async fn end_in(session: &Session) {
    let Ok(client) = session.client().await else { return };
    let Ok(jobs) = patience::soon(client.jobs()).await else { return };
    let is_program = |command: &str| [INSIDE, COPIES].iter().any(|folder| command.starts_with(folder));
    for job in jobs.iter().filter(|job| job.exit.is_none() && is_program(&job.command)) {
        if let Err(error) = patience::soon(client.signal(Target::Job(job.id), KILL)).await {
            tracing::warn!("{} of {} goes on though its task is over: {error}", job.id, session.id());
        }
    }
}
