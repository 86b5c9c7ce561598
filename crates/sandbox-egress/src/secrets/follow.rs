//! Whoever lends a service wants to know what becomes of it: who asks what, what is answered, and what that costs.

use std::{future::Future, pin::Pin, sync::Arc};

use super::Spent;

/// A request before it goes out, all of it.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Question<'a> {
    pub method: &'a str,
    /// At the service, without its query.
    pub path: &'a str,
    pub body: &'a [u8],
}

/// A request that may go out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leave {
    /// By which it is known from now on.
    pub number: u64,
    /// What is sent in place of what was asked, if that is something else.
    pub body: Option<Vec<u8>>,
}

/// Why a request does not go out, in words for whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLeave {
    /// It may cost too much.
    TooDear(String),
    /// Such a thing is not asked.
    Unfit(String),
}

/// Whether a request may go out, when that is known.
pub type Leaving<'a> = Pin<Box<dyn Future<Output = Result<Leave, NoLeave>> + Send + 'a>>;

/// Follows the requests to a service while they happen. Nothing but [`Follower::ask`] may wait.
pub trait Follower: Send + Sync {
    /// Whether the service may be asked this; or why not. It may wait until others have been
    /// answered. Every yes is followed by one [`Follower::over`].
    fn ask<'a>(&'a self, question: Question<'a>) -> Leaving<'a>;

    /// It answers with this status.
    fn answered(&self, number: u64, status: u16);

    /// It says something.
    fn heard(&self, number: u64, bytes: usize);

    /// What an answer has cost, as far as it told that: [`Spent::basis`].
    fn spent(&self, number: u64, spent: &Spent);

    /// It did not answer at all.
    fn failed(&self, number: u64, why: &str);

    /// A request that was allowed is over, one way or another.
    fn over(&self, number: u64);

    /// It could not be asked at all.
    fn unreached(&self, why: &str);
}

/// One request that somebody follows.
pub(crate) struct Followed {
    follower: Arc<dyn Follower>,
    number: u64,
}

impl Followed {
    /// Asks whether it may be made, and what is sent in its place.
    pub(super) async fn begin(
        follower: &Arc<dyn Follower>,
        question: Question<'_>,
    ) -> Result<(Self, Option<Vec<u8>>), NoLeave> {
        let Leave { number, body } = follower.ask(question).await?;
        Ok((Self { follower: Arc::clone(follower), number }, body))
    }

    pub(super) fn answered(&self, status: u16) {
        self.follower.answered(self.number, status);
    }

    pub(super) fn heard(&self, bytes: usize) {
        self.follower.heard(self.number, bytes);
    }

    pub(super) fn spent(&self, spent: &Spent) {
        self.follower.spent(self.number, spent);
    }

    pub(super) fn failed(&self, why: &str) {
        self.follower.failed(self.number, why);
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.follower.over(self.number);
    }
}
