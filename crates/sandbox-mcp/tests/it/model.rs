//! A model server that says what a test tells it: Messages API and chat completions, streaming and not, and all that real
//! servers do wrong. It listens on loopback and writes down every request.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

/// What the server answers.
#[derive(Clone)]
pub enum Say {
    /// These blocks: `text` and `call`.
    Turn(Vec<Value>),
    /// The same with another reason to stop.
    Stop(&'static str, Vec<Value>),
    /// The same, reading and writing so many tokens.
    Costly(u64, u64, Vec<Value>),
    /// The same after a while, but never longer than what was asked for.
    Obedient(Duration, u64, u64, Vec<Value>),
    /// An error.
    Status(u16, &'static str, String),
    /// The beginning of an answer, and then the connection ends.
    Cut,
    /// The beginning of an answer, and then an event that says error.
    Broken,
    /// The beginning of an answer, and then nothing.
    Hang,
    /// The beginning of an answer, and then more of it without an end.
    Endless,
    /// Not even the beginning of an answer.
    Silence,
    /// This, as it is, as a stream.
    Raw(&'static str),
    /// A whole answer though a stream was asked for.
    Whole(Vec<Value>),
    /// After a while.
    Slow(Duration, Vec<Value>),
}

/// What is asked: the request, and how many answers of the model it holds.
pub struct Asked<'a> {
    pub body: &'a Value,
    pub step: usize,
    /// How many requests there were before, in all.
    pub number: usize,
}

type Script = dyn Fn(&Asked<'_>) -> Say + Send + Sync;

/// A server on loopback.
pub struct Server {
    pub port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub head: String,
    pub body: Value,
}

/// Text of the model.
pub fn text(text: impl Into<String>) -> Value {
    json!({"type": "text", "text": text.into()})
}

/// A call of a tool.
pub fn call(id: &str, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

/// A shell command.
pub fn bash(command: &str) -> Value {
    call("toolu_1", "bash", json!({"command": command}))
}

impl Server {
    /// Answers as the script says.
    pub async fn start(script: impl Fn(&Asked<'_>) -> Say + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (script, log): (Arc<Script>, _) = (Arc::new(script), requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script.clone(), log.clone()));
            }
        });
        Self { port, requests }
    }

    /// Turn after turn; the last one again and again.
    pub async fn turns(turns: Vec<Vec<Value>>) -> Self {
        Self::start(move |asked| Say::Turn(turns[asked.step.min(turns.len() - 1)].clone())).await
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Settings with which our program asks this server.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("SANDBOX_MCP_MODEL_URL", format!("http://127.0.0.1:{}", self.port)),
            ("SANDBOX_MCP_MODEL_KEY", "env:TEST_MODEL_KEY".to_owned()),
            ("TEST_MODEL_KEY", KEY.to_owned()),
        ]
    }

    /// The same for chat completions.
    pub fn chat_settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = self.settings();
        settings[0].1.push_str("/v1");
        settings.extend([("SANDBOX_MCP_MODEL_API", "chat".to_owned()), ("SANDBOX_MCP_MODEL", "local".to_owned())]);
        settings
    }
}

/// The key that must be found nowhere.
pub const KEY: &str = "sk-test-4711-key-that-stays-outside";

async fn serve(stream: TcpStream, script: Arc<Script>, log: Arc<Mutex<Vec<Request>>>) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    while let Some(request) = read(&mut reader).await {
        let chat = request.path.contains("chat/completions");
        let number = {
            let mut log = log.lock().unwrap();
            log.push(request.clone());
            log.len() - 1
        };
        let messages = request.body["messages"].as_array().cloned().unwrap_or_default();
        let step = messages.iter().filter(|message| message["role"] == "assistant").count();
        let said = script(&Asked { body: &request.body, step, number });
        let streaming = request.body["stream"] == true;
        let answer = |blocks: &[Value], stop: Option<&str>, cost: (u64, u64)| match (chat, streaming) {
            (false, true) => events(&message_events(blocks, stop, cost)),
            (false, false) => whole(&message(blocks, stop, cost)),
            (true, true) => events(&chat_events(blocks, cost)),
            (true, false) => whole(&chat_whole(blocks, cost)),
        };
        let usual = (100, 50);
        let bytes = match &said {
            Say::Turn(blocks) => answer(blocks, None, usual),
            Say::Stop(reason, blocks) => answer(blocks, Some(reason), usual),
            Say::Costly(input, output, blocks) => answer(blocks, None, (*input, *output)),
            Say::Obedient(time, input, output, blocks) => {
                tokio::time::sleep(*time).await;
                let most = request.body["max_tokens"].as_u64().unwrap_or(u64::MAX);
                answer(blocks, None, (*input, most.min(*output)))
            }
            Say::Whole(blocks) if chat => whole(&chat_whole(blocks, usual)),
            Say::Whole(blocks) => whole(&message(blocks, None, usual)),
            Say::Slow(time, blocks) => {
                tokio::time::sleep(*time).await;
                answer(blocks, None, usual)
            }
            Say::Status(code, headers, body) => {
                let length = body.len();
                format!(
                    "HTTP/1.1 {code} No\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
                )
            }
            Say::Raw(text) => format!("{STREAM}{text}"),
            Say::Cut | Say::Hang | Say::Broken | Say::Endless => {
                let all = if chat {
                    chat_events(&[text("half")], usual)
                } else {
                    message_events(&[text("half")], None, usual)
                };
                let mut half: String = all[..2].iter().map(event).collect();
                if matches!(said, Say::Broken) {
                    half.push_str(&event(
                        &json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
                    ));
                }
                format!("{STREAM}{half}")
            }
            Say::Silence => String::new(),
        };
        let sent = writer.write_all(bytes.as_bytes()).await.is_ok() && writer.flush().await.is_ok();
        match said {
            Say::Endless => {
                let more = event(&json!({"type": "ping"}));
                while writer.write_all(more.as_bytes()).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                return;
            }
            Say::Hang | Say::Silence => tokio::time::sleep(Duration::from_secs(60)).await,
            // A stream without a length ends with its connection.
            _ if !sent || !bytes.contains("content-length") => return,
            _ => {}
        }
    }
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

async fn read(reader: &mut BufReader<tokio::net::tcp::OwnedReadHalf>) -> Option<Request> {
    let (mut head, mut line) = (String::new(), String::new());
    loop {
        line.clear();
        if reader.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line);
    }
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length:").map(str::to_owned));
    let mut body = vec![0; length?.trim().parse().ok()?];
    reader.read_exact(&mut body).await.ok()?;
    let path = head.split_whitespace().nth(1)?.to_owned();
    Some(Request { path, head, body: serde_json::from_slice(&body).ok()? })
}

fn whole(answer: &Value) -> String {
    let body = answer.to_string();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn events(all: &[Value]) -> String {
    let body: String = all.iter().map(event).collect();
    format!("{STREAM}{body}data: [DONE]\n\n")
}

fn event(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or("x"))
}

/// Programs take what has the same id for one message.
fn message_id() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("msg_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn stop_of(blocks: &[Value]) -> &'static str {
    if blocks.iter().any(|block| block["type"] == "tool_use") { "tool_use" } else { "end_turn" }
}

fn message(blocks: &[Value], stop: Option<&str>, (input, output): (u64, u64)) -> Value {
    json!({"id": message_id(), "type": "message", "role": "assistant", "model": "claude-opus-5-5", "content": blocks,
        "stop_reason": stop.unwrap_or(stop_of(blocks)), "usage": {"input_tokens": input, "output_tokens": output}})
}

fn message_events(blocks: &[Value], stop: Option<&str>, (input, output): (u64, u64)) -> Vec<Value> {
    let mut events = vec![
        json!({"type": "message_start", "message": {"id": message_id(), "model": "claude-opus-5-5", "content": [], "usage": {"input_tokens": input, "output_tokens": 1}}}),
        json!({"type": "ping"}),
    ];
    for (index, block) in blocks.iter().enumerate() {
        let (begin, delta) = match block["type"] == "tool_use" {
            true => {
                let begin = json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}});
                (begin, json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}))
            }
            false => (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": block["text"]})),
        };
        events.push(json!({"type": "content_block_start", "index": index, "content_block": begin}));
        events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": stop.unwrap_or(stop_of(blocks))}, "usage": {"output_tokens": output}}));
    events.push(json!({"type": "message_stop"}));
    events
}

fn calls(blocks: &[Value]) -> Vec<Value> {
    let called = blocks.iter().filter(|block| block["type"] == "tool_use").enumerate();
    let call = |(index, block): (usize, &Value)| {
        let function = json!({"name": block["name"], "arguments": block["input"].to_string()});
        json!({"index": index, "id": block["id"], "type": "function", "function": function})
    };
    called.map(call).collect()
}

fn said(blocks: &[Value]) -> String {
    blocks.iter().filter_map(|block| block["text"].as_str()).collect()
}

fn chat_stop(blocks: &[Value]) -> &'static str {
    if calls(blocks).is_empty() { "stop" } else { "tool_calls" }
}

fn chat_whole(blocks: &[Value], (input, output): (u64, u64)) -> Value {
    let message = json!({"role": "assistant", "content": said(blocks), "tool_calls": calls(blocks)});
    json!({"object": "chat.completion", "model": "local", "choices": [{"message": message, "finish_reason": chat_stop(blocks)}],
        "usage": {"prompt_tokens": input, "completion_tokens": output}})
}

fn chat_events(blocks: &[Value], (input, output): (u64, u64)) -> Vec<Value> {
    vec![
        json!({"model": "local", "choices": [{"delta": {"role": "assistant", "content": ""}}]}),
        json!({"model": "local", "choices": [{"delta": {"content": said(blocks)}}]}),
        json!({"model": "local", "choices": [{"delta": {"tool_calls": calls(blocks)}}]}),
        json!({"model": "local", "choices": [{"delta": {}, "finish_reason": chat_stop(blocks)}]}),
        json!({"model": "local", "choices": [], "usage": {"prompt_tokens": input, "completion_tokens": output}}),
    ]
}
