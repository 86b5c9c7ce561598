//! A server that speaks for one sandbox only: which tools it has, and that no call can name another sandbox.
//!
//! Which sandbox is decided where the server is made, never by what a call says.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool};
use sandbox_core::SessionId;
use serde_json::{Value, json};

use super::{error::ToolError, schema::shortened};
use crate::sandboxes::access::Person;

/// The one sandbox of a server.
pub struct Bound {
    /// Which.
    pub session: SessionId,
    /// What there is to call.
    pub tools: &'static [&'static str],
    /// What a client is told about the server as a whole.
    pub instructions: &'static str,
    /// Who is asked for what the policy denies; whoever calls, if not said.
    pub person: Option<Arc<dyn Person>>,
}

/// In a container that is a server by itself.
pub const IN_CONTAINER: [&str; 6] =
    ["run_command", "get_output", "write_files", "get_files", "list_files", "get_sandbox_status"];

/// What clients of such a container are told.
pub const CONTAINER_INSTRUCTIONS: &str = "One Linux container: this server runs in it, and its tools act in it. Put files in \
with write_files, run shell commands with run_command, take results out with get_files; /workspace is the working folder. A \
command that does not end in time answers status \"running\" with a job_id: go on with get_output. What limits hold is the \
container engine's to say; get_sandbox_status tells what is seen of them. When this server ends, so does the container.";

impl Bound {
    /// Whether there is such a tool here.
    pub fn has(&self, tool: &str) -> bool {
        self.tools.contains(&tool)
    }

    /// The tools as clients see them: without what is decided already.
    pub fn listed(&self, all: Vec<Tool>) -> Vec<Tool> {
        let mut tools: Vec<Tool> = all.into_iter().filter(|tool| self.has(&tool.name)).collect();
        for tool in &mut tools {
            let mut schema = JsonObject::clone(&tool.input_schema);
            for name in ["session_id", "user_id"] {
                if let Some(Value::Object(properties)) = schema.get_mut("properties") {
                    properties.remove(name);
                }
                if let Some(Value::Array(required)) = schema.get_mut("required") {
                    required.retain(|required| required != name);
                }
            }
            tool.input_schema = schema.into();
        }
        tools
    }

    /// Arguments of a call, for this sandbox. Naming it is fine, naming another is not.
    pub fn admit(&self, mut arguments: JsonObject) -> Result<JsonObject, ToolError> {
        let named = arguments.insert("session_id".to_owned(), json!(self.session.as_str()));
        let label = arguments.remove("user_id");
        match named {
            None | Some(Value::Null) => {}
            Some(Value::String(named)) if named == self.session.as_str() => {}
            Some(other) => {
                let other = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
                return Err(self.refuse(&format!("session_id {}", shortened(&other))));
            }
        }
        match label {
            None | Some(Value::Null) => Ok(arguments),
            Some(label) => Err(self.refuse(&format!("user_id {}", shortened(&label.to_string())))),
        }
    }

    /// Whether a link leads here.
    pub fn check(&self, id: &SessionId) -> Result<(), ToolError> {
        if *id == self.session { Ok(()) } else { Err(self.refuse(&format!("session_id {id}"))) }
    }

    fn refuse(&self, what: &str) -> ToolError {
        ToolError::Invalid(format!("{what} is not to be had here: these tools are for this one sandbox. Leave it out"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::mcp::tools::TOOLS;
    use sandbox_core::UserId;

    fn bound() -> Bound {
        let session = SessionId::random(&UserId::local()).unwrap();
        Bound { session, tools: &IN_CONTAINER, instructions: CONTAINER_INSTRUCTIONS, person: None }
    }

    #[test]
    fn tools_are_listed_without_what_is_decided() {
        let tools = bound().listed(TOOLS.clone());
        assert_eq!(tools.len(), IN_CONTAINER.len());
        for tool in tools {
            let schema = json!(tool.input_schema);
            assert!(!schema.to_string().contains("session_id") && !schema.to_string().contains("user_id"), "{schema}");
        }
    }

    #[test]
    fn no_call_names_another_sandbox() {
        let bound = bound();
        let admit = |arguments: Value| bound.admit(arguments.as_object().unwrap().clone());
        let own = bound.session.as_str();
        for fine in [json!({}), json!({"session_id": null}), json!({"session_id": own})] {
            assert_eq!(admit(fine).unwrap()["session_id"], own);
        }
        let other = SessionId::random(&UserId::local()).unwrap();
        for wrong in [
            json!({"session_id": other.as_str()}),
            json!({"session_id": ""}),
            json!({"session_id": [own]}),
            json!({"session_id": format!("{own} ")}),
            json!({"user_id": "other"}),
        ] {
            assert!(admit(wrong.clone()).unwrap_err().to_string().contains("this one sandbox"), "{wrong}");
        }
        assert!(bound.check(&other).is_err() && bound.check(&bound.session).is_ok());
    }
}
