//! The agent that is none. Without a script it writes `output.txt`, reads it back with a command, and says how to get a
//! real one; with a script it follows that, for demonstrations and tests.

mod script;

use async_trait::async_trait;
use sandbox_core::exec::{Exec, Exit};

use super::{Agent, Assignment, Finished, Ran, WorkError, Worker};
use script::Script;

/// Its name.
pub const MOCK: &str = "mock";

const FILE: &str = "/workspace/output.txt";
/// So much of what a command printed is kept, for the case that it fails.
const KEPT: usize = 4000;

/// No model: it shows that everything around an agent works.
pub(super) struct Mock;

#[async_trait]
impl Agent for Mock {
    fn name(&self) -> &'static str {
        MOCK
    }

    async fn work(&self, task: Assignment, worker: &Worker<'_>) -> Result<Finished, WorkError> {
        if let Some(script) = Script::find(&task, worker).await? {
            return script.follow(&task, worker).await;
        }
        let task = &task.task;
        worker.say("Writing output.txt").await;
        worker.write(FILE, format!("The mock agent was given this task:\n\n{task}\n").as_bytes()).await?;
        let Ran { exit, output, .. } = worker.run_keeping(Exec::argv(["cat", FILE]), KEPT).await?;
        match exit {
            Exit::Code(0) => Ok(Finished { output: result(task) }),
            exit => Err(WorkError::Command { command: "cat output.txt".to_owned(), exit, output }),
        }
    }
}

fn result(task: &str) -> String {
    let short: String = task.chars().take(200).collect();
    format!(
        "This is the mock agent: no model worked on the task \"{short}\". It only wrote output.txt, which shows that \
         sandbox, files and commands work. For real work set ANTHROPIC_API_KEY, or `model_url` to a model of your own \
         (docs/agents.md), and use agent = \"claude\"; or let your own model use create_sandbox, write_files and run_command over MCP \
         (`sandbox-mcp serve`)."
    )
}
