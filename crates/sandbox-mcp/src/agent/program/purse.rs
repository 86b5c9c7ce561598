//! What a program inside may spend on its model. The way out asks before each request and tells what each answer cost, so
//! it does not matter what the program says about itself.
//!
//! A request sets aside the most that it can cost before it goes out: what it reads, by its size, and the longest answer
//! that it asks for. Where that is more than what is left it waits for those under way, or is made shorter, or is refused.
//! Until the first answer has shown how many tokens a request really has, they go one after the other. An answer that ends
//! before it has told its cost counts as what was set aside: whoever breaks it off would not pay otherwise.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sandbox_egress::{Basis, Follower, Leave, Leaving, NoLeave, Question, Spent};
use tokio::sync::{Notify, mpsc::UnboundedSender};

use super::question::{self, Asks, Keeping, Wanted};
use crate::{
    agent::{Bill, Budget, Tokens, dollars, model::Length},
    config::{ModelApi, ModelSetting, Price},
};

/// Tokens in a byte of a request, until something is known.
const RATIO: f64 = 0.5;
/// What may be known of that.
const RATIOS: std::ops::RangeInclusive<f64> = 0.25..=1.0;
/// A shorter answer is worth nothing.
const SHORTEST: u64 = 256;

/// Counts for one task.
pub(super) struct Purse {
    budget: Budget,
    model: ModelSetting,
    /// Which model the task is meant for.
    name: String,
    told: UnboundedSender<Told>,
    state: Mutex<State>,
    /// Something has changed for those who wait.
    changed: Notify,
}

/// What whoever looks after the program is told.
#[derive(Debug)]
pub(super) enum Told {
    /// An answer cost this.
    Spent { spent: Spent, model: String, tokens: Tokens },
    /// The model did not answer well, so often in a row.
    Failed { why: String, times: u32 },
    /// The budget is used up.
    Empty(String),
}

#[derive(Default)]
struct State {
    bill: Bill,
    next: u64,
    /// Requests that are under way.
    under_way: HashMap<u64, UnderWay>,
    /// How many tokens a byte of a request had at most.
    ratio: Option<f64>,
    /// Since when an answer is waited for, or the next piece of one.
    waiting: Option<Instant>,
    failures: u32,
    closed: bool,
}

/// One request.
#[derive(Default)]
struct UnderWay {
    /// Nothing if it costs nothing.
    reserved: Option<Reserved>,
    status: Option<u16>,
    /// What an answer told that ended before its cost was whole.
    begun: Option<Spent>,
    /// Whether what it cost is known, or that it cost nothing.
    settled: bool,
}

/// What a request may cost at most.
#[derive(Clone)]
struct Reserved {
    model: String,
    price: Option<Price>,
    bytes: u64,
    tokens: Tokens,
    keeping: Keeping,
}

/// Whether a request may go out.
enum Fits {
    /// With an answer of at most so many tokens, if that is less than it wants.
    Yes(Reserved, Option<u64>),
    /// When others have been answered.
    Later,
    Never(String),
}

impl Purse {
    pub(super) fn new(budget: Budget, model: ModelSetting, name: String, told: UnboundedSender<Told>) -> Self {
        Self { budget, model, name, told, state: Mutex::default(), changed: Notify::new() }
    }

    /// For how long the model has said nothing though it was asked.
    pub(super) fn silence(&self) -> Duration {
        self.state().waiting.map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Nothing may be spent any longer. What it has cost; what is still under way counts as the most that it can be.
    pub(super) fn close(&self) -> Bill {
        let mut state = self.state();
        state.closed = true;
        let open: Vec<_> = state.under_way.values_mut().filter_map(UnderWay::settle).collect();
        for (reserved, most) in open {
            self.count(&mut state, &most, Some(&reserved));
        }
        self.changed.notify_waiters();
        state.bill.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first of these whose price is known, else the one that was meant: servers call a model by more names than one.
    fn priced<'a>(&'a self, names: [Option<&'a str>; 2]) -> (String, Option<Price>) {
        let known = names.into_iter().flatten().find(|name| self.model.price(name).is_some());
        let name = known.unwrap_or(&self.name);
        (name.to_owned(), self.model.price(name))
    }

    /// Where money is counted, a model that nobody knows the price of is not asked: it may be dearer than all others.
    fn knows_price(&self, asks: &Asks<'_>) -> Result<(), NoLeave> {
        let Asks::Answer(Wanted { model: Some(model), .. }) = asks else { return Ok(()) };
        if *model == self.name || self.model.price(&self.name).is_none() || self.model.price(model).is_some() {
            return Ok(());
        }
        let model: String = model.chars().take(100).collect();
        Err(NoLeave::Unfit(format!(
            "the price of the model {model} is not known, and this task has a budget: ask {}, or have the operator set \
             [prices.\"{model}\"]",
            self.name
        )))
    }

    /// Lets a request go out if it may, and says so; nothing if it has to wait.
    fn admit(&self, asks: &Asks<'_>) -> Option<Result<Leave, NoLeave>> {
        let mut state = self.state();
        if state.closed {
            let over = "the task that this model was lent for is over".to_owned();
            return Some(Err(NoLeave::TooDear(over)));
        }
        let (reserved, shorter) = match asks {
            Asks::Free => (None, None),
            Asks::Answer(wanted) => match self.fits(&state, wanted) {
                Fits::Yes(reserved, shorter) => {
                    (Some(reserved), shorter.map(|most| wanted.shortened(most, self.length())))
                }
                Fits::Later => return None,
                Fits::Never(why) => {
                    let _ = self.told.send(Told::Empty(why.clone()));
                    return Some(Err(NoLeave::TooDear(why)));
                }
            },
        };
        state.next += 1;
        let number = state.next;
        state.under_way.insert(number, UnderWay { reserved, ..UnderWay::default() });
        state.waiting.get_or_insert_with(Instant::now);
        Some(Ok(Leave { number, body: shorter }))
    }

    fn fits(&self, state: &State, wanted: &Wanted<'_>) -> Fits {
        if let Some(why) = state.bill.exhausted(&self.budget) {
            return Fits::Never(why);
        }
        let others: Vec<&Reserved> = state.under_way.values().filter_map(|other| other.reserved.as_ref()).collect();
        let later = !others.is_empty();
        if later && (state.bill.turns == 0 || state.bill.turns + others.len() as u32 >= self.budget.turns) {
            return Fits::Later;
        }
        let (model, price) = self.priced([wanted.model.as_deref(), None]);
        let (keeping, price) = (wanted.keeping, price.map(|price| wanted.keeping.price(price)));
        let reading = wanted.reading(state.ratio.unwrap_or(RATIO), self.model.context);
        let held = |other: &&Reserved| other.tokens.all();
        let left =
            self.budget.tokens.saturating_sub(state.bill.tokens.all()).saturating_sub(others.iter().map(held).sum());
        let mut room = left.saturating_sub(reading);
        let mut reserved =
            Reserved { model, price, bytes: wanted.bytes_of_text(), tokens: reads(price, reading), keeping };
        if let Some(price) = price.filter(|price| price.output > 0.0) {
            let left = self.budget.usd
                - state.bill.usd.unwrap_or_default()
                - others.iter().map(|other| other.usd()).sum::<f64>();
            room = room.min(((left - reserved.usd()).max(0.0) / price.output * 1e6) as u64);
        }
        let most = wanted.most.unwrap_or(self.model.answer);
        let least = SHORTEST.min(most).max(wanted.least);
        if room < most && later {
            return Fits::Later;
        }
        if room < least {
            reserved.tokens.output = least;
            return Fits::Never(self.too_dear(state, &reserved));
        }
        reserved.tokens.output = most.min(room);
        Fits::Yes(reserved, (room < most || wanted.most.is_none()).then_some(most.min(room)))
    }

    /// By which name the model's server knows the length of an answer.
    fn length(&self) -> &'static str {
        match self.model.api {
            ModelApi::Messages => "max_tokens",
            ModelApi::Chat => Length::of(&self.model.upstream.target.to_string()).name(),
        }
    }

    fn too_dear(&self, state: &State, next: &Reserved) -> String {
        let (tokens, budget) = (state.bill.tokens.all(), &self.budget);
        let (has, may, most) = match (next.price, state.bill.usd) {
            (Some(_), spent) if tokens.saturating_add(next.tokens.all()) <= budget.tokens => {
                (dollars(spent.unwrap_or_default()), dollars(next.usd()), dollars(budget.usd))
            }
            _ => (
                format!("{tokens} tokens"),
                format!("{} tokens", next.tokens.all()),
                format!("{} tokens", budget.tokens),
            ),
        };
        format!(
            "the task was stopped: it has cost {has}, the next answer may cost {may} more, and its budget is {most}. What it \
             made is kept; give it a larger budget, or a smaller task"
        )
    }

    fn failure(&self, state: &mut State, why: String) {
        state.failures += 1;
        let _ = self.told.send(Told::Failed { why, times: state.failures });
    }

    fn count(&self, state: &mut State, spent: &Spent, asked: Option<&Reserved>) {
        let tokens = Tokens {
            input: spent.input,
            output: spent.output,
            cache_read: spent.cache_read,
            cache_written: spent.cache_written,
        };
        let (model, price) = self.priced([spent.model.as_deref(), asked.map(|asked| asked.model.as_str())]);
        let keeping = asked.map(|asked| asked.keeping).unwrap_or_default();
        state.bill.add(&model, tokens, price.map(|price| keeping.price(price)));
        let _ = self.told.send(Told::Spent { spent: spent.clone(), model, tokens });
        if let Some(why) = state.bill.exhausted(&self.budget) {
            let _ = self.told.send(Told::Empty(why));
        }
    }
}

impl Reserved {
    fn usd(&self) -> f64 {
        self.price.map(|price| self.tokens.usd(&price)).unwrap_or_default()
    }

    /// What is counted where nobody has told what a request cost, or not all of it.
    fn most(&self, begun: Option<Spent>) -> Spent {
        let Tokens { input, output, cache_read, cache_written } = self.tokens;
        let (service, model) = ("model".to_owned(), Some(self.model.clone()));
        let unsaid = Spent { service, model, input, output, cache_read, cache_written, basis: Basis::Estimated };
        match begun {
            // An estimate knows of no cache: what was read was told.
            Some(begun) if begun.cache_read > 0 || begun.cache_written > 0 || read(&begun) > read(&unsaid) => {
                Spent { output: begun.output.max(output), ..begun }
            }
            begun => Spent { output: begun.map_or(0, |begun| begun.output).max(output), ..unsaid },
        }
    }
}

impl UnderWay {
    /// The most that it can have cost, unless that is settled already.
    fn settle(&mut self) -> Option<(Reserved, Spent)> {
        if std::mem::replace(&mut self.settled, true) {
            return None;
        }
        let reserved = self.reserved.take()?;
        let most = reserved.most(self.begun.take());
        Some((reserved, most))
    }
}

/// All that the model read.
fn read(spent: &Spent) -> u64 {
    spent.input.saturating_add(spent.cache_read).saturating_add(spent.cache_written)
}

/// So many tokens, at the highest price for reading.
fn reads(price: Option<Price>, tokens: u64) -> Tokens {
    let dear = price.is_some_and(|price| price.cache_write.is_some_and(|write| write > price.input));
    match dear {
        true => Tokens { cache_written: tokens, ..Tokens::default() },
        false => Tokens { input: tokens, ..Tokens::default() },
    }
}

impl Follower for Purse {
    fn ask<'a>(&'a self, question: Question<'a>) -> Leaving<'a> {
        Box::pin(async move {
            let asks = question::read(question).map_err(NoLeave::Unfit)?;
            self.knows_price(&asks)?;
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                // What changes from now on is not missed.
                changed.as_mut().enable();
                if let Some(decided) = self.admit(&asks) {
                    return decided;
                }
                changed.await;
            }
        })
    }

    fn answered(&self, number: u64, status: u16) {
        let mut state = self.state();
        state.waiting = Some(Instant::now());
        if let Some(request) = state.under_way.get_mut(&number) {
            request.status = Some(status);
        }
        match status {
            200..300 => state.failures = 0,
            429 => self.failure(&mut state, "429: too many requests at once, says the model's server".to_owned()),
            529 | 503 => self.failure(&mut state, format!("{status}: the model's server has too much to do")),
            other => self.failure(&mut state, format!("the model's server answers {other}")),
        }
    }

    fn heard(&self, _: u64, _: usize) {
        self.state().waiting = Some(Instant::now());
    }

    fn spent(&self, number: u64, spent: &Spent) {
        let mut state = self.state();
        let (mut asked, closed) = (None, state.closed);
        if let Some(request) = state.under_way.get_mut(&number) {
            // What came after the task's end was counted there.
            if request.settled && closed {
                return;
            }
            // Breaking off is no way not to pay.
            if spent.basis == Basis::Estimated && request.reserved.is_some() {
                request.begun = Some(spent.clone());
                return;
            }
            request.settled = true;
            asked = request.reserved.clone();
        }
        let bytes = asked.as_ref().map_or(0, |asked| asked.bytes);
        if bytes > 0 && spent.basis == Basis::Told {
            let ratio = (read(spent) as f64 / bytes as f64).clamp(*RATIOS.start(), *RATIOS.end());
            state.ratio = Some(state.ratio.unwrap_or_default().max(ratio));
        }
        self.count(&mut state, spent, asked.as_ref());
    }

    fn failed(&self, number: u64, why: &str) {
        let mut state = self.state();
        if let Some(request) = state.under_way.get_mut(&number) {
            request.settled = true;
        }
        self.failure(&mut state, format!("the model's server did not answer: {why}"));
    }

    fn over(&self, number: u64) {
        let mut state = self.state();
        let Some(mut request) = state.under_way.remove(&number) else { return };
        // Whoever goes before there is an answer may have had one written all the same; an error costs nothing.
        let may_cost = matches!(request.status, None | Some(200..300));
        if let Some((reserved, most)) = request.settle().filter(|_| may_cost) {
            self.count(&mut state, &most, Some(&reserved));
        }
        if state.under_way.is_empty() {
            state.waiting = None;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    fn unreached(&self, why: &str) {
        let mut state = self.state();
        state.waiting.get_or_insert_with(Instant::now);
        self.failure(&mut state, format!("the model's server was not reached: {why}"));
    }
}

#[cfg(test)]
#[path = "purse_tests.rs"]
mod tests;
