//! The terminal's door: what was typed, carried out. Results go to standard output, everything else to standard error.

mod apart;
mod archive;
mod args;
mod attack;
mod container;
mod descriptors;
mod doctor;
mod exec;
mod exit;
mod fix;
mod images;
mod list;
mod live;
mod logs;
mod open;
mod out;
mod outside;
mod preview;
mod prompt;
mod pulling;
mod relay;
mod results;
mod rm;
mod run;
mod screen;
mod serve;
mod single;
mod task;
mod terminal;
mod uploads;
mod watch;

use std::{process::ExitCode, time::Duration};

use clap::Parser;

use crate::config::Settings;
use args::{Cli, Command, Global};

/// How long threads that wait for input are waited for at the end.
const FAREWELL: Duration = Duration::from_millis(50);

/// Everything after the role was decided. Single-threaded until the runtime is built.
pub fn main() -> ExitCode {
    if container::is_asked() {
        return container::main().map_or_else(
            |error| {
                screen::tell_error(&error);
                ExitCode::from(exit::FAILED)
            },
            ExitCode::from,
        );
    }
    let cli = match Cli::try_parse().and_then(Cli::checked) {
        Ok(cli) => cli,
        Err(error) => {
            if error.use_stderr() && args::asks_for_json(std::env::args_os()) {
                screen::say_json(&screen::error_in_json(error.to_string().trim_start_matches("error: ").trim()));
            }
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let failed = if matches!(cli.command, Command::Exec(_)) { exit::NO_SANDBOX } else { exit::FAILED };
    let code = match cli.command {
        Command::Exec(exec) if single::fits(&exec, &cli.global) => match single::run(exec, &cli.global) {
            Ok(Ok(code)) => Ok(code),
            Ok(Err(exec)) => with_runtime(Command::Exec(exec), &cli.global),
            Err(error) => Err(error),
        },
        command => with_runtime(command, &cli.global),
    };
    code.map_or_else(
        |error| {
            if cli.global.json {
                screen::say_json(&screen::error_in_json(&screen::with_causes(&error)));
            }
            screen::tell_error(&error);
            ExitCode::from(failed)
        },
        ExitCode::from,
    )
}

fn with_runtime(command: Command, global: &Global) -> anyhow::Result<u8> {
    let settings = Settings::load(&global.flags())?;
    start_log(&settings);
    let mut builder = match command {
        Command::Serve | Command::Doctor(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build()?;
    let code = runtime.block_on(carry_out(command, settings, global));
    runtime.shutdown_timeout(FAREWELL);
    code
}

async fn carry_out(command: Command, settings: Settings, global: &Global) -> anyhow::Result<u8> {
    let answer = if global.json { Answer::Json } else { Answer::Text };
    match command {
        Command::Serve => serve::serve(settings).await,
        Command::Run(args) => run::run(settings, args, answer).await,
        Command::Exec(args) => exec::exec(settings, args, answer).await,
        Command::List => list::list(settings, answer).await,
        Command::Logs(args) => logs::logs(settings, args, answer).await,
        Command::Open(args) => open::open(settings, args, answer).await,
        Command::Pull(args) => images::pull(settings, args, answer).await,
        Command::Images => images::images(settings, answer).await,
        Command::Rmi(args) => images::rmi(settings, args, answer).await,
        Command::Task(args) => task::task(&settings, args, answer),
        Command::Rm(args) => rm::rm(settings, args, answer).await,
        Command::Doctor(args) if args.fix => fix::fix(&settings, answer).await,
        Command::Doctor(args) if args.attack => attack::attack(settings, args, answer).await,
        Command::Doctor(_) => doctor::doctor(settings, answer).await,
    }
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Text,
    Json,
}

/// Standard error is often a file that a client keeps: colours are for terminals, and what a client does wrong is
/// answered to it, not noted by the library that reads it.
fn start_log(settings: &Settings) {
    let wanted = match settings.log.as_str() {
        usual @ ("warn" | "info") => format!("{usual},rmcp::service=error"),
        other => other.to_owned(),
    };
    let filter = tracing_subscriber::EnvFilter::try_new(wanted).unwrap_or_else(|_| "warn".into());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(screen::is_coloured(std::io::stderr()));
    if let Err(error) = log.with_writer(std::io::stderr).try_init() {
        screen::tell(&format!("there is no log: {error}"));
    }
}
