//! The labels by which our containers and volumes are found again, and the names that they have.

use std::{collections::HashMap, fs, io, path::Path};

use sandbox_core::{Error, Result, SandboxSpec, SessionId};

/// Whose sandbox it is.
pub const SESSION: &str = "sandbox-mcp.session";
/// The state folder that it belongs to.
pub const STATE: &str = "sandbox-mcp.state";
/// The user whom it belongs to.
pub const OWNER: &str = "sandbox-mcp.owner";

/// How the names of all that is ours begin.
const PREFIX: &str = "sandbox-mcp-";

/// The labels of one sandbox's things.
pub fn of(spec: &SandboxSpec, state: &str) -> HashMap<String, String> {
    let labels = [(SESSION, spec.id.as_str()), (STATE, state), (OWNER, spec.owner.as_str())];
    labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// The labels of what no sandbox owns: an earlier server's is removed.
pub fn of_nobody(state: &str) -> HashMap<String, String> {
    [(SESSION, ""), (STATE, state)].map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// The name of a sandbox's container.
pub fn container(id: &SessionId) -> String {
    format!("{PREFIX}{id}")
}

/// The name of one of its volumes.
pub fn volume(id: &SessionId, what: &str) -> String {
    format!("{PREFIX}{id}-{what}")
}

/// What tells this state folder from all others: an engine may serve several machines, on which paths are alike.
pub fn state_id(state: &Path) -> Result<String> {
    let path = state.join("engine-id");
    let reading = || Error::io(format!("reading {}", path.display()));
    match fs::read_to_string(&path) {
        Ok(id) if id.len() == 32 => return Ok(id),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(reading()(error)),
        _ => {}
    }
    let id = crate::secrets::random_text(16).map_err(reading())?;
    let draft = state.join(format!("engine-id.{}", std::process::id()));
    // Whoever is first decides: a link is made only where there is none.
    let made = fs::write(&draft, &id).and_then(|()| fs::hard_link(&draft, &path));
    let _ = fs::remove_file(&draft);
    match made {
        Ok(()) => Ok(id),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::read_to_string(&path).map_err(reading()),
        Err(error) => Err(reading()(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_keeps_its_own_mark() {
        let (one, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let mark = state_id(one.path()).expect("a mark");
        assert_eq!(state_id(one.path()).expect("a mark"), mark);
        assert_ne!(state_id(other.path()).expect("a mark"), mark);
        assert_eq!(fs::read_dir(one.path()).expect("the folder").count(), 1);
    }
}
