//! Lines of JSON on standard input and output.
//!
//! The SDK's own line reader drops what it does not understand, so that a client would wait for an answer for ever.
//! This one answers: a line that is too long, broken JSON, and a request of the wrong shape each get an error, with
//! the request's id wherever it can be found. Nothing that arrives here ends the server but the end of input.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rmcp::{
    RoleServer,
    model::{
        ClientJsonRpcMessage, ClientRequest, ErrorData, GetMeta, ProtocolVersion, RequestId, ServerJsonRpcMessage,
    },
    transport::Transport,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::{Mutex, Notify},
};

use super::{line_id::IdScanner, schema::shortened};

/// The longest line that is read as a request.
pub const MAX_LINE: usize = 16 << 20;
/// A line buffer that grew beyond this is given back after use.
const KEPT_BUFFER: usize = 1 << 20;
/// Broken lines that are answered; a client that sends more than this only produces them.
const ANSWERED_BROKEN_LINES: u32 = 100;

/// Requests from a reader, answers to a writer.
pub struct Lines<R, W> {
    input: BufReader<R>,
    line: Vec<u8>,
    overlong: Option<IdScanner>,
    output: Arc<Mutex<W>>,
    broken: u32,
    opened: bool,
    ended: Arc<Ended>,
}

/// Tells when the input has ended.
#[derive(Default)]
pub struct Ended {
    over: AtomicBool,
    changed: Notify,
}

impl Ended {
    /// Returns once there will be no more requests.
    pub async fn wait(&self) {
        let changed = self.changed.notified();
        if !self.over.load(Ordering::Acquire) {
            changed.await;
        }
    }

    fn set(&self) {
        self.over.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}

enum Line {
    Whole,
    TooLong(Option<RequestId>),
    End,
}

impl<R: AsyncRead + Send + Unpin, W: AsyncWrite + Send + Unpin> Lines<R, W> {
    /// Reads from and writes to these.
    pub fn new(input: R, output: W) -> Self {
        Self {
            input: BufReader::with_capacity(64 << 10, input),
            line: Vec::new(),
            overlong: None,
            output: Arc::new(Mutex::new(output)),
            broken: 0,
            opened: false,
            ended: Arc::default(),
        }
    }

    /// To wait for the end of input from elsewhere.
    pub fn ended(&self) -> Arc<Ended> {
        self.ended.clone()
    }

    /// One line, kept across calls: the SDK drops this future whenever something else happens.
    async fn read_line(&mut self) -> io::Result<Line> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                return Ok(Line::End);
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            let take = newline.map_or(available.len(), |at| at + 1);
            let piece = &available[..take];
            match &mut self.overlong {
                Some(scanner) => scanner.feed(piece),
                None if self.line.len() + take > MAX_LINE => {
                    let mut scanner = IdScanner::default();
                    scanner.feed(&self.line);
                    scanner.feed(piece);
                    self.overlong = Some(scanner);
                    self.line = Vec::new();
                }
                None => self.line.extend_from_slice(piece),
            }
            self.input.consume(take);
            if newline.is_some() {
                return Ok(match self.overlong.take() {
                    Some(scanner) => Line::TooLong(scanner.into_id()),
                    None => Line::Whole,
                });
            }
        }
    }

    async fn refuse(&mut self, error: ErrorData, id: Option<RequestId>) {
        let message = ServerJsonRpcMessage::error(error, id);
        let output = self.output.clone();
        if let Err(error) = write_line(&output, &message).await {
            tracing::debug!(%error, "nobody reads our output");
        }
    }

    /// What the SDK is to see of this message. Before the first real request it takes a stray notification for the
    /// end of the world, so those are kept from it.
    fn admit(&mut self, message: ClientJsonRpcMessage) -> Option<ClientJsonRpcMessage> {
        if let ClientJsonRpcMessage::Request(request) = &message {
            self.opened |= opens(&request.request);
            return Some(message);
        }
        self.opened.then_some(message)
    }
}

/// Whether the SDK leaves its opening phase with this request.
fn opens(request: &ClientRequest) -> bool {
    match request {
        ClientRequest::InitializeRequest(_) => true,
        ClientRequest::DiscoverRequest(_) | ClientRequest::PingRequest(_) => false,
        other => {
            let meta = other.get_meta();
            let known =
                meta.protocol_version().is_some_and(|version| ProtocolVersion::KNOWN_VERSIONS.contains(&version));
            known && meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty()
        }
    }
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(&mut self, message: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let output = self.output.clone();
        async move { write_line(&output, &message).await }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            match self.read_line().await {
                Ok(Line::Whole) => {}
                Ok(Line::TooLong(id)) => {
                    self.refuse(too_long(), id).await;
                    continue;
                }
                Ok(Line::End) => {
                    self.ended.set();
                    return None;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read standard input");
                    self.ended.set();
                    return None;
                }
            }
            let parsed = parse(&self.line);
            self.line.clear();
            self.line.shrink_to(KEPT_BUFFER);
            match parsed {
                Parsed::Message(message) => {
                    if let Some(message) = self.admit(*message) {
                        return Some(message);
                    }
                }
                Parsed::Nothing => {}
                Parsed::Broken { error, id } => {
                    self.broken += u32::from(id.is_none());
                    if self.broken <= ANSWERED_BROKEN_LINES {
                        self.refuse(error, id).await;
                    }
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.output.lock().await.flush().await
    }
}

enum Parsed {
    Message(Box<ClientJsonRpcMessage>),
    /// An empty line, or a notification that means nothing to us.
    Nothing,
    Broken {
        error: ErrorData,
        id: Option<RequestId>,
    },
}

/// What can be said of a message that is JSON but not what MCP defines.
#[derive(Deserialize)]
struct Outline {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
}

fn parse(line: &[u8]) -> Parsed {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Parsed::Nothing;
    }
    if let Ok(message) = serde_json::from_slice(line) {
        return Parsed::Message(Box::new(message));
    }
    match serde_json::from_slice::<Outline>(line) {
        Ok(Outline { id: None, method: Some(_) }) => Parsed::Nothing,
        Ok(Outline { id, method }) => {
            let id = id.and_then(|id| serde_json::from_value(id).ok());
            Parsed::Broken { error: method.as_deref().map_or_else(no_method, wrong_shape), id }
        }
        Err(error) => Parsed::Broken { error: not_json(&error), id: None },
    }
}

/// The answer to a request whose params are not what its method takes.
pub fn wrong_shape(method: &str) -> ErrorData {
    match method {
        "tools/call" => ErrorData::invalid_params(
            "tools/call needs params of the form {\"name\": \"run_command\", \"arguments\": {…}} with a text and an object",
            None,
        ),
        other => {
            let method = shortened(other);
            ErrorData::invalid_params(format!("the params of this {method} request are not what MCP defines"), None)
        }
    }
}

fn no_method() -> ErrorData {
    ErrorData::invalid_request("this is JSON, but not a JSON-RPC 2.0 message: it has no method", None)
}

fn not_json(error: &serde_json::Error) -> ErrorData {
    ErrorData::parse_error(format!("this line is not a JSON-RPC message ({error}); send one message per line"), None)
}

fn too_long() -> ErrorData {
    let limit = MAX_LINE >> 20;
    ErrorData::invalid_request(
        format!(
            "this request is longer than {limit} MiB and was not read. Send large files in pieces with several \
             write_files calls and join them in the sandbox (cat part-* > file), or let a command download them"
        ),
        None,
    )
}

async fn write_line<W: AsyncWrite + Unpin>(output: &Mutex<W>, message: &ServerJsonRpcMessage) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut output = output.lock().await;
    output.write_all(&line).await?;
    output.flush().await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, duplex};

    /// Feeds lines, returns the methods that came through and the answers that were written.
    async fn exchange(input: Vec<u8>) -> (Vec<String>, Vec<Value>) {
        let (ours, mut theirs) = duplex(1 << 20);
        let mut lines = Lines::new(io::Cursor::new(input), ours);
        let mut seen = Vec::new();
        while let Some(message) = lines.receive().await {
            let method = serde_json::to_value(&message).unwrap()["method"].as_str().unwrap().to_owned();
            seen.push(method);
        }
        drop(lines);
        let mut written = String::new();
        theirs.read_to_string(&mut written).await.unwrap();
        (seen, written.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    #[tokio::test]
    async fn garbage_is_answered_and_what_follows_is_read() {
        let (seen, answers) =
            exchange(b"rubbish\n\n[[[\n{\"id\":1,\"method\":\"ping\",\"jsonrpc\":\"2.0\"}\n".to_vec()).await;
        assert_eq!(seen, ["ping"]);
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[0]["error"]["code"], -32700);
    }

    #[tokio::test]
    async fn an_overlong_request_is_refused_by_its_id_wherever_that_stands() {
        let filler = "x".repeat(MAX_LINE + 5);
        let first = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call"}).to_string();
        let mut input = format!("{{\"params\":{{\"id\":1,\"x\":\"{filler}\"}},\"id\":\"last\"}}\n").into_bytes();
        input.extend(format!("{},\"params\":\"{filler}\"}}\n", first.trim_end_matches('}')).into_bytes());
        input.extend(b"{\"id\":8,\"method\":\"ping\",\"jsonrpc\":\"2.0\"}\n");
        let (seen, answers) = exchange(input).await;
        assert_eq!(seen, ["ping"]);
        assert_eq!((&answers[0]["id"], &answers[1]["id"]), (&json!("last"), &json!(7)));
        assert!(answers[0]["error"]["message"].as_str().unwrap().contains("16 MiB"));
    }

    #[tokio::test]
    async fn a_stray_notification_before_the_start_is_kept_from_the_sdk() {
        let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
        let (seen, answers) = exchange(format!("{cancelled}\n").into_bytes()).await;
        assert!(seen.is_empty() && answers.is_empty());
    }
}
