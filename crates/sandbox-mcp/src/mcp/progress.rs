//! Keeps a waiting client informed, if it asked for that.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::RequestContext,
};
use sandbox_core::{Bytes, Fetching};
use tokio::{task::JoinHandle, time::Instant};

use super::schema;
use crate::sandboxes::Tell;

/// The first word comes this soon,
const FIRST: Duration = Duration::from_millis(1000);
/// and another one this often. Some clients give up after a minute of silence; every word gives them another.
const EVERY: Duration = Duration::from_secs(5);

/// Does something for which an image may have to be fetched, and keeps whoever waits informed of that.
pub async fn while_fetching<T, F: Future<Output = T>>(
    context: &RequestContext<RoleServer>,
    work: impl FnOnce(Tell) -> F,
) -> T {
    let mut progress = Progress::of(context);
    let latest: Arc<Mutex<Option<Fetching>>> = Arc::default();
    let noted = latest.clone();
    let tell: Tell = Arc::new(move |fetching| *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(fetching));
    let mut work = std::pin::pin!(work(tell));
    let done = loop {
        tokio::select! {
            done = &mut work => break done,
            () = progress.due() => {
                let latest = latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
                progress.tell(latest.map_or_else(|| "making the sandbox".to_owned(), |fetching| in_words(&fetching)));
            }
        }
    };
    progress.finish().await;
    done
}

fn in_words(Fetching { step, done, total }: &Fetching) -> String {
    let step = schema::shortened(step);
    match total {
        Some(total) => format!("{step}: {} of {}", Bytes(*done), Bytes(*total)),
        None if *done > 0 => format!("{step}: {}", Bytes(*done)),
        None => step,
    }
}

/// Progress of one call.
pub struct Progress {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    started: Instant,
    next: Instant,
    sending: Option<JoinHandle<()>>,
}

impl Progress {
    /// For this call.
    pub fn of(context: &RequestContext<RoleServer>) -> Self {
        let started = Instant::now();
        let token = context.meta.get_progress_token();
        Self { peer: context.peer.clone(), token, started, next: started + FIRST, sending: None }
    }

    /// Whether anybody listens.
    pub fn is_wanted(&self) -> bool {
        self.token.is_some()
    }

    /// Returns when it is time for the next word; never, if nobody listens.
    pub async fn due(&self) {
        match self.token {
            Some(_) => tokio::time::sleep_until(self.next).await,
            None => std::future::pending().await,
        }
    }

    /// Says how it stands. A client that does not read does not hold us up: the word is left out then.
    pub fn tell(&mut self, message: String) {
        let Some(token) = self.token.clone() else { return };
        self.next = Instant::now() + EVERY;
        if self.sending.as_ref().is_some_and(|sending| !sending.is_finished()) {
            return;
        }
        let seconds = self.started.elapsed().as_secs_f64();
        let word = ProgressNotificationParam::new(token, (seconds * 10.0).round() / 10.0).with_message(message);
        let peer = self.peer.clone();
        self.sending = Some(tokio::spawn(async move {
            if let Err(error) = peer.notify_progress(word).await {
                tracing::debug!(%error, "progress was not sent");
            }
        }));
    }

    /// Since the call came.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Makes sure that no word comes after the answer.
    pub async fn finish(mut self) {
        if let Some(sending) = self.sending.take()
            && tokio::time::timeout(Duration::from_millis(500), sending).await.is_err()
        {
            tracing::debug!("the client does not read its progress");
        }
    }
}
