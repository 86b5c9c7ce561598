//! The user of a client as somebody who can be asked, in both eras of the protocol.
//!
//! With a handshake the server sends `elicitation/create` and waits. Without one it answers `input_required`, and the
//! client calls again with the person's answer and the state that it was handed. That state is a random name and nothing
//! more: what it stands for stays here, is good for one answer, for the same call, and for a short time.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rmcp::{
    Peer, RoleServer,
    model::{
        CallToolRequestParams, ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationCapability, ElicitationSchema, InputRequest, InputRequiredResult, ProtocolVersion, ServerRequest,
    },
    service::{PeerRequestOptions, RequestContext, RequestHandle},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::progress::Progress;
use crate::sandboxes::access::{Person, Question, Reply, Span, shown};

/// The one question of a call.
const KEY: &str = "access";
/// Questions that wait for an answer, of all calls; the oldest is given up for a new one.
const WAITING: usize = 64;
/// A client that shows no progress gives up after about a minute: the refusal must come before that.
const WITHOUT_PROGRESS: Duration = Duration::from_secs(50);

/// Questions whose answers come with another call.
#[derive(Default)]
pub struct Pending(Mutex<HashMap<String, Waiting>>);

struct Waiting {
    question: Question,
    call: [u8; 32],
    since: Instant,
}

/// The person behind one call.
pub struct Caller<'a> {
    context: &'a RequestContext<RoleServer>,
    pending: &'a Pending,
    patience: Duration,
    /// Which call this is: the tool and its arguments.
    call: [u8; 32],
    /// What the client brought from an earlier round.
    state: Option<String>,
    response: Option<Value>,
    later: Mutex<Option<InputRequiredResult>>,
}

impl<'a> Caller<'a> {
    /// Of this call.
    pub fn of(
        request: &mut CallToolRequestParams,
        context: &'a RequestContext<RoleServer>,
        pending: &'a Pending,
        patience: Duration,
    ) -> Self {
        let mut digest = Sha256::new_with_prefix(request.name.as_bytes());
        digest.update(serde_json::to_vec(&request.arguments).unwrap_or_default());
        let response = request.input_responses.take().and_then(|mut responses| responses.remove(KEY));
        Self {
            context,
            pending,
            patience,
            call: digest.finalize().into(),
            state: request.request_state.take(),
            response,
            later: Mutex::default(),
        }
    }

    /// The question that must be answered before this call can go on.
    pub fn take_later(&self) -> Option<InputRequiredResult> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the answer can come while the call waits.
    pub fn can_wait(&self) -> bool {
        !self.is_modern()
    }

    fn is_modern(&self) -> bool {
        self.context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
    }

    fn shows_forms(&self) -> bool {
        let offered = self.context.client_capabilities().and_then(|capabilities| capabilities.elicitation);
        offered.is_some_and(|elicitation| shows_forms(&elicitation))
    }

    async fn elicit(&self, question: &Question) -> Reply {
        let mut progress = Progress::of(self.context);
        let patience = if progress.is_wanted() { self.patience } else { self.patience.min(WITHOUT_PROGRESS) };
        let Some(mut handle) = put(&self.context.peer, question).await else { return Reply::NoAnswer };
        let deadline = tokio::time::sleep(patience);
        tokio::pin!(deadline);
        let reply = loop {
            tokio::select! {
                answer = &mut handle.rx => return understood(answer, question),
                () = progress.due() => progress.tell("waiting for the answer of a person".to_owned()),
                () = &mut deadline => break Reply::NoAnswer,
                () = self.context.ct.cancelled() => break Reply::NoAnswer,
            }
        };
        // The client takes its question off the screen.
        let _ = handle.cancel(Some("nobody waits for the answer any more".to_owned())).await;
        reply
    }

    fn put_later(&self, question: &Question) -> Reply {
        let mut name = [0; 16];
        if let Err(error) = getrandom::fill(&mut name) {
            tracing::warn!("no question can be put: {error}");
            return Reply::NoAnswer;
        }
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        self.pending.put(name.clone(), question, self.call);
        let requests = [(KEY.to_owned(), InputRequest::Elicitation(ElicitRequest::new(form(question))))];
        let later = InputRequiredResult::new(Some(requests.into()), Some(name));
        *self.later.lock().unwrap_or_else(PoisonError::into_inner) = Some(later);
        Reply::Later
    }
}

#[async_trait]
impl Person for Caller<'_> {
    fn name(&self) -> String {
        match self.context.client_info() {
            Some(client) => format!("the user of {} (MCP)", shown(&client.name, (40, 0))),
            None => "the client's user (MCP)".to_owned(),
        }
    }

    fn is_there(&self) -> bool {
        self.shows_forms()
    }

    fn answered(&self, question: &Question) -> Option<Reply> {
        let waiting = self.pending.take(self.state.as_deref()?)?;
        if waiting.question != *question || waiting.call != self.call {
            return None;
        }
        if waiting.since.elapsed() > self.patience {
            return Some(Reply::NoAnswer);
        }
        let result: ElicitResult = serde_json::from_value(self.response.clone()?).ok()?;
        Some(reply(&result, question))
    }

    async fn answer(&self, question: &Question) -> Reply {
        if self.is_modern() { self.put_later(question) } else { self.elicit(question).await }
    }
}

impl Pending {
    fn put(&self, name: String, question: &Question, call: [u8; 32]) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= WAITING
            && let Some(oldest) = waiting.iter().min_by_key(|(_, waiting)| waiting.since).map(|(name, _)| name.clone())
        {
            waiting.remove(&oldest);
        }
        waiting.insert(name, Waiting { question: question.clone(), call, since: Instant::now() });
    }

    /// A name is good for one answer.
    fn take(&self, name: &str) -> Option<Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }
}

/// A client that says no mode means forms.
pub fn shows_forms(offered: &ElicitationCapability) -> bool {
    offered.form.is_some() || offered.url.is_none()
}

/// Puts a question to whoever sits at a client that shook hands.
pub async fn put(peer: &Peer<RoleServer>, question: &Question) -> Option<RequestHandle<RoleServer>> {
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(form(question)));
    let sent = peer.send_request_with_option(request, PeerRequestOptions::no_options()).await;
    sent.inspect_err(|error| tracing::debug!(%error, "a question could not be put")).ok()
}

/// What became of a question that was put.
pub fn understood<E, F>(answer: Result<Result<ClientResult, E>, F>, question: &Question) -> Reply {
    match answer {
        Ok(Ok(ClientResult::ElicitResult(result))) => reply(&result, question),
        _ => Reply::NoAnswer,
    }
}

/// The question as a form with one choice.
fn form(question: &Question) -> ElicitRequestParams {
    let choices: Vec<String> = question.choices().iter().map(Span::to_string).collect();
    let once = question.choices().contains(&Span::Once);
    let once = if once { "once: this command; " } else { "" };
    let schema = json!({
        "type": "object",
        "properties": {"for": {
            "type": "string",
            "title": "Allow it for",
            "description": format!("{once}sandbox: as long as the sandbox lives"),
            "enum": choices,
            "default": question.span.to_string(),
        }},
    });
    let schema = schema.as_object().cloned().unwrap_or_default();
    let requested_schema = ElicitationSchema::from_json_schema(schema)
        .unwrap_or_else(|_| ElicitationSchema::new(std::collections::BTreeMap::new()));
    ElicitRequestParams::FormElicitationParams { meta: None, message: question.text(), requested_schema }
}

/// What the person said. A choice that was not offered counts as the least.
fn reply(result: &ElicitResult, question: &Question) -> Reply {
    if result.action != ElicitationAction::Accept {
        return Reply::Declined;
    }
    let chosen = result.content.as_ref().and_then(|content| content.get("for"));
    Reply::Granted(match chosen {
        None => question.span,
        Some(chosen) => {
            let offered = question.choices().into_iter().find(|span| json!(span.to_string()) == *chosen);
            offered.unwrap_or(Span::Once)
        }
    })
}
