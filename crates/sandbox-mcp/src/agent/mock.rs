//! The agent that is none: it writes `output.txt`, reads it back with a command, and says how to get a real one.

use sandbox_core::exec::{Exec, Exit};

use super::{WorkError, Worker};

const FILE: &str = "/workspace/output.txt";

pub(super) async fn work(worker: &Worker<'_>, task: &str) -> Result<String, WorkError> {
    worker.say("the mock agent writes output.txt").await;
    worker.write(FILE, format!("The mock agent was given this task:\n\n{task}\n").as_bytes()).await?;
    match worker.run(Exec::argv(["cat", FILE])).await? {
        Exit::Code(0) => Ok(result(task)),
        exit => Err(WorkError::Command { command: "cat output.txt".to_owned(), exit }),
    }
}

fn result(task: &str) -> String {
    let short: String = task.chars().take(200).collect();
    format!(
        "This is the mock agent: no model worked on the task \"{short}\". It only wrote output.txt, which shows that \
         sandbox, files and commands work. For real work, let your own model use create_sandbox, write_files and \
         run_command over MCP (`sandbox-mcp serve`); agents that work by themselves come with a later release (then: agent = \"claude\")."
    )
}
