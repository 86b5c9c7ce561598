//! The way out where no descriptor can come: connections inside come as flows over a bridge of their own.

use std::{io, os::fd::OwnedFd};

use bollard::Docker;
use sandbox_core::Door;

use crate::streams::Line;

/// A door on which those connections come.
pub async fn door(_line: &Line, _docker: &Docker) -> io::Result<Vec<(Door, OwnedFd)>> {
    Ok(Vec::new())
}
