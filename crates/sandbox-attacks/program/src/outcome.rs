//! What came of an attack.

use std::{fmt::Display, io};

/// With a detail in words.
pub enum Outcome {
    /// It worked, and here is the proof.
    BrokeThrough(String),
    /// It did not.
    Held(String),
    /// It makes no sense here.
    NotApplicable(String),
    /// What was seen, for the suite to compare with what is outside.
    Seen(String),
}

impl Outcome {
    /// A call that must fail.
    pub fn of<T>(what: impl Display, result: io::Result<T>) -> Self {
        match result {
            Ok(_) => Self::BrokeThrough(format!("{what} worked")),
            Err(error) => Self::Held(format!("{what}: {error}")),
        }
    }

    /// A call that answers differently behind a closed door than behind an open one. Its arguments are wrong on
    /// purpose, so that nothing happens where the door is open: any other answer than a refusal came from behind it.
    pub fn of_door<T>(what: impl Display, result: io::Result<T>) -> Self {
        match result {
            Ok(_) => Self::BrokeThrough(format!("{what} worked")),
            Err(error) if is_refusal(&error) => Self::Held(format!("{what}: {error}")),
            Err(error) => Self::BrokeThrough(format!("{what} was let through to the kernel, which answered: {error}")),
        }
    }

    /// Several things, none of which may work.
    pub fn of_list(what: impl Display, broken: Vec<String>) -> Self {
        if broken.is_empty() {
            Self::Held(format!("{what}: none"))
        } else {
            let more = broken.len().saturating_sub(12);
            let mut shown = broken.into_iter().take(12).collect::<Vec<_>>().join(", ");
            if more > 0 {
                shown += &format!(" and {more} more");
            }
            Self::BrokeThrough(format!("{what}: {shown}"))
        }
    }

    /// Tries one after the other; the first that breaks through is the outcome, else the last that held.
    pub fn first_breach(attempts: impl IntoIterator<Item = Self>) -> Self {
        let mut last = Self::NotApplicable("nothing to try".to_owned());
        for attempt in attempts {
            match attempt {
                Self::BrokeThrough(_) | Self::Seen(_) => return attempt,
                Self::Held(_) => last = attempt,
                Self::NotApplicable(_) if matches!(last, Self::NotApplicable(_)) => last = attempt,
                Self::NotApplicable(_) => {}
            }
        }
        last
    }

    /// One line.
    pub fn json(&self) -> String {
        let (outcome, detail) = match self {
            Self::BrokeThrough(detail) => ("broke_through", detail),
            Self::Held(detail) => ("held", detail),
            Self::NotApplicable(detail) => ("not_applicable", detail),
            Self::Seen(detail) => ("seen", detail),
        };
        format!("{{\"outcome\":\"{outcome}\",\"detail\":\"{}\"}}", escaped(detail))
    }
}

fn is_refusal(error: &io::Error) -> bool {
    let refusals = [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EROFS, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT];
    error.raw_os_error().is_some_and(|number| refusals.contains(&number))
}

fn escaped(text: &str) -> String {
    let shown = |c: char| match c {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    text.chars().map(shown).collect()
}
