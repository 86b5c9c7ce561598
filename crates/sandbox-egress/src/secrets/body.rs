//! Bodies on their way, looked at and changed piece by piece; no piece waits for the next one longer than it must.

use std::{
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Alarm, Kept, Stopped,
    find::Trace,
    put::{MOST, too_much},
    replace::{Plan, Replacer},
    spent::Meter,
};
use crate::{Reason, Target};

type BodyError = Box<dyn Error + Send + Sync>;

/// Time for a body that is held whole to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks for placeholders that may not go where they are going.
pub(crate) struct Watch {
    kept: Arc<Kept>,
    minds: Arc<[Option<Reason>]>,
    target: Target,
    alarm: Alarm,
    trace: Trace,
}

impl Watch {
    /// Nothing if there are no placeholders at all.
    pub(super) fn new(kept: &Arc<Kept>, minds: &Arc<[Option<Reason>]>, target: &Target, alarm: &Alarm) -> Option<Self> {
        Some(Self {
            trace: kept.finder.as_ref()?.begin(),
            kept: Arc::clone(kept),
            minds: Arc::clone(minds),
            target: target.clone(),
            alarm: Arc::clone(alarm),
        })
    }

    /// Looks at something that stands for itself.
    pub(super) fn look_once(&mut self, text: &[u8]) -> Result<(), Stopped> {
        if let Some(finder) = &self.kept.finder {
            self.trace = finder.begin();
        }
        self.look(text)
    }

    /// Looks at the next piece.
    fn look(&mut self, piece: &[u8]) -> Result<(), Stopped> {
        let minds = |secret: usize| Some((secret, (*self.minds.get(secret)?)?));
        let found = self.kept.finder.as_ref().and_then(|finder| finder.look(&mut self.trace, piece, minds));
        let Some((secret, reason)) = found else { return Ok(()) };
        let stopped = self.kept.stop(secret, reason, &self.target);
        Err(self.alarm.get_or_init(|| stopped).clone())
    }
}

/// A request's body.
pub(crate) struct Outgoing {
    body: Either<Incoming, Full<Bytes>>,
    watch: Option<Watch>,
    replacer: Option<Replacer>,
    /// Held as long as the body is.
    place: Option<OwnedSemaphorePermit>,
}

/// A body that has arrived, and the place that it takes.
pub(super) type Gathered = (Bytes, Option<OwnedSemaphorePermit>);

impl Outgoing {
    /// As it is.
    pub(crate) fn untouched(body: Incoming) -> Self {
        Self::new(body, None, None)
    }

    pub(super) fn new(body: Incoming, watch: Option<Watch>, plan: Option<Arc<Plan>>) -> Self {
        Self { body: Either::Left(body), watch, replacer: plan.map(Replacer::new), place: None }
    }

    pub(super) fn whole(body: Bytes, place: Option<OwnedSemaphorePermit>) -> Self {
        Self { body: Either::Right(Full::new(body)), watch: None, replacer: None, place }
    }

    /// All of it, if it is not longer than this, when there are so many places for it.
    pub(super) async fn gather(mut self, places: &Arc<Semaphore>, many: u32, most: u64) -> Result<Gathered, Stopped> {
        let place = self.place.take();
        let arriving = async {
            let place = match place {
                Some(place) => Some(place),
                None => Arc::clone(places).acquire_many_owned(many).await.ok(),
            };
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            Limited::new(self, most).collect().await.map(|body| (body.to_bytes(), place))
        };
        match tokio::time::timeout(PATIENCE, arriving).await {
            Ok(Ok(gathered)) => Ok(gathered),
            Ok(Err(error)) => {
                let stopped = error.downcast::<Stopped>();
                Err(stopped.map_or_else(|_| Stopped::new(Reason::NotARequest), |stopped| *stopped))
            }
            Err(_) => Err(Stopped::new(Reason::NotARequest)),
        }
    }

    /// What becomes of a piece; nothing if all of it is held back.
    fn pass(&mut self, piece: Bytes) -> Result<Option<Bytes>, Stopped> {
        if let Some(watch) = &mut self.watch {
            watch.look(&piece)?;
        }
        let Some(replacer) = &mut self.replacer else { return Ok(Some(piece)) };
        let out = replacer.push(&piece);
        if replacer.count() > MOST { Err(too_much()) } else { Ok((!out.is_empty()).then(|| out.into())) }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let next = ready!(Pin::new(&mut self.body).poll_frame(context)).transpose()?;
            match next.map(Frame::into_data) {
                Some(Ok(piece)) => {
                    if let Some(piece) = self.pass(piece)? {
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                }
                Some(Err(trailers)) if self.watch.is_none() && self.replacer.is_none() => {
                    return Poll::Ready(Some(Ok(trailers)));
                }
                // Headers once more, which would have to be looked through.
                Some(Err(_)) => {}
                None => return Poll::Ready(rest(&mut self.replacer)),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.replacer.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.replacer.is_none() { self.body.size_hint() } else { SizeHint::default() }
    }
}

/// An answer's body.
pub(crate) struct Answer {
    body: Incoming,
    replacer: Option<Replacer>,
    meter: Option<Meter>,
}

impl Answer {
    /// As it is.
    pub(crate) fn untouched(body: Incoming) -> Self {
        Self::new(body, None, None)
    }

    pub(super) fn new(body: Incoming, plan: Option<Arc<Plan>>, meter: Option<Meter>) -> Self {
        Self { body, replacer: plan.map(Replacer::new), meter }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let next = ready!(Pin::new(&mut self.body).poll_frame(context)).transpose()?;
            let piece = match next.map(Frame::into_data) {
                Some(Ok(piece)) => piece,
                // Headers once more: not where they would have to be looked through.
                Some(Err(trailers)) if self.replacer.is_none() => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(_)) => continue,
                None => {
                    // It says what was spent when it goes.
                    self.meter = None;
                    return Poll::Ready(rest(&mut self.replacer));
                }
            };
            if let Some(meter) = &mut self.meter {
                meter.read(&piece);
            }
            match &mut self.replacer {
                None => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                Some(replacer) => {
                    let out = replacer.push(&piece);
                    if !out.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(out.into()))));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.replacer.is_none() && self.meter.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.replacer.is_none() { self.body.size_hint() } else { SizeHint::default() }
    }
}

/// What was held back to the end.
fn rest(replacer: &mut Option<Replacer>) -> Option<Result<Frame<Bytes>, BodyError>> {
    let rest = replacer.take()?.finish();
    (!rest.is_empty()).then(|| Ok(Frame::data(rest.into())))
}
