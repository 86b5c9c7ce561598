//! A model that answers at once: the Messages API on loopback, as a stream. The task says how many commands it asks for.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Stands before the number of commands in a task.
pub const CALLS: &str = "commands: ";
/// What it says in the end.
pub const LAST: &str = "All is done.";

/// A server that answers until the program ends.
pub struct Model {
    port: u16,
    arrivals: Arc<Mutex<Vec<Instant>>>,
}

impl Model {
    /// Listens, and answers everybody.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let arrivals: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let seen = Arc::clone(&arrivals);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                thread::spawn(move || serve(stream, &seen));
            }
        });
        Ok(Self { port, arrivals })
    }

    /// Where it is.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// When the first byte of each question arrived, since this was asked last.
    pub fn arrivals(&self) -> Vec<Instant> {
        std::mem::take(&mut self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn serve(stream: TcpStream, arrivals: &Mutex<Vec<Instant>>) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    while !reader.fill_buf()?.is_empty() {
        let arrived = Instant::now();
        let question = read(&mut reader)?;
        arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(arrived);
        writer.write_all(answer(&question).as_bytes())?;
    }
    Ok(())
}

fn read(reader: &mut BufReader<TcpStream>) -> Result<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().context("a length")?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body).unwrap_or_default())
}

fn answer(question: &Value) -> String {
    let messages = question["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let said = messages.iter().filter(|message| message["role"] == "assistant").count();
    let text = messages.iter().map(|message| message["content"].to_string()).find(|content| content.contains(CALLS));
    let wanted = text.as_deref().and_then(number).unwrap_or(0);
    let (block, delta, stop) = match said < wanted {
        true => {
            // Claude Code writes it with a capital.
            let tools = question["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
            let name = if tools.iter().any(|tool| tool["name"] == "Bash") { "Bash" } else { "bash" };
            // Who does the same again and again is stopped.
            let input = json!({ "command": format!(": {said}"), "description": "Working" }).to_string();
            let block = json!({ "type": "tool_use", "id": format!("toolu_{said}"), "name": name, "input": {} });
            (block, json!({ "type": "input_json_delta", "partial_json": input }), "tool_use")
        }
        false => (json!({ "type": "text", "text": "" }), json!({ "type": "text_delta", "text": LAST }), "end_turn"),
    };
    let message = json!({ "id": format!("msg_{said}"), "type": "message", "role": "assistant", "model": question["model"],
        "content": [], "stop_reason": null, "usage": { "input_tokens": 10, "output_tokens": 1 } });
    let events = [
        json!({ "type": "message_start", "message": message }),
        json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": { "output_tokens": 10 } }),
        json!({ "type": "message_stop" }),
    ];
    let event = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default());
    let body: String = events.iter().map(event).collect();
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn number(text: &str) -> Option<usize> {
    let (_, after) = text.split_once(CALLS)?;
    after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}
