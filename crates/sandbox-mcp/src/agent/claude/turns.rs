//! Turn by turn: the model is asked, its tools are run, and what they say goes back, until it has finished.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{compaction, prompt, size, tools, watchdog::Watchdog};
use crate::agent::{
    Assignment, Finished, Note, WorkError, Worker,
    model::{Ask, Model, ModelError, Piece, Reply, Stop},
};

/// A conversation is summed up when it takes more of the model's context than this.
const FULL: f64 = 0.8;
/// Answers that were cut off in a row, before we give up.
const CUT_OFF: u32 = 3;
/// Answers in a row with which the model only wanted to go on.
const PAUSES: u32 = 10;

/// A task on its way.
pub(super) struct Turns<'t> {
    model: &'t Model,
    worker: &'t Worker<'t>,
    name: String,
    system: String,
    tools: Vec<Value>,
    pub(super) task: String,
    pub(super) messages: Vec<Value>,
    /// Tokens that the model will have to read, as near as can be told.
    reading: u64,
    watchdog: Watchdog,
    /// How long its last tools worked, until somebody has looked at what they changed.
    worked: Option<Duration>,
}

impl<'t> Turns<'t> {
    /// Begins with the task, after what was said before in this sandbox.
    pub fn begin(model: &'t Model, task: Assignment, worker: &'t Worker<'t>) -> Self {
        let name = task.model.clone().unwrap_or_else(|| worker.settings().model.name.clone());
        let system = prompt::system(worker);
        let tools = tools::definitions();
        let mut messages = task.memory.as_ref().map(|memory| earlier(memory, &name)).unwrap_or_default();
        let text = prompt::task(&task);
        say(&mut messages, &text);
        let reading = size::tokens(&messages) + (system.len() as u64 + size::bytes(&tools)) / 4;
        Self {
            model,
            worker,
            name,
            system,
            tools,
            task: text,
            messages,
            reading,
            watchdog: Watchdog::default(),
            worked: None,
        }
    }

    /// Works to the end.
    pub async fn work(&mut self) -> Result<Finished, WorkError> {
        let (mut cut_off, mut pauses) = (0, 0);
        // Whoever is stopped before the first answer is gone on with all the same.
        self.remember();
        loop {
            for message in self.worker.mailbox().take() {
                say(&mut self.messages, &message);
            }
            if self.reading as f64 > self.worker.settings().model.context as f64 * FULL {
                self.sum_up().await?;
            }
            let reply = match self.ask().await {
                Err(Failed::TooLong) => {
                    self.sum_up().await?;
                    self.ask().await.map_err(Failed::into_work)?
                }
                reply => reply.map_err(Failed::into_work)?,
            };
            match &reply.stop {
                Stop::Tools => {
                    (cut_off, pauses) = (0, 0);
                    let results = self.use_tools(&reply).await?;
                    self.push_turn(&reply, results);
                }
                Stop::End => {
                    let output = reply.text();
                    self.push(json!({"role": "assistant", "content": reply.content}));
                    // Somebody said something in the last moment.
                    if !self.worker.mailbox().is_empty() {
                        continue;
                    }
                    self.remember();
                    return Ok(Finished { output });
                }
                Stop::Pause if pauses < PAUSES => {
                    pauses += 1;
                    self.push(json!({"role": "assistant", "content": reply.content}));
                }
                Stop::Length if cut_off < CUT_OFF => {
                    cut_off += 1;
                    self.go_on_after_cut(&reply);
                }
                Stop::Context => {
                    cut_off += 1;
                    if cut_off > CUT_OFF {
                        return Err(stopped("the conversation does not fit into the model's context any more"));
                    }
                    self.sum_up().await?;
                }
                Stop::Refusal => {
                    let said = reply.text();
                    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
                    return Err(stopped(&format!("the model will not do this{said}")));
                }
                Stop::Length => return Err(stopped("its answers are cut off again and again (model_answer_tokens)")),
                Stop::Pause => return Err(stopped("the model pauses again and again")),
                Stop::Other(reason) => {
                    return Err(stopped(&format!("the model stopped for a reason that is not known here ({reason})")));
                }
            }
        }
    }

    /// One question. Nothing is asked that the budget does not pay for.
    async fn ask(&mut self) -> Result<Reply, Failed> {
        self.worker.may_go_on().map_err(Failed::Work)?;
        let (messages, worked) = (std::mem::take(&mut self.messages), self.worked.take());
        // Which files are new is found out while the model thinks.
        let look = async {
            if let Some(worked) = worked {
                self.worker.look_for_changes(worked).await;
            }
        };
        let (reply, ()) = tokio::join!(self.ask_about(&messages), look);
        self.messages = messages;
        let reply = reply?;
        self.reading = reply.tokens.read().max(size::tokens(&self.messages) / 2) + reply.tokens.output;
        Ok(reply)
    }

    /// Asks about another conversation than this one's own.
    pub(super) async fn ask_about(&self, messages: &[Value]) -> Result<Reply, Failed> {
        let (bill, price) = (self.worker.bill(), self.worker.price(&self.name));
        let most = self.worker.settings().model.answer;
        let Some(most) = bill.room(self.worker.budget(), self.reading, price, most) else {
            let so_far = bill.in_words();
            let why = format!(
                "the task was stopped: the next question to the model could cost more than its budget has left ({so_far} so \
                 far). What it made is kept; give it a larger budget, or a smaller task"
            );
            return Err(Failed::Work(WorkError::Budget(why)));
        };
        let ask = Ask { model: &self.name, system: &self.system, tools: &self.tools, messages, most };
        let (sender, mut pieces) = mpsc::unbounded_channel();
        let asking = self.model.ask(&ask, &sender);
        tokio::pin!(asking);
        let reply = loop {
            tokio::select! {
                reply = &mut asking => break reply,
                Some(piece) = pieces.recv() => self.tell(piece).await,
            }
        };
        while let Ok(piece) = pieces.try_recv() {
            self.tell(piece).await;
        }
        let reply = reply.map_err(|error| match error.is_too_long() {
            true => Failed::TooLong,
            false => Failed::Model(error),
        })?;
        let model = if reply.model.is_empty() { &self.name } else { &reply.model };
        // The price that is known may be that of the name that was asked for.
        let model = if self.worker.price(model).is_some() { model } else { &self.name };
        self.worker.spent(model, reply.tokens).await;
        Ok(reply)
    }

    async fn tell(&self, piece: Piece) {
        let note = match piece {
            Piece::Thinking(text) => Note::Thinking { text },
            Piece::Text(text) => Note::Text { text },
            Piece::Retry { attempt, after, why } => Note::Retry { attempt, after, why },
        };
        self.worker.note(note).await;
    }

    /// Runs all tools that the model called, side by side.
    async fn use_tools(&mut self, reply: &Reply) -> Result<Vec<Value>, WorkError> {
        let began = Instant::now();
        let calls: Vec<&Value> = reply.content.iter().filter(|block| block["type"] == "tool_use").collect();
        let in_order = tokio::sync::Mutex::new(());
        let run = calls.iter().map(|call| tools::call(self.worker, call, &reply.unreadable, &in_order));
        let results = futures::future::join_all(run).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.worked = Some(began.elapsed());
        let mut results: Vec<Value> = results;
        match self.watchdog.look(&calls, &results) {
            Err(why) => return Err(stopped(&why)),
            Ok(Some(warning)) => results.push(json!({"type": "text", "text": warning})),
            Ok(None) => {}
        }
        Ok(results)
    }

    fn push_turn(&mut self, reply: &Reply, results: Vec<Value>) {
        self.push(json!({"role": "assistant", "content": reply.content}));
        let results = json!({"role": "user", "content": results});
        self.reading += size::tokens(std::slice::from_ref(&results));
        self.push(results);
        self.remember();
    }

    /// Tools of an answer that was cut off are not run: their arguments may be cut off too.
    fn go_on_after_cut(&mut self, reply: &Reply) {
        let whole = |block: &&Value| block["type"] != "tool_use";
        let content: Vec<&Value> = reply.content.iter().filter(whole).collect();
        if !content.is_empty() {
            self.push(json!({"role": "assistant", "content": content}));
        }
        say(&mut self.messages, prompt::CUT_OFF);
    }

    /// Makes room.
    async fn sum_up(&mut self) -> Result<(), WorkError> {
        self.worker.say("Summing up what was done, to make room").await;
        self.messages = compaction::shortened(self).await?;
        self.reading = size::tokens(&self.messages) + (self.system.len() as u64 + size::bytes(&self.tools)) / 4;
        self.remember();
        Ok(())
    }

    fn push(&mut self, message: Value) {
        self.messages.push(message);
    }

    fn remember(&self) {
        self.worker.remember(json!({"model": self.name, "messages": self.messages}));
    }
}

/// Why there is no answer.
pub(super) enum Failed {
    TooLong,
    Model(ModelError),
    Work(WorkError),
}

impl Failed {
    pub fn into_work(self) -> WorkError {
        match self {
            Self::TooLong => stopped("the conversation is too long for the model, also after it was summed up"),
            Self::Model(error) => WorkError::Agent(error.to_string()),
            Self::Work(error) => error,
        }
    }
}

fn stopped(why: &str) -> WorkError {
    WorkError::Agent(format!("the task was stopped: {why}"))
}

/// What was said before in this sandbox. Thoughts belong to the model that had them.
fn earlier(memory: &Value, model: &str) -> Vec<Value> {
    let mut messages = memory["messages"].as_array().cloned().unwrap_or_default();
    messages.retain(Value::is_object);
    if memory["model"] != model {
        for message in &mut messages {
            if let Some(blocks) = message["content"].as_array_mut() {
                blocks.retain(|block| !matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking")));
            }
        }
        messages.retain(|message| message["content"].as_array().is_none_or(|blocks| !blocks.is_empty()));
    }
    messages
}

/// One more message of the person; two of them in a row are one.
fn say(messages: &mut Vec<Value>, text: &str) {
    let block = json!({"type": "text", "text": text});
    match messages.last_mut().filter(|last| last["role"] == "user") {
        Some(last) => match last["content"].as_array_mut() {
            Some(blocks) => blocks.push(block),
            None => last["content"] = json!([{"type": "text", "text": last["content"]}, block]),
        },
        None => messages.push(json!({"role": "user", "content": [block]})),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_follow_up_goes_on_where_the_conversation_stands() {
        let mut messages = vec![json!({"role": "user", "content": "first"})];
        say(&mut messages, "second");
        assert_eq!((messages.len(), &messages[0]["content"][1]["text"]), (1, &json!("second")));
        messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": "ok"}]}));
        say(&mut messages, "third");
        assert_eq!((messages.len(), &messages[2]["role"]), (3, &json!("user")));
    }

    #[test]
    fn another_model_does_not_get_the_thoughts_of_the_first() {
        let memory = json!({"model": "a", "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "y"}]}]});
        assert_eq!(earlier(&memory, "a")[1]["content"].as_array().unwrap().len(), 2);
        assert_eq!(earlier(&memory, "b")[1]["content"], json!([{"type": "text", "text": "y"}]));
        assert_eq!(earlier(&json!(7), "b"), Vec::<Value>::new());
    }
}
