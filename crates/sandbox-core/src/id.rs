//! Names: who owns a sandbox, which sandbox, which job in it. Each is checked once, when it is parsed.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Hexadecimal digits of chance in a session id: 96 bits, so that it cannot be guessed.
const RANDOM_DIGITS: usize = 24;

/// The label of nobody.
const NOBODY: &str = "-";

/// The text is not such a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}")]
pub struct InvalidId {
    text: String,
    what: &'static str,
}

/// Who a sandbox belongs to: a label of 1 to 64 letters, digits and `._@-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserId(String);

impl UserId {
    /// The user on a terminal or on standard streams, where the operating system already knows who it is.
    pub fn local() -> Self {
        Self("local".to_owned())
    }

    /// Nobody yet: the owner of a sandbox that was made before anybody asked for it. Nobody can say to be this one.
    pub fn nobody() -> Self {
        Self(NOBODY.to_owned())
    }

    /// The label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for UserId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
        if (1..=64).contains(&text.len()) && text.chars().all(allowed) && text != NOBODY {
            Ok(Self(text.to_owned()))
        } else {
            let what = "user id: use 1 to 64 letters, digits, '.', '_', '@' or '-'";
            Err(InvalidId { text: shortened(text), what })
        }
    }
}

/// The handle of a sandbox on every interface: `sandbox_USER_` and 96 random bits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

impl SessionId {
    /// A new one for this user. Fails only where the system has no source of chance.
    pub fn random(user: &UserId) -> Result<Self, getrandom::Error> {
        let mut chance = [0u8; RANDOM_DIGITS / 2];
        getrandom::fill(&mut chance)?;
        let user = if user.0 == NOBODY { "warm" } else { &user.0 };
        let label: String = user.chars().take(24).map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let digits: String = chance.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(format!("sandbox_{label}_{digits}")))
    }

    /// The handle.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let well_formed = || {
            let (label, digits) = text.strip_prefix("sandbox_")?.split_once('_')?;
            let label_ok =
                (1..=24).contains(&label.len()) && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            (label_ok && digits.len() == RANDOM_DIGITS && digits.chars().all(hex)).then_some(())
        };
        match well_formed() {
            Some(()) => Ok(Self(text.to_owned())),
            None => Err(InvalidId {
                text: shortened(text),
                what: "session id: those end in 24 digits of 0-9 and a-f, such as sandbox_local_4f2a…; `list` shows them in full",
            }),
        }
    }
}

/// A job of one sandbox. Counted from 1; it means nothing without the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u32);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job_{}", self.0)
    }
}

impl FromStr for JobId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let number = text.strip_prefix("job_").and_then(|digits| digits.parse().ok());
        number.map(Self).ok_or_else(|| InvalidId { text: shortened(text), what: "job id: they look like job_3" })
    }
}

/// What was typed may be megabytes; an error message is not.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

macro_rules! string_like {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    )*};
}
string_like!(UserId, SessionId);

impl TryFrom<String> for SessionId {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

/// As it was written down, which only this program does: there it may be nobody.
impl TryFrom<String> for UserId {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        if text == NOBODY { Ok(Self::nobody()) } else { text.parse() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nobody_can_say_to_be_nobody_and_yet_it_is_written_down() {
        assert!("-".parse::<UserId>().is_err());
        assert_eq!(UserId::try_from(String::from(UserId::nobody())), Ok(UserId::nobody()));
        let id = SessionId::random(&UserId::nobody()).unwrap_or_else(|e| panic!("{e}"));
        assert!(id.as_str().starts_with("sandbox_warm_"), "{id}");
    }

    #[test]
    fn a_session_id_reads_well_and_parses_back() {
        let user: UserId = "ann@example.org".parse().unwrap_or_else(|e| panic!("{e}"));
        let id = SessionId::random(&user).unwrap_or_else(|e| panic!("{e}"));
        assert!(id.as_str().starts_with("sandbox_ann-example-org_"), "{id}");
        assert_eq!(id.as_str().parse(), Ok(id));
    }

    proptest! {
        #[test]
        fn no_session_id_holds_a_path(text in ".{0,80}") {
            if let Ok(id) = text.parse::<SessionId>() {
                prop_assert!(!id.as_str().contains(['/', '.', '\0']));
            }
        }
    }
}
