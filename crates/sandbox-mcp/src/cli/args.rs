//! What can be typed.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, error::ErrorKind};
use sandbox_attacks::Group;
use sandbox_core::{Image, Reference, SessionId};

use crate::config::Flags;

const EXIT_CODES: &str = "\
Exit codes:
  0    it worked
  1    it did not (the task failed, this machine cannot make sandboxes, …)
  2    the command line makes no sense
  124  a command or task ran out of time
  125  `exec`: no sandbox, so the command did not run
  126  `exec`: the command may not be run
  127  `exec`: there is no such command
  128+n  `exec`: signal n ended the command; 137 with a message: the memory limit did
  `exec` otherwise ends with the command's own code.";

const START: &str = "\
Examples:
  sandbox-mcp doctor                                  does it work on this machine?
  sandbox-mcp exec -- python3 -c 'print(6 * 7)'       one command in a fresh sandbox
  sandbox-mcp run \"Summarize sales.csv\" --file sales.csv --out results
  sandbox-mcp serve                                   for MCP clients, over standard streams";

/// Safe computers for AI agents: isolated sandboxes on this machine, without a daemon and without root.
#[derive(Debug, Parser)]
#[command(name = "sandbox-mcp", version, after_help = START, after_long_help = format!("{START}\n\n{EXIT_CODES}"))]
pub struct Cli {
    /// What was asked for.
    #[command(subcommand)]
    pub command: Command,
    /// Settings everywhere.
    #[command(flatten)]
    pub global: Global,
}

impl Cli {
    /// Refuses what only makes sense with other commands.
    pub fn checked(self) -> Result<Self, clap::Error> {
        if self.global.json && matches!(self.command, Command::Serve) {
            let why = "`serve` speaks MCP, which is JSON already: leave --json out";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, why));
        }
        Ok(self)
    }
}

/// Whether what was typed asks for JSON, though it could not be understood.
pub fn asks_for_json(words: impl Iterator<Item = OsString>) -> bool {
    words.take_while(|word| word != "--").any(|word| word == "--json")
}

/// Understood before and after every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Settings file [default: $XDG_CONFIG_HOME/sandbox-mcp/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// State folder, yours alone [default: $XDG_STATE_HOME/sandbox-mcp]
    #[arg(long, global = true, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Answer in JSON on standard output, errors too (`{"error": {"message": …}}`)
    #[arg(long, global = true)]
    pub json: bool,
}

impl Global {
    /// Those that are settings.
    pub fn flags(&self) -> Flags {
        Flags { config: self.config.clone(), state: self.state.clone() }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve an MCP client over standard input and output
    #[command(after_help = "\
The client starts this by itself. For example, in Claude Desktop's settings:
  {\"mcpServers\": {\"sandbox\": {\"command\": \"sandbox-mcp\", \"args\": [\"serve\"]}}}
When standard input closes, sandboxes that are not persistent end.")]
    Serve,
    /// Let an agent work on a task in a sandbox, and take the results out
    #[command(after_help = "\
The agent `claude` asks a model: set ANTHROPIC_API_KEY, or `model_url` to a server of your own (docs/agents.md).
The agent `mock` shows that everything works, but does not do the task.

Examples:
  sandbox-mcp run \"make a chart of data.csv\" --file data.csv --out charts
  sandbox-mcp run \"what is in these files?\" --file a.txt --file b.txt --level 1 --timeout 5m")]
    Run(Run),
    /// Run one command in a fresh sandbox, with your terminal or pipes and its exit code
    #[command(after_help = "\
It finds this machine's programs and an empty /workspace, not your files: pipe in what it needs.

Examples:
  sandbox-mcp exec -- bash                            a shell, with your terminal
  cat in.json | sandbox-mcp exec -- jq .name          pipes work as usual
  sandbox-mcp exec --policy full_isolation --timeout 10s -- python3 - < untrusted.py
  sandbox-mcp exec --session sandbox_local_4f2a… -- ls -l /workspace")]
    Exec(Exec),
    /// Show who can work on tasks, and fetch Claude Code or OpenCode
    #[command(after_help = "\
Programs are fetched from the npm registry that npm's settings name, for you alone, and run only inside sandboxes.

Examples:
  sandbox-mcp agents                                  who is there, and how to get the others
  sandbox-mcp agents install claude-code              the version of the settings, or the latest
  sandbox-mcp agents install opencode --version 1.18.34
  sandbox-mcp agents remove opencode")]
    Agents(Agents),
    /// List your sandboxes
    #[command(after_help = "\
States:
  running     a server looks after it
  unattended  no server does: it was kept, or its server is gone
  ended       nothing runs in it any more; its files stay until `rm` or clean-up")]
    List,
    /// Show what happened in your sandboxes; a one-shot `exec` leaves nothing to show
    Logs(Logs),
    /// Show a web server that runs in a sandbox at an address on this machine, until interrupted
    #[command(after_help = "\
Give the address only to whom you trust: whoever knows it and has a user on this machine can open it.

Examples:
  sandbox-mcp open sandbox_local_4f2a… 8000           then open the address in a browser
  sandbox-mcp open sandbox_local_4f2a… 8000 --json    the address for a program")]
    Open(Open),
    /// Show what tasks did: steps, files, hosts, cost
    #[command(after_help = "\
Examples:
  sandbox-mcp task list
  sandbox-mcp task show task_4f2a…                    also as a page; its place is told at the end
  sandbox-mcp task show task_4f2a… --json             everything, for a program")]
    Task(Task),
    /// End sandboxes and remove everything in them
    #[command(visible_alias = "remove")]
    Rm(Rm),
    /// Bring an image to this machine: from a registry, an archive (`docker save`, OCI) or the folder of an OCI layout
    #[command(after_help = "\
Logins of docker and podman are used (~/.docker/config.json, podman's auth.json); no engine is needed.

Examples:
  sandbox-mcp pull python:3.12-slim
  sandbox-mcp pull ./image.tar --name mine:1          made with `docker save` or `skopeo`
  sandbox-mcp exec --image python:3.12-slim -- python3 -V")]
    Pull(Pull),
    /// List the images on this machine
    Images,
    /// Remove images; layers that others share stay
    Rmi(Rmi),
    /// Tell what works on this machine, what does not, and how to fix it
    #[command(after_help = "\
Examples:
  sandbox-mcp doctor                                  what works here, and the fix for what does not
  sandbox-mcp doctor --attack                         try to break out of a sandbox of every policy
  sandbox-mcp doctor --attack --policy yolo-3 --group escape --json
Attacks are harmless probes, and run only inside sandboxes that are made for them.")]
    Doctor(Doctor),
}

/// `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Attack sandboxes of this machine, to see whether their walls hold; fails if any does not
    #[arg(long)]
    pub attack: bool,
    /// Put right what can be put right (needs root; without, it shows the commands)
    #[arg(long, conflicts_with = "attack")]
    pub fix: bool,
    /// Attack this policy, by name or file; may be given often [default: every one]
    #[arg(long = "policy", value_name = "POLICY", requires = "attack")]
    pub policies: Vec<String>,
    /// Only attacks of this group: escape, leakage, network, disguise, files, exhaustion; may be given often
    #[arg(long = "group", value_name = "GROUP", requires = "attack")]
    pub groups: Vec<Group>,
    /// Only attacks whose name holds this
    #[arg(long, value_name = "NAME", requires = "attack")]
    pub only: Option<String>,
}

/// `agents`.
#[derive(Debug, Args)]
pub struct Agents {
    /// What to do with them
    #[command(subcommand)]
    pub command: Option<AgentsCommand>,
}

/// What can be done with agents.
#[derive(Debug, Subcommand)]
pub enum AgentsCommand {
    /// Show them
    List,
    /// Fetch a program from the npm registry: claude-code or opencode
    Install {
        /// Which one
        name: String,
        /// Which version [default: what the settings say, else the latest]
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
    },
    /// Remove a program that was fetched
    Remove {
        /// Which one
        name: String,
    },
}

/// `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// What is to be done, in plain words and in quotes
    #[arg(required = true, value_name = "TASK")]
    pub words: Vec<String>,
    /// A file, a folder (all that is in it) or a pattern ('*.csv') that the task needs; may be given often
    #[arg(long = "file", short, value_name = "PATH")]
    pub files: Vec<PathBuf>,
    /// A file that the task needs, as base64; may be given often
    #[arg(long, value_name = "NAME=BASE64", value_parser = variable)]
    pub data: Vec<(String, String)>,
    /// Where results go; made if missing [default: a new folder in ./sandbox-output]
    #[arg(long, short, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Put the results into one archive instead, something.zip or something.tar.gz
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    pub archive: Option<PathBuf>,
    /// Replace files that are there already
    #[arg(long)]
    pub force: bool,
    /// Who works on it: `auto`, `claude`, `claude-code`, `opencode`, `mock` (`agents` shows them) [default: what the settings say, else `auto`]
    #[arg(long)]
    pub agent: Option<String>,
    /// Which model the agent asks [default: the setting `model`]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Stop before it has cost more than so many US dollars [default: the setting `task_budget_usd`]
    #[arg(long, value_name = "USD", value_parser = amount)]
    pub budget: Option<f64>,
    /// Stop after so many questions to the model [default: the setting `max_turns`]
    #[arg(long, value_name = "COUNT")]
    pub max_turns: Option<u32>,
    /// How much it may do by itself, 1 to 4 (root inside, may change everything) [default: 3]
    #[arg(long, value_name = "1-4", value_parser = level)]
    pub level: Option<u8>,
    /// Where the sandbox runs: `linux` (embedded), `docker`, or `oci`, a runtime such as gVisor [default: the setting `backend`]
    #[arg(long, value_name = "NAME", conflicts_with = "session")]
    pub backend: Option<String>,
    /// What the sandbox starts from: `host`, the absolute path of a root file system, or the name of an image
    #[arg(long)]
    pub image: Option<Image>,
    /// A kind of sandbox by name (base, python, node, rust, go, cpp, one of your own): its image and variables
    #[arg(long, value_name = "NAME", conflicts_with_all = ["image", "session"])]
    pub template: Option<String>,
    /// Stop after this long: 90, 90s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub timeout: Option<Duration>,
    /// Work in a sandbox that exists
    #[arg(long, value_name = "ID", conflicts_with_all = ["image", "keep"])]
    pub session: Option<SessionId>,
    /// Keep the sandbox afterwards, until `rm`
    #[arg(long)]
    pub keep: bool,
    /// Another process of ours watches, over standard streams
    #[arg(long, hide = true)]
    pub apart: bool,
}

/// `exec`.
#[derive(Debug, Args)]
pub struct Exec {
    /// Where the sandbox runs: `linux` (embedded), `docker`, or `oci`, a runtime such as gVisor [default: the setting `backend`]
    #[arg(long, value_name = "NAME", conflicts_with = "session")]
    pub backend: Option<String>,
    /// What the sandbox starts from: `host`, the absolute path of a root file system, or the name of an image
    #[arg(long, conflicts_with = "session")]
    pub image: Option<Image>,
    /// A kind of sandbox by name (base, python, node, rust, go, cpp, one of your own): its image, policy and variables
    #[arg(long, value_name = "NAME", conflicts_with_all = ["image", "session"])]
    pub template: Option<String>,
    /// What it may do: the name of a policy (yolo-1, full_isolation, one of your own) or its file (./mine.toml)
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "session")]
    pub policy: Option<String>,
    /// Run in a sandbox that exists
    #[arg(long, value_name = "ID")]
    pub session: Option<SessionId>,
    /// A variable for the command; may be given often
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Where the command starts [default: /workspace]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Stop it after this long: 90, 90s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub timeout: Option<Duration>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// `logs`.
#[derive(Debug, Args)]
pub struct Logs {
    /// Only this sandbox, by its session id
    pub session: Option<SessionId>,
    /// Go on showing what happens, until interrupted
    #[arg(long, short)]
    pub follow: bool,
    /// Only connections, made and refused
    #[arg(long)]
    pub network: bool,
    /// At most so many of the last lines
    #[arg(long, short = 'n', default_value_t = 100, value_name = "COUNT")]
    pub lines: u32,
}

/// `open`.
#[derive(Debug, Args)]
pub struct Open {
    /// The sandbox by its session id; `list` shows them
    pub session: SessionId,
    /// The port inside on which the server listens, on 127.0.0.1 or 0.0.0.0
    #[arg(value_parser = port)]
    pub port: u16,
}

/// `task`.
#[derive(Debug, Args)]
pub struct Task {
    /// What to do.
    #[command(subcommand)]
    pub command: TaskCommand,
}

/// What can be done with tasks.
#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List tasks, the newest first
    List {
        /// At most so many
        #[arg(long = "lines", short = 'n', default_value_t = 20, value_name = "COUNT")]
        count: usize,
    },
    /// Show the receipt of a task
    Show {
        /// Its id, or the beginning of it
        id: String,
    },
    /// Stop a task that runs; what it made is kept
    Stop {
        /// Its id, or the beginning of it
        id: String,
    },
}

/// `rm`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Rm {
    /// Sandboxes by their session ids; `list` shows them
    pub sessions: Vec<SessionId>,
    /// All your sandboxes
    #[arg(long)]
    pub all: bool,
    /// Your sandboxes that have ended
    #[arg(long)]
    pub ended: bool,
}

/// `pull`.
#[derive(Debug, Args)]
pub struct Pull {
    /// The name of an image, the path of an archive, or of a folder with an OCI layout
    #[arg(value_name = "NAME|ARCHIVE|FOLDER")]
    pub source: String,
    /// What it is called here [default: its own name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<Reference>,
}

/// `rmi`.
#[derive(Debug, Args)]
pub struct Rmi {
    /// Images by name; `images` shows them
    #[arg(required = true, value_name = "NAME")]
    pub images: Vec<Reference>,
}

/// A port of a program inside.
fn port(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| "a port is a number from 1 to 65535, such as 8000".to_owned())
}

fn level(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|level| (1..=4).contains(level)).ok_or_else(|| "a level is 1, 2, 3 or 4".to_owned())
}

fn amount(text: &str) -> Result<f64, String> {
    let amount = text.trim_start_matches('$').parse::<f64>().ok().filter(|amount| (0.0..=1e6).contains(amount));
    amount.ok_or_else(|| "write an amount of US dollars, such as 0.50".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("write seconds, or a number with s, m or h: 90, 5m, 1h".to_owned()),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number * seconds < 1e9 => Ok(Duration::from_secs_f64(number * seconds)),
        _ => Err("write a time above zero: 90, 5m, 1h".to_owned()),
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    parts.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| "write NAME=VALUE".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_keeps_its_own_flags() {
        let cli = Cli::try_parse_from(["sandbox-mcp", "exec", "--env", "A=b=c", "--", "ls", "-l", "--json"]).unwrap();
        let Command::Exec(exec) = cli.command else { panic!("not exec") };
        assert_eq!(exec.command, ["ls", "-l", "--json"]);
        assert_eq!(exec.env, [("A".to_owned(), "b=c".to_owned())]);
        assert!(!cli.global.json);
    }

    #[test]
    fn levels_are_one_to_four() {
        assert_eq!(level("4"), Ok(4));
        for wrong in ["0", "5", "all", "-1"] {
            assert_eq!(level(wrong), Err("a level is 1, 2, 3 or 4".to_owned()));
        }
    }

    #[test]
    fn times_are_written_as_people_do() {
        assert_eq!(time("90"), Ok(Duration::from_secs(90)));
        assert_eq!(time("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["", "0", "-1", "5 parsecs", "m", "nan"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
