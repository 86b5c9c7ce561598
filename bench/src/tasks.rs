//! Tasks: what we add to the model and to the commands, and Claude Code in a sandbox against Claude Code on the bare host.
//! The model answers at once, so that what is left is ours.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    clock::{Row, Samples, Stopwatch, Timing, Variant, interleave},
    goals::{Goal, missing, ratio},
    mcp,
    model::{CALLS, LAST, Model},
    private,
    program::CommandLine,
    results::Part,
};

/// Commands of a task that is measured for them.
const COMMANDS: usize = 20;
/// Tasks at once.
const AT_ONCE: usize = 10;
/// Where a sandbox looks for programs.
const PATH: &str = "/home/sandbox/.venv/bin:/home/sandbox/.local/bin:/opt/sandbox/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// A task of a real program takes so many commands.
const OF_A_PROGRAM: usize = 3;

/// Names of rows.
pub mod names {
    #![allow(missing_docs, reason = "the values say it")]
    pub const NEW: &str = "task in a new sandbox, one question";
    pub const MANY: &str = "the same with 20 commands";
    pub const SHELL: &str = "`bash -c :` on the host, with a sandbox's variables";
    pub const SMALL_SHELL: &str = "`sh -c :` on the host";
    pub const HOST: &str = "Claude Code on the bare host, 3 commands";
    pub const OURS: &str = "Claude Code as a task in a new sandbox, 3 commands";
}

/// What was measured of tasks.
pub struct Tasks {
    /// Of the built-in agent. First output is when the model was reached.
    pub own: Vec<Row>,
    /// How long so many at once took, all together.
    pub at_once: Samples,
}

/// What is needed for it.
pub struct Field<'a> {
    /// The program to measure.
    pub sandbox_mcp: &'a Path,
    /// For everything that is made on the way.
    pub folder: &'a Path,
    /// Where Claude Code is; or why not.
    pub agents: Result<PathBuf, String>,
}

impl Field<'_> {
    /// The built-in agent.
    pub fn own(&self, rounds: usize) -> Result<Tasks> {
        let model = Model::start()?;
        let mut server = self.server(&model, "tasks")?;
        let small_shell = CommandLine::new(["sh", "-c", ":"]);
        let server_cell = std::cell::RefCell::new(&mut server);
        let task = |commands: usize| {
            let mut server = server_cell.borrow_mut();
            model.arrivals();
            let start = Instant::now();
            let done = server.task(words("claude", commands))?;
            let total = start.elapsed();
            check(&done, commands + 1)?;
            let reached = model.arrivals().first().map(|at| at.duration_since(start)).context("the model was asked")?;
            server.remove(&done)?;
            Ok(Timing { first: reached, total })
        };
        let own = interleave(
            rounds,
            vec![
                Variant::new(names::NEW, || task(0)),
                Variant::new(names::MANY, || task(COMMANDS)),
                Variant::new(names::SHELL, shell),
                Variant::new(names::SMALL_SHELL, || small_shell.time()),
            ],
        )?;
        let at_once = (0..rounds.div_ceil(5)).map(|_| at_once(&mut server)).collect::<Result<Samples>>()?;
        Ok(Tasks { own, at_once })
    }

    /// Claude Code, in turns with and without us.
    pub fn claude_code(&self, rounds: usize) -> Result<Vec<Row>> {
        let agents = self.agents.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
        let model = Model::start()?;
        let mut server = self.server(&model, "claude-code")?;
        let version = std::fs::read_to_string(agents.join("claude-code/current"))?;
        let program = agents.join("claude-code").join(version.trim()).join("claude");
        let home = private(self.folder, "claude-home")?;
        interleave(
            rounds,
            vec![
                Variant::new(names::HOST, || on_the_host(&program, &home, &model)),
                Variant::new(names::OURS, || {
                    let mut watch = Stopwatch::start();
                    let done = server.task(words("claude-code", OF_A_PROGRAM))?;
                    watch.output();
                    let timing = watch.stop();
                    check(&done, OF_A_PROGRAM + 1)?;
                    server.remove(&done)?;
                    Ok(timing)
                }),
            ],
        )
    }

    fn server(&self, model: &Model, name: &str) -> Result<mcp::Server> {
        let state = private(self.folder, name)?;
        if let Ok(agents) = &self.agents {
            symlink(agents, private(&state, "sandbox-mcp")?.join("agents"))?;
        }
        let mut command = Command::new(self.sandbox_mcp);
        command.arg("serve").env("XDG_STATE_HOME", state);
        command.env("SANDBOX_MCP_MODEL_URL", model.address()).env_remove("ANTHROPIC_API_KEY");
        mcp::Server::greet(command)
    }
}

/// The command of the agent's tool, as the tool starts it: everything beyond that is ours.
fn shell() -> Result<Timing> {
    let watch = Stopwatch::start();
    let mut command = Command::new("/usr/bin/bash");
    command.args(["-c", ": 0"]).env_clear().env("LANG", "C.UTF-8").env("TERM", "xterm-256color").env("PATH", PATH);
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "bash does not work");
    Ok(watch.stop())
}

fn words(agent: &str, commands: usize) -> Value {
    let task = format!("Do what is to be done. {CALLS}{commands}");
    json!({ "task": task, "agent": agent, "timeout": 120 })
}

fn check(done: &Value, turns: usize) -> Result<()> {
    let well = done["status"] == "completed" && done["output"] == LAST && done["turns"] == turns;
    ensure!(well, "a task did not go as it should: {done}");
    Ok(())
}

/// How long it takes until the last of them is done.
fn at_once(server: &mut mcp::Server) -> Result<Duration> {
    let start = Instant::now();
    let all = server.tasks((0..AT_ONCE).map(|_| words("claude", OF_A_PROGRAM)).collect())?;
    let time = start.elapsed();
    for done in &all {
        check(done, OF_A_PROGRAM + 1)?;
        server.remove(done)?;
    }
    Ok(time)
}

/// With the same task, model and switches, spoken to as we do: its input is a stream that stays open until there is a result,
/// so that it can be told more. Only our prompt and the list of tools that are off are not there.
fn on_the_host(program: &Path, home: &Path, model: &Model) -> Result<Timing> {
    let folder = tempfile::tempdir_in(home)?;
    let mut command = Command::new(program);
    command.args(["-p", "--input-format", "stream-json", "--output-format", "stream-json"]);
    command.args(["--include-partial-messages", "--verbose", "--dangerously-skip-permissions"]);
    command.args(["--setting-sources", "", "--strict-mcp-config", "--model", "claude-opus-5-5"]);
    command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", home).env("IS_SANDBOX", "1");
    command.env("ANTHROPIC_BASE_URL", model.address()).env("ANTHROPIC_API_KEY", "none");
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    let task = format!("Do what is to be done. {CALLS}{OF_A_PROGRAM}");
    let content = json!([{ "type": "text", "text": task }]);
    let message = json!({ "type": "user", "message": { "role": "user", "content": content } });

    let watch = Stopwatch::start();
    let mut child = command.spawn()?;
    let mut input = child.stdin.take();
    if let Some(input) = &mut input {
        writeln!(input, "{message}")?;
    }
    let mut result = Value::Null;
    for line in BufReader::new(child.stdout.take().context("a pipe was asked for")?).lines() {
        let line: Value = serde_json::from_str(&line?)?;
        if line["type"] == "result" {
            result = line;
            drop(input.take());
        }
    }
    let status = child.wait()?;
    let timing = watch.stop();
    ensure!(status.success() && result["result"] == LAST, "Claude Code on the host: {result:.300}");
    Ok(timing)
}

/// What was to be reached.
pub fn goals(own: &Part<Tasks>, claude_code: &Part<Vec<Row>>) -> Vec<Goal> {
    let row = |rows: &[Row], name: &str| rows.iter().find(|row| row.name == name).cloned();
    let mut goals = Vec::new();
    let mut own_goal = |what, aim, most: f64, number: &dyn Fn(&Tasks) -> Option<(f64, f64)>| {
        goals.push(match own.as_ref().map(number) {
            Ok(Some((median, p95))) => Goal {
                what,
                seen: format!("{median:.2} ms (p95 {p95:.2})"),
                reached: format!("**{median:.2} ms**"),
                aim,
                met: Some(median < most),
            },
            Ok(None) => missing(what, aim, "no such row"),
            Err(why) => missing(what, aim, why),
        });
    };
    own_goal("a task in a new sandbox, with a model that answers at once", "< 50 ms", 50.0, &|tasks| {
        row(&tasks.own, names::NEW).map(|row| (row.total.median(), row.total.p95()))
    });
    own_goal("what each further command of a task takes beyond the same `bash -c`", "< 2 ms", 2.0, &|tasks| {
        let [many, one, shell] = [names::MANY, names::NEW, names::SHELL].map(|name| row(&tasks.own, name));
        let (many, one, shell) = (many?.total, one?.total, shell?.total);
        let each = |many: f64, one: f64, shell: f64| (many - one) / COMMANDS as f64 - shell;
        Some((each(many.median(), one.median(), shell.median()), each(many.p95(), one.p95(), shell.p95())))
    });
    own_goal("from the call to the first byte at the model, in a new sandbox", "< 20 ms", 20.0, &|tasks| {
        row(&tasks.own, names::NEW).map(|row| (row.first.median(), row.first.p95()))
    });
    let (what, aim) = ("ten tasks at once, three commands each", "none fails");
    goals.push(match own {
        Ok(Tasks { at_once, .. }) => Goal {
            what,
            seen: format!("the last done after {:.0} ms (p95 {:.0})", at_once.median(), at_once.p95()),
            reached: "**10 of 10**".to_owned(),
            aim,
            met: Some(true),
        },
        Err(why) => missing(what, aim, why),
    });
    let (what, aim) = ("Claude Code as a task in a new sandbox against Claude Code on the bare host", "≤ 1.2×");
    let rows = claude_code.as_ref().map(|rows| (row(rows, names::OURS), row(rows, names::HOST)));
    goals.push(match rows {
        Ok((Some(ours), Some(host))) => {
            let (ours, host) = (ours.total, host.total);
            let by_median = ours.median() / host.median();
            Goal {
                what,
                seen: format!("{:.0} ms against {:.0} ms", ours.median(), host.median()),
                reached: format!("**{}** (p95 {})", ratio(by_median), ratio(ours.p95() / host.p95())),
                aim,
                met: Some(by_median <= 1.2),
            }
        }
        Ok(_) => missing(what, aim, "no such row"),
        Err(why) => missing(what, aim, why),
    });
    goals
}
