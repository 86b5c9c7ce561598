//! What this program itself offers to programs inside, by an address on loopback: `http://127.0.0.1:3128/mcp`.
//!
//! Whoever comes through this sandbox's door is of this sandbox, and gets its tools; nothing in a request can change that.
//! Requests are read whole and bounded here, a few at once; what they mean is somebody else's to know.

use std::{pin::Pin, sync::Arc, time::Duration};

use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::{Body as _, Bytes, Incoming},
    header::{self, HeaderValue},
};
use tokio::sync::Semaphore;

use crate::{
    Engine, Reason,
    places::Place,
    proxy::{self, Body},
    secrets::is_own,
};

/// Where the tools are, on our own listener.
pub const PATH: &str = "/mcp";
/// No larger request is read.
const LARGEST: usize = 1 << 20;
/// Requests of one sandbox that are worked on at once; more are sent away.
const AT_ONCE: usize = 16;
/// Time to say what is wanted.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers requests of programs inside.
pub type OwnTools = Arc<dyn Fn(Request<Bytes>) -> Answering + Send + Sync>;

/// An answer under way. It is given up when it is dropped.
pub type Answering = Pin<Box<dyn Future<Output = Response<Bytes>> + Send>>;

/// The tools of one sandbox.
pub(crate) struct Own {
    tools: OwnTools,
    turns: Semaphore,
}

impl Own {
    pub(crate) fn new(tools: OwnTools) -> Self {
        Self { tools, turns: Semaphore::new(AT_ONCE) }
    }
}

/// Whether a request is for our own tools, and not for a proxy.
pub(crate) fn is_meant(request: &Request<Incoming>) -> bool {
    request.uri().authority().is_none() && request.uri().path() == PATH
}

impl Engine {
    /// Answers a request for our own tools.
    pub(crate) async fn serve_own(&self, request: Request<Incoming>, _place: Arc<Place>) -> Response<Body> {
        let refuse = |status, reason, words: &str| {
            self.record_refusal("the sandbox's own tools", reason);
            proxy::page(status, reason, words)
        };
        // A page of somebody else whose name leads to loopback names itself here.
        if !is_own(request.headers()) {
            let words = format!("These tools are for programs of this sandbox, at http://127.0.0.1:3128{PATH}.\n");
            return refuse(StatusCode::FORBIDDEN, Reason::HttpOtherHost, &words);
        }
        let Some(own) = self.own() else {
            let words = "There are no tools here: no server looks after this sandbox.\n";
            return refuse(StatusCode::NOT_FOUND, Reason::NotARequest, words);
        };
        let Ok(_turn) = own.turns.try_acquire() else {
            let words = format!("{AT_ONCE} calls are being worked on: wait for one of them.\n");
            return refuse(StatusCode::TOO_MANY_REQUESTS, Reason::TooManyConnections, &words);
        };
        let (parts, body) = request.into_parts();
        let too_large = || {
            let words = format!("A request has at most {LARGEST} bytes here; programs write files themselves.\n");
            refuse(StatusCode::PAYLOAD_TOO_LARGE, Reason::NotARequest, &words)
        };
        // Whoever asks first is not told to go on: what is sent and not read loses the answer.
        if body.size_hint().lower() > LARGEST as u64 {
            return too_large();
        }
        let body = match tokio::time::timeout(PATIENCE, Limited::new(body, LARGEST).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => return too_large(),
            _ => return refuse(StatusCode::BAD_REQUEST, Reason::NotARequest, "The request did not come whole.\n"),
        };
        let mut response = (own.tools)(Request::from_parts(parts, body)).await;
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response.map(|body| Either::Right(Full::new(body)))
    }
}
