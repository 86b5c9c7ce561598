//! Turn by turn: the model is asked, its tools are run, and what they say goes back, until it has finished.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{compaction, prompt, size, tools, watchdog::Watchdog};
use crate::agent::{
    Assignment, Finished, Note, WorkError, Worker,
    model::{Ask, Failure, Model, ModelError, Piece, Reply, Stop, Tries},
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
                    self.keep(&reply.content);
                    // Somebody said something in the last moment.
                    if !self.worker.mailbox().is_empty() {
                        continue;
                    }
                    self.remember();
                    return Ok(Finished { output });
                }
                Stop::Pause if pauses < PAUSES => {
                    pauses += 1;
                    self.keep(&reply.content);
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

    /// One question, asked again where that may help.
    async fn ask(&mut self) -> Result<Reply, Failed> {
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

    /// Asks about another conversation than this one's own. What came of each attempt is paid for before the next one.
    pub(super) async fn ask_about(&self, messages: &[Value]) -> Result<Reply, Failed> {
        let mut tries = Tries::default();
        loop {
            let Failure { error, tokens } = match self.attempt(messages, &tries).await? {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            if tokens.all() > 0 {
                self.worker.spent(&self.name, tokens).await;
            }
            if error.is_too_long() {
                return Err(Failed::TooLong);
            }
            let Some(after) = self.model.again(&error, &mut tries) else { return Err(Failed::Model(error)) };
            // Nothing has to be waited for where only the question was wrong.
            if !after.is_zero() {
                self.worker.note(Note::Retry { attempt: tries.next(), after, why: error.to_string() }).await;
                tokio::time::sleep(after).await;
            }
        }
    }

    /// How long the next answer may be. Nothing is asked that the budget does not pay for.
    fn room(&self) -> Result<u64, WorkError> {
        self.worker.may_go_on()?;
        let (bill, price) = (self.worker.bill(), self.worker.price(&self.name));
        let most = self.worker.settings().model.answer;
        bill.room(self.worker.budget(), self.reading, price, most).ok_or_else(|| {
            WorkError::Budget(format!(
                "the task was stopped: the next question to the model could cost more than its budget has left ({so_far} so \
                 far). What it made is kept; give it a larger budget, or a smaller task",
                so_far = bill.in_words()
            ))
        })
    }

    async fn attempt(&self, messages: &[Value], tries: &Tries) -> Result<Result<Reply, Failure>, Failed> {
        let most = self.room().map_err(Failed::Work)?;
        let ask = Ask { model: &self.name, system: &self.system, tools: &self.tools, messages, most };
        let (sender, mut pieces) = mpsc::unbounded_channel();
        let asking = self.model.ask(&ask, tries, &sender);
        tokio::pin!(asking);
        let answer = loop {
            tokio::select! {
                answer = &mut asking => break answer,
                Some(piece) = pieces.recv() => self.tell(piece).await,
            }
        };
        while let Ok(piece) = pieces.try_recv() {
            self.tell(piece).await;
        }
        if let Ok(reply) = &answer {
            let model = if reply.model.is_empty() { &self.name } else { &reply.model };
            // The price that is known may be that of the name that was asked for.
            let model = if self.worker.price(model).is_some() { model } else { &self.name };
            self.worker.spent(model, reply.tokens).await;
        }
        Ok(answer)
    }

    async fn tell(&self, piece: Piece) {
        let note = match piece {
            Piece::Thinking(text) => Note::Thinking { text },
            Piece::Text(text) => Note::Text { text },
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
        self.keep(&reply.content);
        let results = json!({"role": "user", "content": results});
        self.reading += size::tokens(std::slice::from_ref(&results));
        add(&mut self.messages, results);
        self.remember();
    }

    /// Tools of an answer that was cut off are not run: their arguments may be cut off too.
    fn go_on_after_cut(&mut self, reply: &Reply) {
        let mut content = reply.content.clone();
        content.retain(|block| block["type"] != "tool_use");
        self.keep(&content);
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

    fn keep(&mut self, content: &[Value]) {
        add(&mut self.messages, json!({"role": "assistant", "content": content}));
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
    let kept = memory["messages"].as_array().cloned().unwrap_or_default();
    let mut messages = Vec::new();
    for mut message in kept.into_iter().filter(Value::is_object) {
        if let Some(blocks) = message["content"].as_array_mut().filter(|_| memory["model"] != model) {
            blocks.retain(|block| !is_thought(block));
        }
        add(&mut messages, message);
    }
    messages
}

fn is_thought(block: &Value) -> bool {
    matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
}

/// One more message of the person.
fn say(messages: &mut Vec<Value>, text: &str) {
    add(messages, json!({"role": "user", "content": text}));
}

/// One more message; two of the same in a row are one. Servers refuse a conversation for ever that holds a message without
/// content, a text without words, or an answer that ends with a thought: none of these is kept.
fn add(messages: &mut Vec<Value>, mut message: Value) {
    let mut content = blocks(message["content"].take());
    content.retain(|block| !is_blank(block));
    while message["role"] == "assistant" && content.last().is_some_and(is_thought) {
        content.pop();
    }
    if content.is_empty() {
        return;
    }
    match messages.last_mut().filter(|last| last["role"] == message["role"]) {
        Some(last) => {
            let mut whole = blocks(last["content"].take());
            whole.append(&mut content);
            last["content"] = Value::Array(whole);
        }
        None => {
            message["content"] = Value::Array(content);
            messages.push(message);
        }
    }
}

/// A message's content, however it was written.
fn blocks(content: Value) -> Vec<Value> {
    match content {
        Value::Array(blocks) => blocks,
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        _ => Vec::new(),
    }
}

fn is_blank(block: &Value) -> bool {
    block["type"] == "text" && block["text"].as_str().is_none_or(|text| text.trim().is_empty())
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

    #[test]
    fn an_answer_without_words_is_not_kept_and_the_conversation_goes_on() {
        let thought = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
        let nothing = [json!([]), json!([{"type": "text", "text": " \n"}]), json!([thought]), json!("")];
        for content in nothing {
            let mut messages = Vec::new();
            say(&mut messages, "first");
            add(&mut messages, json!({"role": "assistant", "content": content}));
            say(&mut messages, "");
            say(&mut messages, "second");
            let both = json!([{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]);
            assert_eq!(messages, [json!({"role": "user", "content": both})]);
        }
        let mut messages = Vec::new();
        let text = |text: &str| json!({"type": "text", "text": text});
        let call = json!({"type": "tool_use", "id": "t", "name": "bash", "input": {}});
        add(&mut messages, json!({"role": "assistant", "content": [thought, text(""), call]}));
        assert_eq!(messages[0]["content"], json!([thought, call]));
    }

    #[test]
    fn a_conversation_that_was_kept_with_an_empty_answer_can_be_gone_on_with() {
        let memory = json!({"model": "a", "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "assistant", "content": []}]});
        let mut messages = earlier(&memory, "a");
        say(&mut messages, "y");
        assert_eq!((messages.len(), messages[0]["content"].as_array().unwrap().len()), (1, 2));
    }
}
