//! What a caller says when it wants a sandbox.

use std::collections::BTreeMap;

use sandbox_core::{Error, Image, Policy, Tool};

/// A sandbox that somebody wants.
#[derive(Clone, Debug)]
pub struct NewSandbox {
    /// Where it runs; where the operator wants sandboxes, if not said.
    pub backend: Option<String>,
    /// What its root file system starts from.
    pub image: Image,
    /// What it may do.
    pub policy: Policy,
    /// Whether it outlives its server and is never cleaned up by itself.
    pub lifetime: Lifetime,
    /// Variables that every command in it starts with.
    pub env: BTreeMap<String, String>,
    /// Programs from outside that can be used inside.
    pub tools: Vec<Tool>,
}

/// How long a sandbox lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// Until its server closes, or nobody has used it for a while.
    #[default]
    Temporary,
    /// Until somebody removes it.
    Persistent,
}

/// All variables together.
const MAX_ENV: usize = 128 << 10;

impl NewSandbox {
    /// Says what is wrong with it before anything is made.
    pub(super) fn check(&self) -> Result<(), Error> {
        check_env(&self.env)
    }
}

/// Names and values as execve(2) takes them, and not too many.
pub fn check_env(env: &BTreeMap<String, String>) -> Result<(), Error> {
    let invalid = |what: String, fix: &str| Err(Error::Invalid { what, fix: fix.to_owned() });
    for (name, value) in env {
        let shown: String = name.chars().take(40).collect();
        if name.is_empty() || name.contains(['=', '\0']) {
            return invalid(format!("`{shown}` is no name for a variable"), "Use letters, digits and _");
        }
        if value.contains('\0') {
            return invalid(format!("the value of `{shown}` holds a NUL"), "Leave it out, or put it into a file");
        }
    }
    let size: usize = env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    if size > MAX_ENV {
        return invalid(
            format!("the variables take {size} bytes, at most {MAX_ENV} are allowed"),
            "Put the data into a file",
        );
    }
    Ok(())
}
