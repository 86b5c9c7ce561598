//! Programs that a policy takes away: which files of an image a stub is mounted over.

use std::path::Path;

use sandbox_core::{Result, SandboxSpec, policy::DeniedPrograms};

use crate::{engine::Engine, plan::Image};

/// What covers them, in the cache.
pub const STUB: &str = "unavailable";

/// The files to be covered; nothing where none are, or where that cannot be known.
pub async fn covered(
    spec: &SandboxSpec,
    _engine: &Engine,
    _image: &Image,
    _state: &Path,
) -> Result<Option<Vec<String>>> {
    if spec.policy.commands.denied_programs != DeniedPrograms::Removed {
        return Ok(None);
    }
    Ok(None)
}
