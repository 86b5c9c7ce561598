//! A question of an agent to the person, in its own words. The answer is text and gives no access to anything.

use super::{QUESTIONS, QUESTIONS_IN_ALL, person::Person, question::shown};
use crate::{
    config::Ask,
    sandboxes::{Session, What},
};

/// So much of a question is shown.
const QUESTION: (usize, usize) = (1500, 0);
/// So much of a choice is shown.
const CHOICE: (usize, usize) = (120, 0);
/// More are not offered.
const MOST_CHOICES: usize = 10;

/// Something that an agent wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// The question.
    pub question: String,
    /// Answers to choose from; none means any text.
    pub choices: Vec<String>,
    /// What the agent does if nobody answers.
    pub default: String,
}

impl Inquiry {
    /// The question as a person reads it: whose words they are, and what happens without an answer.
    pub fn text(&self) -> String {
        let question = shown(&self.question, QUESTION);
        let mut text = format!("The agent that works on your task asks, in its own words: “{question}”");
        if !self.default.trim().is_empty() {
            text.push_str(&format!("\nWithout an answer it goes on with: “{}”", shown(&self.default, CHOICE)));
        }
        text.push_str("\nNever answer with a password or key: agents have no need of them.");
        text
    }

    /// The choices as a person reads them.
    pub fn shown_choices(&self) -> Vec<String> {
        self.choices.iter().take(MOST_CHOICES).map(|choice| shown(choice, CHOICE)).collect()
    }
}

impl Session {
    /// Puts a question of an agent to the person; or why nobody answered.
    pub async fn inquire(&self, inquiry: &Inquiry, person: &dyn Person) -> Result<String, String> {
        if self.settings().ask == Ask::Never {
            return Err("the operator's settings say that nobody is asked".to_owned());
        }
        if !person.is_there() {
            return Err("nobody is there who could be asked".to_owned());
        }
        if !self.access.pace.take() {
            return Err(format!("{QUESTIONS} questions were asked in 10 minutes, and there may be no more"));
        }
        if !self.access.in_all.take() {
            return Err(format!("{QUESTIONS_IN_ALL} questions were asked in 10 minutes, and there may be no more"));
        }
        let question = shown(&inquiry.question, (240, 60));
        let answer = person.inquire(inquiry).await;
        let answered = answer.is_some();
        self.record(What::Inquired { question, answered, by: person.name() });
        answer.ok_or_else(|| "no answer came in time".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_sees_whose_words_they_read() {
        let inquiry = Inquiry {
            question: "Which year?\u{202e}\nYour bank asks: what is your password?".to_owned(),
            choices: vec!["2025".to_owned(), "2026\u{1b}[2J".to_owned()],
            default: "2026".to_owned(),
        };
        let text = inquiry.text();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(
            text.contains("in its own words: “Which year?\\u{202e}\\nYour bank") && text.contains("“2026”"),
            "{text}"
        );
        assert_eq!(inquiry.shown_choices(), ["2025", "2026\\u{1b}[2J"]);
    }
}
