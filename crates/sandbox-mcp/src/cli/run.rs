//! `run`: a task in plain words, with something to look at while it goes on, and its results taken out.

use std::{
    fs::File,
    io::{IsTerminal, stderr},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sandbox_core::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    Answer,
    args::Run,
    exit,
    out::{Existing, OutError, OutFolder},
    prompt::AtTerminal,
    screen::{self, Look},
    terminal,
};
use crate::{
    agent::{self, Content, Note, TaskFile, TaskPlace, TaskRequest, TaskResult, TaskStatus},
    app::App,
    config::Settings,
    sandboxes::{ChangedFile, Lifetime},
};

/// Longest piece of a line that is shown while the work goes on.
const SHOWN: usize = 400;

pub(super) async fn run(settings: Settings, args: Run, answer: Answer) -> anyhow::Result<u8> {
    let files = args.files.iter().map(|path| open(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let app = App::make(settings)?;
    let code = tokio::select! {
        code = work(&app, args, files, answer) => code,
        signal = terminal::stop_asked() => {
            screen::tell("stopped");
            Ok(128 + signal)
        }
    };
    app.sandboxes.close().await;
    code
}

async fn work(app: &App, args: Run, files: Vec<TaskFile>, answer: Answer) -> anyhow::Result<u8> {
    let caller = args.session.as_ref().map_or_else(|| app.caller.clone(), |id| app.owner_of(id));
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    let lifetime = if args.keep { Lifetime::Persistent } else { Lifetime::Temporary };
    let place = match args.session {
        Some(session_id) => TaskPlace::Existing { session_id, level: args.level },
        None => TaskPlace::New { level: args.level, image: args.image, lifetime },
    };
    let request = TaskRequest { task: args.task, files, agent: args.agent, place, timeout: args.timeout };
    let (notes, mut shown) = mpsc::channel(64);
    let live = Live::start();
    let person = AtTerminal::new(&app.settings).beside(live.0.clone());
    let working = agent::execute(&app.sandboxes, &caller, request, Some(&notes), &person);
    tokio::pin!(working);
    let result = loop {
        tokio::select! {
            result = &mut working => break result,
            Some(note) = shown.recv() => live.show(note),
        }
    };
    while let Ok(note) = shown.try_recv() {
        live.show(note);
    }
    live.stop();
    let result = result?;
    let taken = take_out(app, &result, args.out, existing).await?;
    match answer {
        Answer::Json => screen::say_json(&taken.told(&result)),
        Answer::Text => taken.show(&result),
    }
    if args.keep {
        let id = &result.session_id;
        screen::tell(&format!("the sandbox is kept; to go in: sandbox-mcp exec --session {id} -- bash"));
        screen::tell(&format!("to remove it: sandbox-mcp rm {id}"));
    }
    Ok(match result.status {
        TaskStatus::Completed if taken.all_well() => 0,
        TaskStatus::Timeout => exit::TIMEOUT,
        _ => exit::FAILED,
    })
}

/// Opened before anything is made: a name that is mistyped costs nothing.
fn open(path: &Path) -> anyhow::Result<TaskFile> {
    let file = File::open(path).with_context(|| format!("the file {} cannot be read", path.display()))?;
    let found = file.metadata()?;
    if !found.is_file() {
        bail!("{} is not a regular file: name files one by one, or pack a folder with tar", path.display());
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("the name of {} is not UTF-8: rename it", path.display()))?;
    Ok(TaskFile { path: name.to_owned(), content: Content::File(file), mode: Some(found.mode() & 0o777) })
}

/// What was taken out, file by file.
struct Taken<'r> {
    folder: PathBuf,
    files: Vec<(&'r ChangedFile, Result<(), OutError>)>,
}

async fn take_out<'r>(
    app: &App,
    result: &'r TaskResult,
    out: Option<PathBuf>,
    existing: Existing,
) -> anyhow::Result<Taken<'r>> {
    let default = || Path::new("sandbox-output").join(screen::short_id(&result.session_id));
    let folder = out.unwrap_or_else(default);
    let mut taken = Taken { folder, files: Vec::new() };
    let mut results = result.changes.created.iter().chain(&result.changes.changed).peekable();
    if results.peek().is_some() {
        let session = app.sandboxes.find(&app.owner_of(&result.session_id), &result.session_id).await?;
        let cannot =
            || format!("results cannot be put into {}: name another folder with --out", taken.folder.display());
        let target = OutFolder::open(&taken.folder, existing).with_context(cannot)?;
        taken.files = target.take(&session, results).await;
    }
    Ok(taken)
}

impl Taken<'_> {
    fn all_well(&self) -> bool {
        self.files.iter().all(|(_, copied)| copied.is_ok())
    }

    fn show(&self, result: &TaskResult) {
        if !result.output.is_empty() {
            result.output.lines().for_each(|line| screen::say(&screen::harmless(line)));
        }
        for (file, copied) in &self.files {
            let inside = screen::harmless(&String::from_utf8_lossy(&file.path.0));
            let outside = self.folder.join(&inside);
            match copied {
                Ok(()) => screen::say(&screen::harmless(&format!("{}  {}", outside.display(), Bytes(file.size)))),
                Err(error) => screen::tell(&format!("{inside} was not taken out: {error}")),
            }
        }
        let look = if result.status == TaskStatus::Completed { Look::Good } else { Look::Bad };
        let (word, seconds) = (if look == Look::Good { "in" } else { "after" }, result.duration_seconds);
        let digits = if seconds < 0.1 { 3 } else { 1 };
        screen::tell_marked(result.status.as_str(), look, &format!("{word} {seconds:.digits$} s"));
        if let Some(error) = &result.error {
            screen::tell(error);
        }
    }

    fn told(&self, result: &TaskResult) -> Value {
        let mut told = serde_json::to_value(result).unwrap_or_default();
        let file = |(file, copied): &(&ChangedFile, Result<(), OutError>)| {
            let path = String::from_utf8_lossy(&file.path.0).into_owned();
            let error = copied.as_ref().err().map(ToString::to_string);
            json!({ "path": path, "copied": copied.is_ok(), "error": error })
        };
        told["out"] = json!({ "folder": self.folder, "files": self.files.iter().map(file).collect::<Vec<_>>() });
        told
    }
}

/// What a person at a terminal sees while the work goes on; others see nothing.
struct Live(ProgressBar);

impl Live {
    fn start() -> Self {
        let hidden = if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, hidden);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.set_message("making a sandbox");
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    fn show(&self, note: Note) {
        match note {
            Note::Sandbox(id) => self.0.set_message(format!("working in {id}")),
            Note::Step(step) => self.0.set_message(screen::harmless(&step)),
            Note::Output { data, .. } => {
                for line in String::from_utf8_lossy(&data).lines() {
                    let line: String = line.chars().take(SHOWN).collect();
                    self.0.println(screen::paint_if(true, &format!("│ {}", screen::harmless(&line)), Look::Dim));
                }
            }
        }
    }

    fn stop(&self) {
        self.0.finish_and_clear();
    }
}
