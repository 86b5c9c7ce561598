//! The tools of one sandbox for programs in it, over HTTP on its own loopback: an agent inside learns what is allowed here, asks for
//! more, shows a port, and works with jobs as one outside does.
//!
//! Which sandbox it is, is decided by the door that a request came through. Who is asked is the person at this server's own
//! client, never whoever calls. Calls are answered where the server works, not on the threads that carry bytes.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, body::Bytes};
use rmcp::transport::{
    StreamableHttpServerConfig,
    streamable_http_server::{session::never::NeverSessionManager, tower::StreamableHttpService},
};
use sandbox_core::{SessionId, UserId};
use sandbox_egress::{Answering, OwnTools};
use tokio::{runtime::Handle, task::JoinHandle};

use super::{bound::Bound, client::Client, server::Server};
use crate::{
    agent::Tasks,
    app::App,
    config::Settings,
    sandboxes::{Offer, WeakSandboxes},
};

/// What programs inside have.
const TOOLS: [&str; 8] = [
    "get_sandbox_status",
    "request_access",
    "open_port",
    "run_command",
    "get_output",
    "write_files",
    "get_files",
    "list_files",
];

const INSTRUCTIONS: &str = "Tools of the sandbox that you run in, and of no other. get_sandbox_status says what is allowed here: \
policy, limits, what can be reached, what was granted. request_access asks a person for more; a no is final. open_port gives a \
person an address for a web server that you run. The others run commands and move files in this same sandbox.";

/// What every sandbox of a server is offered.
pub fn offer(settings: Arc<Settings>, client: Client) -> Offer {
    let runtime = Handle::current();
    Arc::new(move |sandboxes: &WeakSandboxes, session: &SessionId| {
        let (settings, client) = (settings.clone(), client.clone());
        tools(runtime.clone(), settings, client, sandboxes.clone(), session.clone())
    })
}

fn tools(
    runtime: Handle,
    settings: Arc<Settings>,
    client: Client,
    sandboxes: WeakSandboxes,
    session: SessionId,
) -> OwnTools {
    Arc::new(move |request| {
        let Some(sandboxes) = sandboxes.upgrade() else { return Box::pin(async { nobody() }) };
        let (settings, caller) = (settings.clone(), UserId::local());
        let app = App { settings, sandboxes, tasks: Tasks::default(), caller, client: client.clone() };
        let answering = Answered(runtime.spawn(answer(app, session.clone(), request)));
        Box::pin(answering.wait()) as Answering
    })
}

/// One request, one answer: nothing is kept between them.
async fn answer(app: App, session: SessionId, request: Request<Bytes>) -> Response<Bytes> {
    let config = StreamableHttpServerConfig::default().with_legacy_session_mode(false).with_json_response(true);
    let make = move || {
        let person = Arc::new(app.client.person(app.settings.answer));
        let bound = Bound { session: session.clone(), tools: &TOOLS, instructions: INSTRUCTIONS, person: Some(person) };
        Ok(Server::new(app.clone()).bound(bound))
    };
    let service = StreamableHttpService::new(make, Arc::new(NeverSessionManager::default()), config);
    let (parts, body) = service.handle(request.map(Full::new)).await.into_parts();
    match body.collect().await {
        Ok(body) => Response::from_parts(parts, body.to_bytes()),
        Err(never) => match never {},
    }
}

fn nobody() -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(b"The server of this sandbox has ended.\n"));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// Work elsewhere that is given up with whoever waits for it.
struct Answered(JoinHandle<Response<Bytes>>);

impl Answered {
    async fn wait(mut self) -> Response<Bytes> {
        (&mut self.0).await.unwrap_or_else(|_| nobody())
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.0.abort();
    }
}
