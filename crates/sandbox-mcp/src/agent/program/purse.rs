//! What a program inside may spend on its model. The way out asks before each request and tells what each answer cost, so
//! it does not matter what the program says about itself.
//!
//! Several requests at once are let through only where each of them could cost as much as the dearest so far: what is not
//! known yet counts as spent.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sandbox_egress::{Follower, Spent};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    agent::{Bill, Budget, Tokens},
    config::ModelSetting,
};

/// Until an answer has cost more, each request counts as this part of the budget.
const SHARE: u64 = 10;

/// Counts for one task.
pub(super) struct Purse {
    budget: Budget,
    model: ModelSetting,
    /// Which model the task is meant for.
    name: String,
    told: UnboundedSender<Told>,
    state: Mutex<State>,
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
    /// Requests that are under way.
    under_way: u32,
    /// The dearest answer so far.
    dearest: (f64, u64),
    /// Since when an answer is waited for, or the next piece of one.
    waiting: Option<Instant>,
    failures: u32,
    closed: bool,
}

impl Purse {
    pub(super) fn new(budget: Budget, model: ModelSetting, name: String, told: UnboundedSender<Told>) -> Self {
        Self { budget, model, name, told, state: Mutex::default() }
    }

    /// For how long the model has said nothing though it was asked.
    pub(super) fn silence(&self) -> Duration {
        self.state().waiting.map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Nothing may be spent any longer.
    pub(super) fn close(&self) {
        self.state().closed = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, why: String) {
        let mut state = self.state();
        state.failures += 1;
        let _ = self.told.send(Told::Failed { why, times: state.failures });
    }
}

impl State {
    /// Whether one more request may be too much, given those that are under way.
    fn is_tight(&self, budget: &Budget) -> bool {
        let open = self.under_way;
        let usd = self.dearest.0.max(budget.usd / SHARE as f64) * f64::from(open + 1);
        let tokens = self.dearest.1.max(budget.tokens / SHARE).saturating_mul(u64::from(open + 1));
        open > 0
            && (self.bill.turns + open >= budget.turns
                || self.bill.usd.is_some_and(|spent| spent + usd > budget.usd)
                || self.bill.tokens.all().saturating_add(tokens) > budget.tokens)
    }
}

impl Follower for Purse {
    fn ask(&self) -> Result<(), String> {
        let mut state = self.state();
        if state.closed {
            return Err("the task that this model was lent for is over".to_owned());
        }
        if let Some(why) = state.bill.exhausted(&self.budget) {
            let _ = self.told.send(Told::Empty(why.clone()));
            return Err(why);
        }
        if state.is_tight(&self.budget) {
            return Err(
                "other requests are under way, and the budget may not pay for one more: ask again when they have \
                        been answered"
                    .to_owned(),
            );
        }
        state.under_way += 1;
        state.waiting.get_or_insert_with(Instant::now);
        Ok(())
    }

    fn answered(&self, status: u16) {
        self.state().waiting = Some(Instant::now());
        match status {
            200..300 => self.state().failures = 0,
            429 => self.failed("429: too many requests at once, says the model's server".to_owned()),
            529 | 503 => self.failed(format!("{status}: the model's server has too much to do")),
            other => self.failed(format!("the model's server answers {other}")),
        }
    }

    fn heard(&self, _: usize) {
        self.state().waiting = Some(Instant::now());
    }

    fn spent(&self, spent: &Spent) {
        let tokens = Tokens {
            input: spent.input,
            output: spent.output,
            cache_read: spent.cache_read,
            cache_written: spent.cache_written,
        };
        let model = spent.model.clone().unwrap_or_else(|| self.name.clone());
        // Whoever asks a model of which nobody knows the price pays that of the one that was meant.
        let priced = if self.model.price(&model).is_some() { model } else { self.name.clone() };
        let mut state = self.state();
        let price = self.model.price(&priced);
        state.bill.add(&priced, tokens, price);
        let usd = price.map(|price| tokens.usd(&price)).unwrap_or_default();
        state.dearest = (state.dearest.0.max(usd), state.dearest.1.max(tokens.all()));
        let _ = self.told.send(Told::Spent { spent: spent.clone(), model: priced, tokens });
        if let Some(why) = state.bill.exhausted(&self.budget) {
            let _ = self.told.send(Told::Empty(why));
        }
    }

    fn over(&self) {
        let mut state = self.state();
        state.under_way = state.under_way.saturating_sub(1);
        if state.under_way == 0 {
            state.waiting = None;
        }
    }

    fn unreached(&self, why: &str) {
        self.state().waiting.get_or_insert_with(Instant::now);
        self.failed(format!("the model's server was not reached: {why}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use sandbox_egress::Basis;
    use tokio::sync::mpsc;

    use super::*;
    use crate::config::{Flags, Settings, Typed};

    const BUDGET: Budget = Budget { turns: 100, usd: 1.0, tokens: 1_000_000 };

    fn purse(budget: Budget) -> (Purse, mpsc::UnboundedReceiver<Told>) {
        let mut typed = Typed::default();
        typed.add_flags(&Flags { state: Some("/nowhere/state".into()), ..Flags::default() }).unwrap();
        let (sender, told) = mpsc::unbounded_channel();
        (Purse::new(budget, Settings::from_typed(typed).unwrap().model, "claude-opus-5-5".to_owned(), sender), told)
    }

    fn answer(output: u64, model: &str) -> Spent {
        let (service, model, basis) = ("model".to_owned(), Some(model.to_owned()), Basis::Told);
        Spent { service, model, input: 0, output, cache_read: 0, cache_written: 0, basis }
    }

    #[test]
    fn when_the_budget_is_used_up_nothing_more_is_asked() {
        let (purse, mut told) = purse(BUDGET);
        purse.ask().unwrap();
        purse.answered(200);
        purse.spent(&answer(60_000, "claude-opus-5-5"));
        purse.over();
        assert!(matches!(told.try_recv().unwrap(), Told::Spent { .. }));
        assert!(matches!(told.try_recv().unwrap(), Told::Empty(why) if why.contains("$1.20")));
        assert!(purse.ask().unwrap_err().contains("its budget is $1.00"));
    }

    #[test]
    fn a_model_without_a_price_is_not_free() {
        let (purse, mut told) = purse(BUDGET);
        purse.spent(&answer(60_000, "unheard-of"));
        assert!(matches!(told.try_recv().unwrap(), Told::Spent { model, .. } if model == "claude-opus-5-5"));
        assert!(purse.ask().is_err());
    }

    #[test]
    fn many_at_once_cannot_spend_more_than_there_is() {
        let (purse, _told) = purse(BUDGET);
        let allowed = (0..100).filter(|_| purse.ask().is_ok()).count();
        assert_eq!(allowed, 10, "each counts as a tenth until something is known");
        (0..allowed).for_each(|_| purse.over());
        purse.ask().unwrap();
        purse.spent(&answer(20_000, "claude-opus-5-5"));
        purse.over();
        let allowed = (0..100).filter(|_| purse.ask().is_ok()).count();
        assert_eq!(allowed, 1, "$0.40 are spent, and the next may cost as much again");
    }

    #[test]
    fn silence_is_measured_while_somebody_waits() {
        let (purse, mut told) = purse(BUDGET);
        assert_eq!(purse.silence(), Duration::ZERO);
        purse.ask().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(purse.silence() >= Duration::from_millis(20));
        purse.heard(1);
        assert!(purse.silence() < Duration::from_millis(20));
        purse.over();
        assert_eq!(purse.silence(), Duration::ZERO);
        purse.unreached("refused");
        purse.unreached("refused");
        assert!(matches!(told.try_recv().unwrap(), Told::Failed { times: 1, .. }));
        assert!(matches!(told.try_recv().unwrap(), Told::Failed { times: 2, .. }));
        purse.close();
        assert!(purse.ask().unwrap_err().contains("over"));
    }
}
