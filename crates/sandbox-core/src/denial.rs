//! A refusal, from whichever wall, in one form: for the answer to whoever asked, for the event log and for the metrics.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct};

use crate::Control;

/// Something that a policy refused, and how to ask for it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Denial {
    /// Why, for programs: it never changes its name.
    pub reason: Reason,
    /// What was refused: a command, a path, a limit with its size.
    pub target: String,
    /// The rule of the policy that refused it.
    pub rule: String,
    /// The policy.
    pub level: String,
    /// What happened, in a sentence for people and models.
    pub message: String,
    /// What to do to get it, or instead of it.
    pub how_to_ask: String,
    /// Of a connection, what became of it, as the history has it.
    #[serde(default)]
    pub verdict: Option<String>,
}

impl Denial {
    /// The kind of thing that was refused.
    pub fn kind(&self) -> Kind {
        self.reason.kind()
    }
}

/// With its kind, which the reason decides.
impl Serialize for Denial {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Denial", 7 + usize::from(self.verdict.is_some()))?;
        fields.serialize_field("kind", &self.kind())?;
        fields.serialize_field("reason", &self.reason)?;
        fields.serialize_field("target", &self.target)?;
        fields.serialize_field("rule", &self.rule)?;
        fields.serialize_field("level", &self.level)?;
        fields.serialize_field("message", &self.message)?;
        fields.serialize_field("how_to_ask", &self.how_to_ask)?;
        if let Some(verdict) = &self.verdict {
            fields.serialize_field("verdict", verdict)?;
        }
        fields.end()
    }
}

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    Command,
    Limit,
    Filesystem,
    SystemCall,
    Privilege,
    Network,
    Access,
}

/// Why it was refused. Names are used in answers, logs and metrics, and stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The policy denies this command.
    CommandDenied,
    /// The policy allows only some commands, and this is not one of them.
    CommandNotAllowed,
    /// More memory than the limit was used.
    MemoryLimit,
    /// More processes than the limit were wanted.
    PidsLimit,
    /// More files than the limit were kept.
    DiskLimit,
    /// /tmp is full.
    TmpLimit,
    /// It ran for too long.
    TimeLimit,
    /// A place that may not be written.
    ReadOnly,
    /// A call that the kernel was told to refuse.
    SystemCall,
    /// A privilege that commands do not have.
    Privilege,
    /// A destination that the policy does not reach.
    Network,
    /// More than the operator's ceiling.
    Ceiling,
    /// What is never given by asking.
    NeverGranted,
    /// Nobody was there to be asked.
    NobodyToAsk,
    /// Somebody was asked, and said no.
    Declined,
    /// Too many questions in too short a time.
    TooManyQuestions,
    /// Somebody was asked, and did not answer in time.
    NoAnswer,
    /// What a sandbox has from its beginning: only a new one can have more.
    NeedsNewSandbox,
    /// A path that file tools do not reach.
    OutsidePlaces,
    /// More processors than the limit were wanted.
    CpuLimit,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::CommandDenied,
        Self::CommandNotAllowed,
        Self::MemoryLimit,
        Self::CpuLimit,
        Self::PidsLimit,
        Self::DiskLimit,
        Self::TmpLimit,
        Self::TimeLimit,
        Self::ReadOnly,
        Self::OutsidePlaces,
        Self::SystemCall,
        Self::Privilege,
        Self::Network,
        Self::Ceiling,
        Self::NeverGranted,
        Self::NeedsNewSandbox,
        Self::NobodyToAsk,
        Self::Declined,
        Self::NoAnswer,
        Self::TooManyQuestions,
    ];

    /// The kind of thing that it is about.
    pub fn kind(self) -> Kind {
        match self {
            Self::CommandDenied | Self::CommandNotAllowed => Kind::Command,
            Self::MemoryLimit
            | Self::CpuLimit
            | Self::PidsLimit
            | Self::DiskLimit
            | Self::TmpLimit
            | Self::TimeLimit => Kind::Limit,
            Self::ReadOnly | Self::OutsidePlaces => Kind::Filesystem,
            Self::SystemCall => Kind::SystemCall,
            Self::Privilege => Kind::Privilege,
            Self::Network => Kind::Network,
            Self::Ceiling
            | Self::NeverGranted
            | Self::NeedsNewSandbox
            | Self::NobodyToAsk
            | Self::Declined
            | Self::NoAnswer
            | Self::TooManyQuestions => Kind::Access,
        }
    }

    /// The reason for having met this limit.
    pub fn of_limit(control: Control) -> Option<Self> {
        match control {
            Control::Memory => Some(Self::MemoryLimit),
            Control::Cpu => Some(Self::CpuLimit),
            Control::Pids => Some(Self::PidsLimit),
            Control::Disk => Some(Self::DiskLimit),
            Control::Tmp => Some(Self::TmpLimit),
            Control::Time => Some(Self::TimeLimit),
            _ => None,
        }
    }
}

macro_rules! named_as_written {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )*};
}
named_as_written!(Kind, Reason);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_programs_match_on() {
        assert_eq!(Reason::CommandDenied.to_string(), "command_denied");
        assert_eq!(
            (Reason::MemoryLimit.to_string(), Reason::MemoryLimit.kind().to_string()),
            ("memory_limit".into(), "limit".into())
        );
        assert_eq!(Kind::SystemCall.to_string(), "system_call");
        let names: std::collections::BTreeSet<_> = Reason::ALL.map(|reason| reason.to_string()).into();
        assert_eq!(names.len(), Reason::ALL.len(), "each is listed once");
    }
}
