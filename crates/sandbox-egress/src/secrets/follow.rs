//! Whoever lends a service wants to know what becomes of it: who asks, what is answered, and what that costs.

use std::sync::Arc;

use super::Spent;

/// Follows the requests to a service while they happen. Nothing here may wait.
pub trait Follower: Send + Sync {
    /// Whether the service may be asked once more; or why not, in words for whoever asks. Every yes is followed by one
    /// [`Follower::over`].
    fn ask(&self) -> Result<(), String>;

    /// It answers with this status.
    fn answered(&self, status: u16);

    /// It says something.
    fn heard(&self, bytes: usize);

    /// It has told what an answer cost.
    fn spent(&self, spent: &Spent);

    /// A request that was allowed is over, one way or another.
    fn over(&self);

    /// It could not be asked at all.
    fn unreached(&self, why: &str);
}

/// One request that somebody follows.
pub(crate) struct Followed(Arc<dyn Follower>);

impl Followed {
    /// Asks whether it may be made.
    pub(super) fn begin(follower: &Arc<dyn Follower>) -> Result<Self, String> {
        follower.ask()?;
        Ok(Self(Arc::clone(follower)))
    }

    pub(super) fn answered(&self, status: u16) {
        self.0.answered(status);
    }

    pub(super) fn heard(&self, bytes: usize) {
        self.0.heard(bytes);
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.0.over();
    }
}
