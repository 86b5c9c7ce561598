//! Containers of other servers of this user.

use std::{path::Path, sync::Arc};

use sandbox_core::{Result, Sandbox};

use crate::sandbox::{self, DockerSandbox};

/// A sandbox of another server of this user, by its folder. Must be called inside a tokio runtime.
pub fn attach(folder: &Path) -> Result<Arc<dyn Sandbox>> {
    Ok(sandbox::shared(DockerSandbox::open(folder, None)?))
}
