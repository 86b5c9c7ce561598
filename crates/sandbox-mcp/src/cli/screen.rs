//! What people see: results on standard output, messages on standard error, colours only on a terminal.
//!
//! Text from inside a sandbox is hostile: control characters never reach a terminal through here.

use std::{
    io::{IsTerminal, Write},
    os::fd::AsFd,
};

use sandbox_core::SessionId;
use serde::Serialize;

/// A colour or weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Look {
    Good,
    Weak,
    Bad,
    Dim,
    Bold,
}

/// Prints a line of a result. A reader that has gone away has had enough.
pub fn say(line: &str) {
    if writeln!(std::io::stdout().lock(), "{line}").is_err() {
        std::process::exit(0);
    }
}

/// Prints a result as JSON, on one line.
pub fn say_json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(json) => say(&harmless_json(&json)),
        Err(error) => tell(&format!("the answer cannot be written as JSON: {error}")),
    }
}

/// What went wrong, as an answer in JSON has it.
pub fn error_in_json(message: &str) -> serde_json::Value {
    serde_json::json!({ "error": { "message": message } })
}

/// A message for a person. It may hold text from inside.
pub fn tell(message: &str) {
    tell_to(&mut std::io::stderr().lock(), message);
}

/// A message that another process of ours has made ready.
pub fn tell_as_it_is(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", harmless(message));
}

fn tell_to(stream: &mut impl Write, message: &str) {
    let _ = writeln!(stream, "{}", for_reading(&format!("sandbox-mcp: {}", harmless(message))));
}

/// How many letters a line of standard output has; only a terminal has an end.
pub fn columns() -> Option<usize> {
    columns_of(std::io::stdout())
}

fn columns_of(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// What follows a margin on standard output, broken between words where a terminal ends.
pub fn hanging(text: &str, margin: usize) -> String {
    match columns() {
        Some(columns) => broken(text, columns.saturating_sub(margin), margin),
        None => text.to_owned(),
    }
}

/// A message, broken between words where standard error is a terminal and ends.
pub fn for_reading(message: &str) -> String {
    match columns_of(std::io::stderr()) {
        Some(columns) => broken(message, columns, 0),
        None => message.to_owned(),
    }
}

/// Lines of at most this width, all but the first behind a margin. What is too narrow for words is left alone.
fn broken(text: &str, width: usize, margin: usize) -> String {
    if width < 20 {
        return text.to_owned();
    }
    let (mut lines, mut used) = (String::new(), 0);
    for word in text.split(' ') {
        let long = word.chars().count();
        if used > 0 && used + 1 + long > width {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', margin));
            used = 0;
        } else if used > 0 {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += long;
    }
    lines
}

/// A message that begins with a word in colour.
pub fn tell_marked(word: &str, look: Look, message: &str) {
    let word = paint_if(std::io::stderr().is_terminal(), &harmless(word), look);
    let _ = writeln!(std::io::stderr().lock(), "sandbox-mcp: {word} {}", harmless(message));
}

/// An error for a person, with all its causes. They may hold text from inside.
pub fn tell_error(error: &anyhow::Error) {
    let red = paint_if(std::io::stderr().is_terminal(), "error:", Look::Bad);
    // The colour takes no room on the screen, but would be counted.
    let message = for_reading(&format!("error: {}", harmless(&with_causes(error))));
    let _ = writeln!(std::io::stderr().lock(), "{red}{}", message.trim_start_matches("error:"));
}

/// An error and what caused it; many messages tell their cause themselves.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// In colour if standard output is a terminal.
pub fn paint(text: &str, look: Look) -> String {
    paint_if(std::io::stdout().is_terminal(), text, look)
}

/// Whether this is a terminal and nobody said no to colours (<https://no-color.org>).
pub fn is_coloured(stream: impl IsTerminal) -> bool {
    stream.is_terminal() && !no_colours()
}

fn no_colours() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// In colour if this is a terminal and nobody said no.
pub fn paint_if(terminal: bool, text: &str, look: Look) -> String {
    if !terminal || no_colours() {
        return text.to_owned();
    }
    let code = match look {
        Look::Good => "32",
        Look::Weak => "33",
        Look::Bad => "31",
        Look::Dim => "2",
        Look::Bold => "1",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Text from inside, safe for a terminal: control characters and those that reorder text become visible.
pub fn harmless(text: &str) -> String {
    let shown = |c: char| match c {
        '\t' => "    ".to_owned(),
        c if is_harmful(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// The same JSON. Its writer escapes only what JSON must, and a terminal takes more than that for a command.
fn harmless_json(json: &str) -> String {
    let shown = |c: char| if is_harmful(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    json.chars().map(shown).collect()
}

fn is_harmful(c: char) -> bool {
    let reorders = matches!(
        c,
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || reorders
}

/// How long, in a few letters: `42s`, `5m`, `3h`, `2d`.
pub fn short_time(time: std::time::Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// The end of an id, enough to tell sandboxes apart by eye.
pub fn short_id(id: &SessionId) -> &str {
    let text = id.as_str();
    &text[text.len() - 24..text.len() - 16]
}

/// Milliseconds since 1970 as `2026-11-16 01:29:37Z`: universal time, and marked so.
pub fn date(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    let (year, month, day) = civil((seconds / 86_400) as i64);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// Days since 1970 as a date of the Gregorian calendar, counted in eras of 400 years that begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * march_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(date(0), "1970-01-01 00:00:00Z");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00:00Z");
        assert_eq!(date(1_794_792_577_000), "2026-11-16 01:29:37Z");
    }

    #[test]
    fn long_messages_are_broken_between_words() {
        let text = "there is no such command in the sandbox";
        assert_eq!(broken(text, 20, 3), "there is no such\n   command in the\n   sandbox");
        assert_eq!(broken(text, 10, 3), text);
        assert_eq!(broken("a  b", 20, 0), "a  b");
    }

    #[test]
    fn a_file_name_from_inside_does_not_reach_a_terminal_through_a_message() {
        let mut terminal = Vec::new();
        let error = crate::cli::out::OutError::Exists("out/a\x1b]0;owned\x07\nsandbox-mcp: fine".into());
        tell_to(&mut terminal, &format!("a was not taken out: {error}"));
        let shown = String::from_utf8_lossy(&terminal);
        assert_eq!(shown.chars().filter(|c| c.is_control()).collect::<String>(), "\n", "{shown}");
        assert!(shown.contains("\\u{1b}]0;owned"), "{shown}");
    }

    #[test]
    fn escape_sequences_do_not_reach_a_terminal() {
        let answer = serde_json::to_string(&["\u{9b}31m\x1b[\u{202e}é"]).unwrap_or_default();
        assert_eq!(harmless_json(&answer), "[\"\\u009b31m\\u001b[\\u202eé\"]");
        assert_eq!(harmless("a\x1b[31mb\u{202e}c\td"), "a\\u{1b}[31mb\\u{202e}c    d");
    }
}
