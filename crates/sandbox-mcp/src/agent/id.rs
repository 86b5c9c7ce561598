//! The name of a task.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A task's handle: `task_` and 24 digits that nobody can guess.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(String);

/// This is no name of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no task id: `sandbox-mcp task list` shows them")]
pub struct InvalidTaskId(String);

const PREFIX: &str = "task_";
const DIGITS: usize = 24;

impl TaskId {
    /// A new one.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; DIGITS / 2];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes.iter().fold(PREFIX.to_owned(), |name, byte| format!("{name}{byte:02x}"))))
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TaskId {
    type Err = InvalidTaskId;

    fn from_str(text: &str) -> Result<Self, InvalidTaskId> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match text.strip_prefix(PREFIX) {
            Some(digits) if digits.len() == DIGITS && digits.bytes().all(is_digit) => Ok(Self(text.to_owned())),
            _ => Err(InvalidTaskId(text.chars().take(60).collect())),
        }
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'d> Deserialize<'d> for TaskId {
    fn deserialize<D: Deserializer<'d>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_is_one_folder_and_nothing_else() {
        let id = TaskId::random().unwrap();
        assert_eq!(id.as_str().parse::<TaskId>().unwrap(), id);
        for wrong in ["", "task_", "task_../../etc/passwd/////////", "task_0123456789ABCDEF01234567", "../task_0"] {
            assert!(wrong.parse::<TaskId>().is_err(), "{wrong}");
        }
    }
}
