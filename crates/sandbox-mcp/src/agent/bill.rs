//! What a task has cost, and what it may cost.

use serde::{Deserialize, Serialize};

use crate::config::Price;

/// What a task may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Questions to the model.
    pub turns: u32,
    /// US dollars.
    pub usd: f64,
    /// Tokens, read and written, those from the cache too.
    pub tokens: u64,
}

/// What one answer of a model cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_written: u64,
}

impl Tokens {
    /// All that the model read.
    pub fn read(&self) -> u64 {
        self.input.saturating_add(self.cache_read).saturating_add(self.cache_written)
    }

    /// All together.
    pub fn all(&self) -> u64 {
        self.read().saturating_add(self.output)
    }

    /// What they cost.
    pub fn usd(&self, price: &Price) -> f64 {
        let of = |tokens: u64, price: f64| tokens as f64 / 1e6 * price;
        of(self.input, price.input)
            + of(self.output, price.output)
            + of(self.cache_read, price.cache_read.unwrap_or(price.input))
            + of(self.cache_written, price.cache_write.unwrap_or(price.input))
    }
}

/// What a task has cost so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    /// Answers of the model.
    pub turns: u32,
    /// Tokens of all of them.
    #[serde(flatten)]
    pub tokens: Tokens,
    /// US dollars; nothing where no price is known.
    pub usd: Option<f64>,
    /// Who answered last.
    pub model: Option<String>,
}

impl Bill {
    /// One more answer.
    pub fn add(&mut self, model: &str, tokens: Tokens, price: Option<Price>) {
        self.turns += 1;
        let sum = |total: &mut u64, more: u64| *total = total.saturating_add(more);
        sum(&mut self.tokens.input, tokens.input);
        sum(&mut self.tokens.output, tokens.output);
        sum(&mut self.tokens.cache_read, tokens.cache_read);
        sum(&mut self.tokens.cache_written, tokens.cache_written);
        if let Some(price) = price {
            self.usd = Some(self.usd.unwrap_or_default() + tokens.usd(&price));
        }
        self.model = Some(model.chars().take(100).collect());
    }

    /// Why no more may be spent.
    pub fn exhausted(&self, budget: &Budget) -> Option<String> {
        let spent = self.tokens.all();
        match self.usd {
            _ if self.turns >= budget.turns => Some(format!(
                "the task was stopped: it has asked the model {} times, which is all that it may (max_turns). \
                 What it made is kept",
                self.turns
            )),
            Some(usd) if usd >= budget.usd => Some(format!(
                "the task was stopped: it has cost {}, and its budget is {}. What it made is kept; give it a larger budget, \
                 or a smaller task",
                dollars(usd),
                dollars(budget.usd)
            )),
            _ if spent >= budget.tokens => Some(format!(
                "the task was stopped: it has used {spent} tokens, and its budget is {}. What it made is kept; give it a \
                 larger budget, or a smaller task",
                budget.tokens
            )),
            _ => None,
        }
    }

    /// How many tokens the next answer may have, if so many are read before. Nothing: not even a short one.
    pub fn room(&self, budget: &Budget, reading: u64, price: Option<Price>, most: u64) -> Option<u64> {
        let tokens = budget.tokens.saturating_sub(self.tokens.all()).saturating_sub(reading);
        let money = price.filter(|price| price.output > 0.0).map(|price| {
            // Reading is reckoned at the full price: what the cache saves is found out later.
            let left = budget.usd - self.usd.unwrap_or_default() - reading as f64 / 1e6 * price.input;
            (left.max(0.0) / price.output * 1e6) as u64
        });
        let room = tokens.min(money.unwrap_or(u64::MAX)).min(most);
        (room >= SHORTEST.min(most)).then_some(room)
    }

    /// In a few words.
    pub fn in_words(&self) -> String {
        let tokens = self.tokens.all();
        match self.usd {
            Some(usd) => format!("{}, {tokens} tokens", dollars(usd)),
            None => format!("{tokens} tokens"),
        }
    }
}

/// An answer that is shorter is worth nothing.
const SHORTEST: u64 = 256;

/// An amount as people write it.
pub fn dollars(amount: f64) -> String {
    if amount > 0.0 && amount < 0.1 { format!("${amount:.4}") } else { format!("${amount:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICE: Price = Price { input: 4.0, output: 20.0, cache_read: Some(0.2), cache_write: Some(5.0) };
    const BUDGET: Budget = Budget { turns: 10, usd: 1.0, tokens: 100_000 };

    #[test]
    fn every_kind_of_token_has_its_price() {
        let tokens = Tokens { input: 1_000_000, output: 100_000, cache_read: 1_000_000, cache_written: 100_000 };
        assert!((tokens.usd(&PRICE) - (4.0 + 2.0 + 0.2 + 0.5)).abs() < 1e-9);
        let plain = Price { cache_read: None, cache_write: None, ..PRICE };
        assert!((tokens.usd(&plain) - (4.0 + 2.0 + 4.0 + 0.4)).abs() < 1e-9);
    }

    #[test]
    fn each_budget_stops_and_is_named() {
        let mut bill = Bill::default();
        assert_eq!(bill.exhausted(&BUDGET), None);
        bill.add("m", Tokens { output: 60_000, ..Tokens::default() }, Some(PRICE));
        assert!(bill.exhausted(&BUDGET).is_some_and(|why| why.contains("$1.20") && why.contains("$1.00")));
        assert!(bill.exhausted(&Budget { turns: 1, ..BUDGET }).is_some_and(|why| why.contains("max_turns")));
        let tokens = Budget { usd: 9.0, tokens: 50_000, ..BUDGET };
        assert!(bill.exhausted(&tokens).is_some_and(|why| why.contains("60000 tokens")));
    }

    #[test]
    fn an_answer_is_as_long_as_what_is_left_pays_for() {
        let mut bill = Bill::default();
        assert_eq!(bill.room(&BUDGET, 0, Some(PRICE), 16_000), Some(16_000));
        bill.add("m", Tokens { output: 40_000, ..Tokens::default() }, Some(PRICE));
        assert_eq!(bill.room(&BUDGET, 0, Some(PRICE), 16_000), Some(9_999));
        assert_eq!(bill.room(&BUDGET, 50_000, Some(PRICE), 16_000), None);
        assert_eq!(bill.room(&BUDGET, 0, None, 16_000), Some(16_000), "tokens alone");
        assert_eq!(bill.room(&BUDGET, 59_900, None, 16_000), None);
    }
}
