//! What a profile says, field by field. A field, an action or an operator that is not here is refused by its name.

#![allow(missing_docs, reason = "the names are those of the OCI runtime specification")]

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Document {
    pub default_action: Action,
    pub default_errno_ret: Option<u32>,
    pub architectures: Option<Vec<Architecture>>,
    pub arch_map: Option<Vec<ArchitectureMap>>,
    #[serde(default, rename = "flags")]
    _flags: Option<Vec<Flag>>,
    pub syscalls: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Entry {
    pub names: Option<Vec<String>>,
    pub name: Option<String>,
    pub action: Action,
    pub errno_ret: Option<u32>,
    pub args: Option<Vec<Argument>>,
    #[serde(default, rename = "comment")]
    _comment: Option<String>,
    pub includes: Option<Condition>,
    pub excludes: Option<Condition>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Argument {
    pub index: u64,
    pub value: u64,
    #[serde(default)]
    pub value_two: u64,
    pub op: Operator,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Condition {
    pub caps: Option<Vec<String>>,
    pub arches: Option<Vec<String>>,
    pub min_kernel: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArchitectureMap {
    #[serde(rename = "architecture")]
    _architecture: Architecture,
    #[serde(default, rename = "subArchitectures")]
    _sub_architectures: Option<Vec<Architecture>>,
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
pub struct Architecture(pub String);

impl TryFrom<String> for Architecture {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name.starts_with("SCMP_ARCH_") { Ok(Self(name)) } else { Err(format!("unknown architecture `{name}`")) }
    }
}

/// Ways to install a filter that change nothing for a process with one thread.
#[derive(Deserialize)]
pub enum Flag {
    #[serde(rename = "SECCOMP_FILTER_FLAG_TSYNC")]
    AllThreads,
    #[serde(rename = "SECCOMP_FILTER_FLAG_LOG")]
    Log,
}

#[derive(Clone, Copy, Deserialize)]
pub enum Action {
    #[serde(rename = "SCMP_ACT_ALLOW")]
    Allow,
    #[serde(rename = "SCMP_ACT_ERRNO")]
    Errno,
    #[serde(rename = "SCMP_ACT_LOG")]
    Log,
    #[serde(
        rename = "SCMP_ACT_KILL",
        alias = "SCMP_ACT_KILL_THREAD",
        alias = "SCMP_ACT_KILL_PROCESS",
        alias = "SCMP_ACT_TRAP"
    )]
    Kill,
    #[serde(rename = "SCMP_ACT_TRACE")]
    Trace,
    #[serde(rename = "SCMP_ACT_NOTIFY")]
    Notify,
}

#[derive(Clone, Copy, Deserialize)]
pub enum Operator {
    #[serde(rename = "SCMP_CMP_NE")]
    NotEqual,
    #[serde(rename = "SCMP_CMP_LT")]
    Less,
    #[serde(rename = "SCMP_CMP_LE")]
    LessOrEqual,
    #[serde(rename = "SCMP_CMP_EQ")]
    Equal,
    #[serde(rename = "SCMP_CMP_GE")]
    GreaterOrEqual,
    #[serde(rename = "SCMP_CMP_GT")]
    Greater,
    #[serde(rename = "SCMP_CMP_MASKED_EQ")]
    MaskedEqual,
}
