//! The tools as clients see them, in the order in which they are listed.

use std::sync::LazyLock;

use rmcp::model::{JsonObject, MetaObject, Tool, ToolAnnotations};
use serde_json::json;

use super::{answers, arguments, schema};
use crate::config::Settings;

/// What a client is told about this server as a whole.
pub const INSTRUCTIONS: &str = "Isolated Linux sandboxes for running commands and code safely. create_sandbox gives a \
session_id that every other tool takes; a sandbox idle for 30 minutes (unless the operator set another time) is removed \
with its files, and an unknown session_id is an error, never a new sandbox. Put files in with write_files, run shell \
commands with run_command, take results out with get_files; /workspace is the working folder, HOME and /tmp are writable \
too. What a sandbox can reach is its policy's to say (the default: public web sites and package registries, on ports 80 \
and 443; never this machine or private networks); request_access asks for more. pip install and npm i -g work without \
root. A command that does not end \
in time answers status \"running\" with a job_id: go on with get_output. What the policy refuses comes back as denials, \
each with how_to_ask. To show a person a web page or application, run its server inside and give them the address from \
open_port. Call cleanup_session when done. execute_task hands a whole task to an agent of this server, if its operator has \
configured one; with the agent mock nothing is done: run commands yourself then.";

/// All tools.
pub static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    use Effect::{Adds, Destroys, Opens, Reads, Runs};
    vec![
        define::<arguments::CreateSandbox, answers::Created>(
            "create_sandbox",
            "Create a sandbox",
            "Makes a new isolated Linux sandbox and returns its session_id. It is removed after 30 idle minutes.",
            Adds,
        ),
        define::<arguments::RunCommand, answers::Ran>(
            "run_command",
            "Run a command",
            "Runs a shell command in the sandbox and returns exit_code, stdout and stderr. If it takes longer than the \
             wait, the answer has status \"running\" and a job_id for get_output; the command goes on. Several may run \
             at once.",
            Runs,
        ),
        define::<arguments::GetOutput, answers::Ran>(
            "get_output",
            "Follow a job",
            "Reads more of a job's output from an offset; can wait for it, send it input or a signal.",
            Runs,
        ),
        define::<arguments::WriteFiles, answers::Written>(
            "write_files",
            "Write files",
            "Writes files into the sandbox. Folders are made as needed, existing files are replaced.",
            Destroys,
        ),
        define::<arguments::GetFiles, answers::Files>(
            "get_files",
            "Get files",
            "Reads files as base64 with size and MIME type. Content beyond max_bytes is left out: such a file has a \
             sha256 and a resource link instead; read it in pieces with offset and length.",
            Reads,
        ),
        define::<arguments::ListFiles, answers::Listed>(
            "list_files",
            "List files",
            "Lists files and folders, or only those that changed.",
            Reads,
        ),
        define::<arguments::OpenPort, answers::PortOpened>(
            "open_port",
            "Show a web server",
            "Gives a person a web address for an HTTP server in the sandbox (WebSockets work too), until the sandbox ends. \
             It works only on this computer, for whoever knows it, other users of this computer included.",
            Opens,
        ),
        define::<arguments::GetSandboxStatus, answers::Statuses>(
            "get_sandbox_status",
            "Sandbox status",
            "State, use of resources, jobs and enforced limits of a sandbox.",
            Reads,
        ),
        define::<arguments::RequestAccess, answers::Access>(
            "request_access",
            "Ask for more",
            "Asks a person for what the policy denies: a command, a longer timeout, a host. Ask only for what the task \
             needs; a no is final.",
            Adds,
        ),
        define::<arguments::CleanupSession, answers::CleanedUp>(
            "cleanup_session",
            "Remove a sandbox",
            "Ends the sandbox and removes everything in it.",
            Destroys,
        ),
        define::<arguments::ExecuteTask, answers::TaskDone>(
            "execute_task",
            "Do a task",
            "Hands a task in plain words to an agent that works alone in a sandbox, and returns what it says and which files it \
             made (get_files fetches them). A long task answers status \"running\": go on with get_sandbox_status. Another task \
             in the same session_id goes on with the conversation. The agent mock does not do the task.",
            Runs,
        ),
    ]
});

/// The tools as this operator's clients see them: with the policies and templates that there are to choose from.
pub fn listed(settings: &Settings) -> Vec<Tool> {
    let mut tools = TOOLS.clone();
    let names = settings.names_for_models().join(", ");
    let told = format!(
        "What it may do, one of: {names}. yolo-1 gives least, yolo-4 most. Default: {}.",
        settings.default_policy.name
    );
    for tool in tools.iter_mut().filter(|tool| tool.name == "create_sandbox") {
        let mut schema = JsonObject::clone(&tool.input_schema);
        schema["properties"]["policy"]["description"] = json!(told);
        let told = format!("A ready kind, instead of image: {}.", settings.template_names());
        schema["properties"]["template"]["description"] = json!(told);
        tool.input_schema = schema.into();
    }
    tools
}

/// Tools whose schemas a client should show to its model at once.
const CORE: [&str; 4] = ["create_sandbox", "run_command", "write_files", "get_files"];

/// What a call can do to the world.
#[derive(Clone, Copy)]
enum Effect {
    /// Nothing.
    Reads,
    /// Something new comes into being.
    Adds,
    /// The same, but a second call changes nothing.
    Opens,
    /// Something may be lost, inside a sandbox.
    Destroys,
    /// Whatever a command does, with the network that the policy gives.
    Runs,
}

fn define<I: schemars::JsonSchema, O: schemars::JsonSchema>(
    name: &'static str,
    title: &str,
    description: &'static str,
    effect: Effect,
) -> Tool {
    let mut tool = Tool::new(name, description, schema::input::<I>());
    tool.title = Some(title.to_owned());
    tool.output_schema = Some(schema::output::<O>().into());
    tool.annotations = Some(annotations(title, effect));
    tool.meta = CORE.contains(&name).then(always_load);
    tool
}

fn annotations(title: &str, effect: Effect) -> ToolAnnotations {
    let plain = ToolAnnotations::with_title(title);
    match effect {
        Effect::Reads => plain.read_only(true).open_world(false),
        Effect::Adds => plain.read_only(false).destructive(false).idempotent(false).open_world(false),
        Effect::Opens => plain.read_only(false).destructive(false).idempotent(true).open_world(false),
        Effect::Destroys => plain.read_only(false).destructive(true).idempotent(true).open_world(false),
        Effect::Runs => plain.read_only(false).destructive(true).idempotent(false).open_world(true),
    }
}

/// Claude Code defers schemas unless a tool says so.
fn always_load() -> MetaObject {
    let mut meta = JsonObject::new();
    meta.insert("anthropic/alwaysLoad".to_owned(), json!(true));
    MetaObject(meta)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{Flags, Typed};
    use sandbox_core::policy::PRESETS;

    #[test]
    fn all_a_model_has_to_read_is_small() {
        let read =
            |tool: &Tool| json!({"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema});
        let tools = listed(&settings(""));
        let bytes: usize = tools.iter().map(|tool| read(tool).to_string().len()).sum();
        assert!(bytes < 12_000, "{bytes} bytes");
    }

    fn settings(text: &str) -> Settings {
        let mut typed = Typed::default();
        typed.add_file(std::path::Path::new("/x"), text).unwrap();
        typed.add_flags(&Flags { state: Some("/nowhere/state".into()), ..Flags::default() }).unwrap();
        Settings::from_typed(typed).unwrap()
    }

    fn policies_told(settings: &Settings) -> String {
        let tools = listed(settings);
        let tool = tools.iter().find(|tool| tool.name == "create_sandbox").unwrap();
        json!(tool.input_schema)["properties"]["policy"]["description"].as_str().unwrap().to_owned()
    }

    #[test]
    fn every_policy_that_a_model_may_name_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("data-work.toml"), "").unwrap();
        let own = format!("policy_folder = {:?}\n", folder.path());
        let told = policies_told(&settings(&own));
        for name in PRESETS.into_iter().chain(["data-work", "Default: yolo-3"]) {
            assert!(told.contains(name), "{name}: {told}");
        }
        let tools = listed(&settings("[templates.mine]\nimage = \"host\""));
        assert!(json!(tools).to_string().contains("instead of image: base, cpp, go, mine, node, python, rust."));
        let told = policies_told(&settings(&format!("{own}allowed_policies = [\"yolo-3\", \"data-work\"]")));
        assert!(told.contains("one of: data-work, yolo-3. ") && !told.contains("production"), "{told}");
    }

    #[test]
    fn models_are_told_what_there_is_not_yet() {
        assert!(
            INSTRUCTIONS.contains("never this machine") && INSTRUCTIONS.contains("with the agent mock nothing is done")
        );
        let task = TOOLS.iter().find(|tool| tool.name == "execute_task").unwrap();
        assert!(task.description.as_ref().unwrap().contains("mock does not do the task"));
        for tool in TOOLS.iter() {
            assert!(json!(tool.input_schema)["properties"]["user_id"]["description"].is_string(), "{}", tool.name);
        }
    }

    #[test]
    fn every_tool_is_whole() {
        for tool in TOOLS.iter() {
            let input = json!(tool.input_schema);
            assert_eq!(
                (&input["type"], &input["additionalProperties"]),
                (&json!("object"), &json!(false)),
                "{}",
                tool.name
            );
            assert!(input.get("anyOf").is_none() && input.get("$schema").is_none());
            assert_eq!(json!(tool.output_schema)["type"], "object", "{}", tool.name);
            assert!(tool.title.is_some() && tool.annotations.as_ref().unwrap().read_only_hint.is_some());
            assert!(tool.name.len() <= 40);
        }
    }
}
