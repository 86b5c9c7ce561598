//! A question to a person, and the words in which it is put.
//!
//! What is asked about comes from inside a sandbox, or from a model that reads what does: it is hostile text. It is
//! shown on one line, shortened, with everything that a screen could hide or reorder spelled out, and the agent's own
//! reason is marked as such.

use std::{fmt, time::Duration};

use sandbox_core::{Denial, SessionId};
use serde::{Deserialize, Serialize};

use super::hosts::Wanted;

/// How much of a target is shown from its beginning and its end.
const TARGET: (usize, usize) = (240, 60);
/// How much of the agent's reason is shown.
const REASON: (usize, usize) = (300, 0);
/// A grant lasts at most so long.
pub const MOST_MINUTES: u32 = 24 * 60;

/// What somebody wants that the policy does not give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The sandbox that it comes from.
    pub session_id: SessionId,
    /// Its policy.
    pub policy: String,
    /// What it is about.
    pub wish: Wish,
    /// The command or limit as it was asked for.
    pub target: String,
    /// Why, in the agent's own words.
    pub reason: Option<String>,
    /// For how long, unless the person says otherwise.
    pub span: Span,
}

/// What can be given while a sandbox lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// These rules of the command list are lifted.
    Command {
        /// As the policy has them.
        rules: Vec<String>,
    },
    /// Commands may run this long.
    RunTime(Duration),
    /// This may be reached.
    Network(Wanted),
}

/// For how long something is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// For one command.
    Once,
    /// For as long as the sandbox lives.
    Sandbox,
    /// For so many minutes.
    Minutes(u32),
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Once => f.write_str("once"),
            Self::Sandbox => f.write_str("sandbox"),
            Self::Minutes(1) => f.write_str("1 minute"),
            Self::Minutes(minutes) => write!(f, "{minutes} minutes"),
        }
    }
}

impl Span {
    /// What a person may choose from. The one that was asked for comes first.
    pub fn choices(self) -> Vec<Self> {
        let mut choices = vec![self];
        choices.extend([Self::Once, Self::Minutes(10), Self::Sandbox].into_iter().filter(|span| *span != self));
        choices
    }
}

impl Wish {
    /// In the words of an answer and the log.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Command { .. } => "command",
            Self::RunTime(_) => "limit",
            Self::Network(_) => "network",
        }
    }
}

impl Question {
    /// What a person may choose from. The one that was asked for comes first. Which command a connection belongs to cannot be
    /// told, so nothing is reached for one command only.
    pub fn choices(&self) -> Vec<Span> {
        let mut choices = self.span.choices();
        choices.retain(|span| *span != Span::Once || !matches!(self.wish, Wish::Network(_)));
        choices
    }

    /// The question as a person reads it who did not type the command.
    pub fn text(&self) -> String {
        self.after(format!(
            "A program in the sandbox {} (policy {}) asks for more than its policy gives. The request comes from inside \
             the sandbox, or from the agent that works in it.",
            self.session_id,
            shown(&self.policy, TARGET)
        ))
    }

    /// The question to whoever typed the command.
    pub fn about_own_command(&self) -> String {
        self.after(format!("Your command asks for more than the policy {} gives.", shown(&self.policy, TARGET)))
    }

    fn after(&self, beginning: String) -> String {
        let target = shown(&self.target, TARGET);
        let mut lines = vec![beginning];
        match &self.wish {
            Wish::Command { rules } => {
                let rules: Vec<String> = rules.iter().map(|rule| format!("“{}”", shown(rule, TARGET))).collect();
                lines.push(format!("It wants to run: {target}"));
                lines.push(format!("The policy refuses: {}", rules.join(", ")));
            }
            Wish::RunTime(time) => {
                lines.push(format!("It wants commands to run for up to {} seconds ({target})", time.as_secs()));
            }
            Wish::Network(wanted) => {
                lines.push(format!("It wants to connect to {}", shown(&wanted.to_string(), TARGET)));
                lines.push("Whatever it knows could be sent there".to_owned());
            }
        }
        if let Some(reason) = &self.reason {
            lines.push(format!("The agent's own words, which nobody has checked: “{}”", shown(reason, REASON)));
        }
        let stays = match self.wish {
            Wish::Network(_) => "Your files, private networks and secrets",
            Wish::Command { .. } | Wish::RunTime(_) => "Your files, network and secrets",
        };
        lines.push(format!(
            "Allow it ({})? {stays} stay out of reach either way.",
            match self.span {
                Span::Once => "once".to_owned(),
                Span::Sandbox => "for as long as this sandbox lives".to_owned(),
                minutes => format!("for {minutes}"),
            }
        ));
        lines.join("\n")
    }

    /// A refusal of what was asked, for this reason.
    pub fn refusal(&self, reason: sandbox_core::Reason, message: String, how_to_ask: &str) -> Denial {
        let rule = match &self.wish {
            Wish::Command { rules } => rules.join(", "),
            Wish::RunTime(_) => "limits.run".to_owned(),
            Wish::Network(_) => "network".to_owned(),
        };
        let (target, level) = (shown(&self.target, TARGET), self.policy.clone());
        Denial { reason, target, rule, level, message, how_to_ask: how_to_ask.to_owned(), verdict: None }
    }

    /// The target as it may be written down.
    pub fn shown_target(&self) -> String {
        shown(&self.target, TARGET)
    }

    /// The reason as it may be written down.
    pub fn shown_reason(&self) -> Option<String> {
        self.reason.as_deref().map(|reason| shown(reason, REASON))
    }
}

/// Hostile text on one line: the first and the last so many characters, nothing hidden in what is shown.
pub fn shown(text: &str, (first, last): (usize, usize)) -> String {
    let mut visible = String::new();
    let mut pieces = Vec::new();
    let mut spaces = false;
    for c in text.chars() {
        // Many spaces would push the rest out of sight.
        if c == ' ' && std::mem::replace(&mut spaces, true) {
            continue;
        }
        spaces = c == ' ';
        pieces.push(c);
    }
    let count = pieces.len();
    let whole = count <= first + last;
    for (n, c) in pieces.into_iter().enumerate() {
        if !whole && n == first {
            visible.push_str(&format!(" [… {} characters not shown …] ", count - first - last));
        }
        if whole || n < first || n >= count - last {
            visible.extend(spelled(c));
        }
    }
    visible
}

fn spelled(c: char) -> Vec<char> {
    match c {
        '\n' => vec!['\\', 'n'],
        '\t' => vec!['\\', 't'],
        // Ours begin and end what others said.
        '“' | '”' | '„' | '‟' => vec!['"'],
        c if is_hidden(c) => c.escape_unicode().collect(),
        c => vec![c],
    }
}

/// Characters that show nothing, reorder others, or are more than a space and look like one.
fn is_hidden(c: char) -> bool {
    let listed = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
        | '\u{e000}'..='\u{f8ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{10ffff}');
    c.is_control() || listed || (c.is_whitespace() && c != ' ')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn question(target: &str, reason: &str) -> Question {
        Question {
            session_id: "sandbox_local_0123456789abcdef01234567".parse().unwrap(),
            policy: "yolo-3".into(),
            wish: Wish::Command { rules: vec!["sudo".into()] },
            target: target.into(),
            reason: Some(reason.into()),
            span: Span::Once,
        }
    }

    #[test]
    fn hostile_text_stays_on_its_line_and_hides_nothing() {
        let text = question("sudo id\nAllow it? \u{1b}[2J\u{202e}yes\u{200b}", "because\nThe policy allows it").text();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.contains("sudo id\\nAllow it? \\u{1b}[2J\\u{202e}yes\\u{200b}"), "{text}");
        assert!(text.contains("own words, which nobody has checked: “because\\nThe policy"), "{text}");
        assert!(text.contains("sandbox_local_0123456789abcdef01234567") && text.contains("“sudo”"), "{text}");
    }

    #[test]
    fn who_typed_the_command_is_asked_about_their_own() {
        let text = question("ssh -V", "").about_own_command();
        assert!(text.starts_with("Your command asks for more than the policy yolo-3 gives."), "{text}");
        assert!(!text.contains("sandbox_local_") && !text.contains("inside") && text.contains("ssh -V"), "{text}");
    }

    #[test]
    fn what_is_cut_out_is_told_and_the_end_is_shown() {
        let long = format!("true {}; sudo rm -r /workspace", "# ".repeat(5000));
        let seen = shown(&long, TARGET);
        assert!(seen.len() < 500 && seen.contains("characters not shown") && seen.ends_with("/workspace"), "{seen}");
        assert_eq!(shown(&format!("a{}b", " ".repeat(9999)), TARGET), "a b");
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_ever_shown(text in "\\PC{0,400}|.{0,400}") {
            let seen = shown(&text, TARGET);
            prop_assert!(!seen.chars().any(is_hidden), "{seen:?}");
        }
    }
}
