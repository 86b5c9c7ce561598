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
use rustix::fs::Access;
use sandbox_core::{Bytes, SessionId};
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

/// Where results go if nobody says.
const RESULTS: &str = "sandbox-output";
/// Longest piece of a line that is shown while the work goes on.
const SHOWN: usize = 400;

pub(super) async fn run(settings: Settings, args: Run, answer: Answer) -> anyhow::Result<u8> {
    let files = args.files.iter().map(|path| open(path)).collect::<anyhow::Result<Vec<_>>>()?;
    check_names(&args.files)?;
    check_out(args.out.as_deref())?;
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
    let narrowed = match args.session {
        Some(_) => Vec::new(),
        None => app.settings.lowered_by_ceiling(&agent::policy(&app.settings, args.level)?.name),
    };
    if args.level.is_some() {
        narrowed.iter().for_each(|what| screen::tell(what));
    }
    let place = match args.session {
        Some(session_id) => TaskPlace::Existing { session_id, level: args.level },
        None => {
            let template = args.template.as_deref().map(|name| app.settings.template(name)).transpose()?;
            let backend = args.backend.or_else(|| template?.backend.clone());
            let image = args.image.or_else(|| Some(template?.image.clone()));
            let env = template.map(|template| template.env.clone()).unwrap_or_default();
            TaskPlace::New { backend, level: args.level, image, lifetime, env }
        }
    };
    let request = TaskRequest { files, agent: args.agent, timeout: args.timeout, ..TaskRequest::new(args.task, place) };
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
        Answer::Json => {
            let mut told = taken.told(&result);
            told["narrowed"] = json!(narrowed);
            screen::say_json(&told);
        }
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

/// All files come to stand in one folder.
fn check_names(paths: &[PathBuf]) -> anyhow::Result<()> {
    for (number, path) in paths.iter().enumerate() {
        if let Some(other) = paths[..number].iter().find(|other| other.file_name() == path.file_name()) {
            let (first, second) = (other.display(), path.display());
            bail!("{first} and {second} have the same name, and one would replace the other: rename one of them");
        }
    }
    Ok(())
}

/// Also looked at before anything is made: results that can be put nowhere would be lost.
fn check_out(out: Option<&Path>) -> anyhow::Result<()> {
    if let Some(folder) = out {
        return open_out(folder, Existing::Keep).map(drop);
    }
    // With the dot at its end, a file of that name is in the way.
    let place = if Path::new(RESULTS).exists() { Path::new(RESULTS).join(".") } else { PathBuf::from(".") };
    let cannot = || format!("results cannot be put into ./{RESULTS}: name another folder with --out");
    rustix::fs::access(place, Access::WRITE_OK).with_context(cannot)
}

fn open_out(folder: &Path, existing: Existing) -> anyhow::Result<OutFolder> {
    let cannot = || format!("results cannot be put into {}: name another folder with --out", folder.display());
    OutFolder::open(folder, existing).with_context(cannot)
}

/// What was taken out, file by file.
struct Taken<'r> {
    folder: PathBuf,
    files: Vec<(&'r ChangedFile, Result<(), OutError>)>,
    /// Those for which something was in the way: the sandbox goes, but its results must not.
    aside: Option<Box<Taken<'r>>>,
}

async fn take_out<'r>(
    app: &App,
    result: &'r TaskResult,
    out: Option<PathBuf>,
    existing: Existing,
) -> anyhow::Result<Taken<'r>> {
    let folder = out.unwrap_or_else(|| new_folder(&result.session_id));
    let mut taken = Taken { folder, files: Vec::new(), aside: None };
    let mut results = result.changes.created.iter().chain(&result.changes.changed).peekable();
    if results.peek().is_some() {
        let session = app.sandboxes.find(&app.owner_of(&result.session_id), &result.session_id).await?;
        taken.files = open_out(&taken.folder, existing)?.take(&session, results).await;
        let in_the_way = |error: &OutError| matches!(error, OutError::Exists(_) | OutError::InTheWay);
        let left = taken.files.iter().filter(|(_, copied)| copied.as_ref().is_err_and(in_the_way));
        let left: Vec<&ChangedFile> = left.map(|(file, _)| *file).collect();
        if !left.is_empty() {
            let folder = new_folder(&result.session_id);
            match open_out(&folder, Existing::Keep) {
                Ok(target) => {
                    let files = target.take(&session, left).await;
                    taken.aside = Some(Box::new(Taken { folder, files, aside: None }));
                }
                Err(error) => screen::tell_error(&error),
            }
        }
    }
    Ok(taken)
}

/// One that is not there yet.
fn new_folder(id: &SessionId) -> PathBuf {
    let first = Path::new(RESULTS).join(screen::short_id(id));
    let later = (2..).map(|number| PathBuf::from(format!("{}-{number}", first.display())));
    std::iter::once(first.clone()).chain(later).find(|folder| folder.symlink_metadata().is_err()).unwrap_or(first)
}

impl Taken<'_> {
    fn all_well(&self) -> bool {
        self.files.iter().all(|(_, copied)| copied.is_ok())
    }

    fn show(&self, result: &TaskResult) {
        if !result.output.is_empty() {
            result.output.lines().for_each(|line| screen::say(&screen::harmless(line)));
        }
        self.show_files();
        let look = if result.status == TaskStatus::Completed { Look::Good } else { Look::Bad };
        let (word, seconds) = (if look == Look::Good { "in" } else { "after" }, result.duration_seconds);
        let digits = if seconds < 0.1 { 3 } else { 1 };
        screen::tell_marked(result.status.as_str(), look, &format!("{word} {seconds:.digits$} s"));
        if let Some(error) = &result.error {
            screen::tell(error);
        }
    }

    fn show_files(&self) {
        for (file, copied) in &self.files {
            let inside = screen::harmless(&String::from_utf8_lossy(&file.path.0));
            let outside = self.folder.join(&inside);
            match copied {
                Ok(()) => screen::say(&screen::harmless(&format!("{}  {}", outside.display(), Bytes(file.size)))),
                Err(error) => screen::tell(&format!("{inside} was not taken out: {error}")),
            }
        }
        if let Some(aside) = &self.aside {
            screen::tell(&format!("what was not taken out is in {} instead:", aside.folder.display()));
            aside.show_files();
        }
    }

    fn told(&self, result: &TaskResult) -> Value {
        let mut told = serde_json::to_value(result).unwrap_or_default();
        let file = |(file, copied): &(&ChangedFile, Result<(), OutError>)| {
            let path = String::from_utf8_lossy(&file.path.0).into_owned();
            let error = copied.as_ref().err().map(ToString::to_string);
            json!({ "path": path, "copied": copied.is_ok(), "error": error })
        };
        let out = |taken: &Taken<'_>| json!({ "folder": taken.folder, "files": taken.files.iter().map(file).collect::<Vec<_>>() });
        told["out"] = out(self);
        if let Some(aside) = &self.aside {
            told["out_aside"] = out(aside);
        }
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
            Note::Sandbox { session_id } => self.0.set_message(format!("working in {session_id}")),
            Note::Step { words } | Note::Call { words, .. } => self.0.set_message(screen::harmless(&words)),
            Note::Output { data, .. } => {
                for line in String::from_utf8_lossy(&data).lines() {
                    let line: String = line.chars().take(SHOWN).collect();
                    self.0.println(screen::paint_if(true, &format!("│ {}", screen::harmless(&line)), Look::Dim));
                }
            }
            _ => {}
        }
    }

    fn stop(&self) {
        self.0.finish_and_clear();
    }
}
