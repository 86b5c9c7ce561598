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
use tokio::sync::{mpsc, oneshot};

use super::progress::Progress;
use crate::sandboxes::access::{Inquiry, Person, Question, Reply, Span, shown};

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
        let meanwhile = async {
            loop {
                tokio::select! {
                    () = progress.due() => progress.tell("waiting for the answer of a person".to_owned()),
                    () = self.context.ct.cancelled() => return,
                }
            }
        };
        let answer = elicit(&self.context.peer, form(question), patience, meanwhile).await;
        answer.map_or(Reply::NoAnswer, |result| reply(&result, question))
    }

    /// The same person as somebody who can be asked also after this call; nobody where questions come only with answers.
    pub fn user(&self) -> Option<User> {
        let asks = !self.is_modern() && self.shows_forms();
        asks.then(|| User { peer: self.context.peer.clone(), name: self.name(), patience: self.patience })
    }

    /// Whether the client knows tasks of the protocol. One of before says so too, and cannot.
    pub fn can_task(&self) -> bool {
        self.is_modern() && self.context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks())
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

/// The user of a client with a handshake, also after the call that began it.
pub struct User {
    peer: Peer<RoleServer>,
    name: String,
    patience: Duration,
}

#[async_trait]
impl Person for User {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_there(&self) -> bool {
        !self.peer.is_transport_closed()
    }

    async fn answer(&self, question: &Question) -> Reply {
        let answer = elicit(&self.peer, form(question), self.patience, std::future::pending()).await;
        answer.map_or(Reply::NoAnswer, |result| reply(&result, question))
    }

    async fn inquire(&self, inquiry: &Inquiry) -> Option<String> {
        let answer = elicit(&self.peer, inquiry_form(inquiry), self.patience, std::future::pending()).await;
        said(&answer?)
    }
}

/// A question on its way to whoever can put it.
pub struct Put {
    /// The question.
    pub request: ElicitRequest,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Option<Value>>,
}

/// Questions of one task.
pub type Questions = mpsc::Receiver<Put>;

/// The user of a client without a handshake: questions wait until the client asks how the task stands.
pub struct Relay {
    sender: mpsc::Sender<Put>,
    name: String,
    patience: Duration,
    shows_forms: bool,
}

impl Relay {
    /// Somebody to ask, and where the questions come out.
    pub fn new(caller: &Caller<'_>) -> (Self, Questions) {
        let (sender, questions) = mpsc::channel(1);
        (Self { sender, name: caller.name(), patience: caller.patience, shows_forms: caller.shows_forms() }, questions)
    }

    async fn put(&self, form: ElicitRequestParams) -> Option<ElicitResult> {
        let (answer, answered) = oneshot::channel();
        let put = async {
            self.sender.send(Put { request: ElicitRequest::new(form), answer }).await.ok()?;
            answered.await.ok().flatten()
        };
        let value = tokio::time::timeout(self.patience, put).await.ok().flatten()?;
        serde_json::from_value(value).ok()
    }
}

#[async_trait]
impl Person for Relay {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_there(&self) -> bool {
        self.shows_forms
    }

    async fn answer(&self, question: &Question) -> Reply {
        self.put(form(question)).await.map_or(Reply::NoAnswer, |result| reply(&result, question))
    }

    async fn inquire(&self, inquiry: &Inquiry) -> Option<String> {
        said(&self.put(inquiry_form(inquiry)).await?)
    }
}

/// Puts a form and waits, though not for ever, nor after `meanwhile` has ended.
async fn elicit(
    peer: &Peer<RoleServer>,
    form: ElicitRequestParams,
    patience: Duration,
    meanwhile: impl Future<Output = ()>,
) -> Option<ElicitResult> {
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(form));
    let sent = peer.send_request_with_option(request, PeerRequestOptions::no_options()).await;
    let sent = sent.inspect_err(|error| tracing::debug!(%error, "a question could not be put"));
    let mut handle = sent.ok()?;
    tokio::select! {
        answer = &mut handle.rx => return match answer {
            Ok(Ok(ClientResult::ElicitResult(result))) => Some(result),
            _ => None,
        },
        () = tokio::time::sleep(patience) => {}
        () = meanwhile => {}
    }
    // The client takes its question off the screen.
    let _ = handle.cancel(Some("nobody waits for the answer any more".to_owned())).await;
    None
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

/// A question of an agent as a form with one answer.
fn inquiry_form(inquiry: &Inquiry) -> ElicitRequestParams {
    let mut answer = json!({"type": "string", "title": "Answer", "maxLength": 2000});
    let choices = inquiry.shown_choices();
    if !choices.is_empty() {
        answer["enum"] = json!(choices);
    }
    let schema = json!({"type": "object", "properties": {"answer": answer}, "required": ["answer"]});
    let requested_schema = ElicitationSchema::from_json_schema(schema.as_object().cloned().unwrap_or_default())
        .unwrap_or_else(|_| ElicitationSchema::new(std::collections::BTreeMap::new()));
    ElicitRequestParams::FormElicitationParams { meta: None, message: inquiry.text(), requested_schema }
}

/// The answer to a question of an agent.
fn said(result: &ElicitResult) -> Option<String> {
    match result.action {
        ElicitationAction::Accept => {
            let answer = result.content.as_ref()?.get("answer")?.as_str()?;
            Some(answer.chars().take(2000).collect())
        }
        ElicitationAction::Decline => Some("The person does not want to answer.".to_owned()),
        _ => None,
    }
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
