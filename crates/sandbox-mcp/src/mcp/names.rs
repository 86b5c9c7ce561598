//! Names that answer too, though they are not listed: those of earlier plans and of other servers.

use rmcp::model::JsonObject;
use serde_json::{Value, json};

/// An older name of a tool with the tool that it means.
const TOOLS: [(&str, &str); 6] = [
    ("create_container_environment", "create_sandbox"),
    ("execute_command_in_container", "run_command"),
    ("create_file_in_container", "write_files"),
    ("download_files", "get_files"),
    ("cleanup_sandbox", "cleanup_session"),
    ("exit_container", "cleanup_session"),
];

/// The tool that is meant, with its arguments under their present names.
pub fn resolve(name: &str, arguments: JsonObject) -> (&str, JsonObject) {
    match TOOLS.iter().find(|(alias, _)| *alias == name) {
        Some((_, tool)) => (tool, renamed(tool, arguments)),
        None if name == "execute_task" => (name, renamed(name, arguments)),
        None => (name, arguments),
    }
}

/// The present name of a parameter, where an older one was used.
fn present_name<'a>(tool: &str, parameter: &'a str) -> &'a str {
    match (tool, parameter) {
        (_, "container_id" | "sandbox_id") => "session_id",
        ("run_command", "timeout_seconds") | ("execute_task", "timeout_seconds") => "timeout",
        ("run_command", "working_dir" | "workdir") => "cwd",
        ("get_files", "file_paths" | "files" | "filenames") => "paths",
        ("get_files", "path" | "file_path" | "filename") => "paths",
        ("execute_task", "task_description") => "task",
        (_, other) => other,
    }
}

fn renamed(tool: &str, arguments: JsonObject) -> JsonObject {
    let mut present = JsonObject::new();
    for (name, value) in arguments {
        let new = present_name(tool, &name);
        // A name that was given twice, once old and once new, is left as it is, and then refused as unknown.
        let key = if present.contains_key(new) { name } else { new.to_owned() };
        let value = match (key.as_str(), value) {
            ("paths", Value::String(one)) => json!([one]),
            (_, value) => value,
        };
        present.insert(key, value);
    }
    match tool {
        "write_files" => one_file(present),
        "cleanup_session" => {
            present.remove("force");
            present
        }
        _ => present,
    }
}

/// `filename` and `content` beside the session become a list of one file.
fn one_file(mut arguments: JsonObject) -> JsonObject {
    let path = ["filename", "file_path", "path"].into_iter().find_map(|name| arguments.remove(name));
    if let (Some(path), false) = (path, arguments.contains_key("files")) {
        let mut file = JsonObject::new();
        file.insert("path".to_owned(), path);
        for name in ["content", "encoding", "mode"] {
            if let Some(value) = arguments.remove(name) {
                file.insert(name.to_owned(), value);
            }
        }
        arguments.insert("files".to_owned(), json!([file]));
    }
    arguments
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn resolved(name: &str, arguments: Value) -> (String, Value) {
        let (tool, arguments) = resolve(name, arguments.as_object().unwrap().clone());
        (tool.to_owned(), Value::Object(arguments))
    }

    #[test]
    fn older_names_mean_present_tools() {
        assert_eq!(
            resolved("create_file_in_container", json!({"container_id": "s", "filename": "a", "content": "b"})),
            ("write_files".into(), json!({"session_id": "s", "files": [{"path": "a", "content": "b"}]}))
        );
        assert_eq!(
            resolved("exit_container", json!({"container_id": "s", "force": true})),
            ("cleanup_session".into(), json!({"session_id": "s"}))
        );
        assert_eq!(
            resolved("download_files", json!({"session_id": "s", "file_path": "a"})),
            ("get_files".into(), json!({"session_id": "s", "paths": ["a"]}))
        );
        assert_eq!(
            resolved("execute_task", json!({"task_description": "x"})),
            ("execute_task".into(), json!({"task": "x"}))
        );
    }

    #[test]
    fn present_tools_take_only_present_names() {
        let arguments = json!({"container_id": "s", "command": "true"});
        assert_eq!(resolved("run_command", arguments.clone()), ("run_command".into(), arguments));
    }
}
