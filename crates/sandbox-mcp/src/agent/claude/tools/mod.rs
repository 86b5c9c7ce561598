//! The model's tools: a shell, an editor that shows images too, and what concerns people. What they are given comes from a
//! model and may be anything; what they give back says what to do about it.

mod bash;
mod editor;
mod people;

use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{
    agent::{Note, WorkError, Worker, words},
    sandboxes::State,
};

/// So much of arguments and results is written down.
const SHOWN: usize = 2000;
/// The longest text that a model gets to see at once.
const LONGEST: usize = 30_000;

/// What a tool says.
pub(super) struct Outcome {
    blocks: Vec<Value>,
    well: bool,
}

impl Outcome {
    /// It worked.
    fn text(text: impl Into<String>) -> Self {
        Self { blocks: vec![json!({"type": "text", "text": text.into()})], well: true }
    }

    /// It did not, for this reason.
    fn failed(text: impl Into<String>) -> Self {
        Self { well: false, ..Self::text(text) }
    }

    /// An image, and a word about it.
    fn image(kind: &str, data: &str, text: String) -> Self {
        let source = json!({"type": "base64", "media_type": kind, "data": data});
        let blocks = vec![json!({"type": "text", "text": text}), json!({"type": "image", "source": source})];
        Self { blocks, well: true }
    }

    fn summary(&self) -> String {
        let texts: Vec<&str> = self.blocks.iter().filter_map(|block| block["text"].as_str()).collect();
        texts.join("\n").chars().take(SHOWN).collect()
    }
}

/// All tools, as models are told of them. They are the same for every model, so that every server understands them.
pub(super) fn definitions() -> Vec<Value> {
    let mut tools = vec![bash::definition(), editor::definition()];
    tools.extend(people::definitions());
    tools
}

/// Runs one tool. A failure is told to the model, unless the sandbox itself is gone. Tools that change files wait for each other.
pub(super) async fn call(
    worker: &Worker<'_>,
    block: &Value,
    unreadable: &[String],
    in_order: &Mutex<()>,
) -> Result<Value, WorkError> {
    let began = Instant::now();
    let (id, name) = (text(block, "id"), text(block, "name"));
    let input = &block["input"];
    // A command is written down as it is: the beginning of a long one would be no JSON.
    let shown = if name == "bash" { text(input, "command") } else { input.to_string() };
    let (shown, words) = (shown.chars().take(SHOWN).collect(), words::of_call(&name, input));
    worker.note(Note::Call { call: id.clone(), tool: name.clone(), input: shown, words }).await;
    let outcome = match unreadable.contains(&id) {
        true => Ok(Outcome::failed("The arguments of this call are no JSON object. Call it again.")),
        false => match name.as_str() {
            "bash" => bash::run(worker, input).await,
            "str_replace_based_edit_tool" => {
                let _turn = in_order.lock().await;
                editor::edit(worker, input).await
            }
            "open_port" => people::open_port(worker, input).await,
            "request_access" => people::request_access(worker, input).await,
            "ask_person" => people::ask(worker, input).await,
            other => Ok(Outcome::failed(format!("There is no tool {}.", other.chars().take(60).collect::<String>()))),
        },
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) if is_over(worker, &error) => return Err(error),
        Err(error) => Outcome::failed(error.to_string()),
    };
    let seconds = (began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
    worker.note(Note::Result { call: id.clone(), well: outcome.well, summary: outcome.summary(), seconds }).await;
    let mut result = json!({"type": "tool_result", "tool_use_id": id, "content": outcome.blocks});
    if !outcome.well {
        result["is_error"] = json!(true);
    }
    Ok(result)
}

/// Whether nothing can be done in the sandbox any more.
fn is_over(worker: &Worker<'_>, error: &WorkError) -> bool {
    let ended = matches!(worker.session().state(), State::Ended { .. } | State::Frozen { .. });
    matches!(error, WorkError::Sandbox(_)) && ended || matches!(error, WorkError::Budget(_) | WorkError::Interrupted)
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

/// The beginning of a long text.
fn shortened(text: &str, hint: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}\n[… {} more bytes; {hint}]", &text[..end], text.len() - end),
        None => text.to_owned(),
    }
}
