//! open_port: an address at which a person sees what a web server inside shows.

use std::sync::Arc;

use super::{
    answers::{Answer, PortOpened},
    arguments::OpenPort,
    error::ToolError,
};
use crate::sandboxes::{OpenPort as Opened, Session};

/// Opens a port.
pub async fn open_port(session: Arc<Session>, asked: OpenPort) -> Result<Answer, ToolError> {
    let beyond = |_| ToolError::Invalid(format!("port must be from 1 to 65535, not {}", asked.port));
    let Opened { url, port, listening } = session.open_port(asked.port.try_into().map_err(beyond)?).await?;
    Ok(Answer::of(&PortOpened { url, port, listening }))
}
