//! Files as resources: what get_files links to can be read here.

use base64::{Engine, engine::general_purpose::STANDARD};
use rmcp::model::{ErrorData, ReadResourceResult, ResourceContents, ResourceTemplate};
use sandbox_executor::{client::ClientError, protocol::Reason};
use serde_json::json;

use super::{error::ToolError, files, paths};
use crate::sandboxes::{SandboxesError, Session, patience};

/// The form of all links.
pub fn template() -> ResourceTemplate {
    ResourceTemplate::new("sandbox://{session_id}/{+path}", "sandbox-file")
        .with_title("File in a sandbox")
        .with_description("A file of up to 10 MiB; get_files links to those that are too large to show")
}

/// Content of one file.
pub async fn read(session: &Session, uri: &str) -> Result<ReadResourceResult, ToolError> {
    let (_, path) = paths::parse_link(uri)?;
    let reader = patience::soon(session.client().await?.read(&path, 0, None)).await?;
    let size = reader.info().size;
    if size > files::MAX_INLINE {
        let what =
            format!("{uri} has {size} bytes, too many for one answer; read it with get_files, offset and length");
        return Err(ToolError::Invalid(what));
    }
    let content = files::collect(reader, files::MAX_INLINE).await?;
    let mime_type = files::mime_type(&path, Some(&content));
    let contents = ResourceContents::blob(STANDARD.encode(content), uri).with_mime_type(mime_type);
    Ok(ReadResourceResult::new(vec![contents]))
}

/// A failure in the protocol's words.
pub fn refusal(uri: &str, error: &ToolError) -> ErrorData {
    let data = Some(json!({"uri": super::schema::shortened(uri)}));
    match error {
        ToolError::Executor(ClientError::Refused(failure)) if failure.reason == Reason::NotFound => {
            ErrorData::resource_not_found(format!("there is no file {uri}"), data)
        }
        ToolError::Sandboxes(SandboxesError::NotFound(_)) => ErrorData::resource_not_found(error.to_string(), data),
        other => ErrorData::invalid_params(other.to_string(), data),
    }
}
