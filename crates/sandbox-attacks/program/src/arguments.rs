//! What the suite tells an attack: `KEY=VALUE`, a key may come often.

/// All that was said.
pub struct Arguments(Vec<(String, String)>);

impl Arguments {
    /// Words without `=` are flags with an empty value.
    pub fn parse(words: impl Iterator<Item = String>) -> Self {
        let pair = |word: String| match word.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => (word, String::new()),
        };
        Self(words.map(pair).collect())
    }

    /// The first value of this key.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.all(key).next()
    }

    /// Every value of this key.
    pub fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// A number, or what is usual.
    pub fn number(&self, key: &str, usual: u64) -> u64 {
        self.text(key).and_then(|text| text.parse().ok()).unwrap_or(usual)
    }

    /// A mark that must not be found. It is handed over backwards, so that no process of the suite's own shows it.
    pub fn mark(&self) -> String {
        self.text("mark").unwrap_or("no mark was given").chars().rev().collect()
    }
}
