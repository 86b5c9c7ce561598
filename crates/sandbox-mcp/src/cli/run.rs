//! `run`: a task in plain words, with something to look at while it goes on, and its results taken out.
//!
//! Where a person sits at a terminal, another process of ours does the work ([`super::apart`]), and this one watches
//! ([`super::watch`]): so the person may leave and the task goes on.

use std::pin::pin;

use anyhow::{Context, bail};
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    Answer,
    apart::Apart,
    archive::Archive,
    args::Run,
    exit,
    live::Live,
    out::Existing,
    prompt::AtTerminal,
    results::{self, Taken},
    screen, terminal, uploads, watch,
};
use crate::{
    agent::{self, Mailbox, Note, TaskFile, TaskPlace, TaskRequest, TaskStatus},
    app::App,
    config::Settings,
    sandboxes::{Lifetime, access::Person},
};

pub(super) async fn run(settings: Settings, args: Run, answer: Answer) -> anyhow::Result<u8> {
    // All is looked at before anything is made: a name that is mistyped costs nothing.
    task(&args.words)?;
    let files = uploads::gather(&args.files, &args.data, &settings.state)?;
    if args.session.is_none() {
        uploads::check_room(&files, agent::policy(&settings, args.level)?.limits.disk)?;
    }
    let archive = args.archive.as_deref().map(|file| Archive::begin(file, args.force)).transpose()?;
    if archive.is_none() {
        results::check(args.out.as_deref())?;
    }
    agent::choose(&settings, args.agent.as_deref())?;
    if !args.apart && watch::is_possible() {
        drop((files, archive));
        return watch::watch(&settings, args.keep, answer).await;
    }
    let app = App::make(settings)?;
    let view = if args.apart { View::Apart(Apart::start()) } else { View::Here(Box::new(Live::start())) };
    let stopped = view.stopped();
    let mailbox = Mailbox::default();
    let mut working = pin!(work(&app, args, files, archive, answer, view, mailbox.clone()));
    let code = tokio::select! {
        code = &mut working => code,
        // Whoever asks a second time is not waited for.
        signal = terminal::stop_asked() => {
            screen::tell("stopping; what was made so far is taken out");
            mailbox.interrupt();
            working.await.map(|_| 128 + signal)
        }
        () = stopped => Ok(128 + 1),
    };
    app.sandboxes.close().await;
    code
}

/// The task, which is one word for the shell. More than one are a task without quotes, or a pattern without.
fn task(words: &[String]) -> anyhow::Result<String> {
    match words {
        [task] => Ok(task.clone()),
        many => {
            let word = many.iter().skip(1).find(|word| !word.is_empty()).map_or("", String::as_str);
            bail!(
                "the task is one text: put it in quotes, as in run \"Sum up sales.csv\". `{word}` stands beside it; if it \
                 came from a pattern, put that in quotes too: --file '*.csv'"
            )
        }
    }
}

/// Who sees what happens.
enum View {
    /// Whoever looks at this process.
    Here(Box<Live>),
    /// Another process.
    Apart(Apart),
}

impl View {
    fn show(&mut self, note: Note) {
        match self {
            Self::Here(live) => live.show(note),
            Self::Apart(apart) => apart.note(&note),
        }
    }

    fn person(&self, settings: &Settings) -> Box<dyn Person> {
        match self {
            Self::Here(live) => Box::new(AtTerminal::new(settings).beside(live.bar())),
            Self::Apart(apart) => Box::new(apart.person(settings.answer)),
        }
    }

    /// Returns when the process that watches has ended without leaving the task to itself.
    fn stopped(&self) -> impl Future<Output = ()> + use<> {
        let apart = match self {
            Self::Here(_) => None,
            Self::Apart(apart) => Some(apart.clone()),
        };
        async move {
            match apart {
                Some(apart) => apart.abandoned().await,
                None => std::future::pending().await,
            }
        }
    }
}

async fn work(
    app: &App,
    args: Run,
    files: Vec<TaskFile>,
    archive: Option<Archive>,
    answer: Answer,
    mut view: View,
    mailbox: Mailbox,
) -> anyhow::Result<u8> {
    let task = task(&args.words)?;
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
    let request = TaskRequest {
        files,
        agent: args.agent,
        model: args.model,
        budget_usd: args.budget,
        max_turns: args.max_turns,
        timeout: args.timeout,
        mailbox,
        ..TaskRequest::new(task, place)
    };
    let (notes, mut shown) = mpsc::channel(64);
    let person = view.person(&app.settings);
    let working = agent::execute(&app.sandboxes, &caller, request, Some(&notes), &*person);
    tokio::pin!(working);
    let mut unanswered = Vec::new();
    let mut show = |note: Note| {
        if let Note::Unanswered { question, default, why } = &note {
            unanswered.push(json!({ "question": question, "default": default, "why": why }));
        }
        view.show(note);
    };
    let result = loop {
        // What was done is told before what is asked next.
        tokio::select! {
            biased;
            Some(note) = shown.recv() => show(note),
            result = &mut working => break result,
        }
    };
    while let Ok(note) = shown.try_recv() {
        show(note);
    }
    if let View::Here(live) = &mut view {
        live.stop();
    }
    let result = result?;
    // What nobody has elsewhere does not go with its sandbox.
    let stays = || app.sandboxes.leave(&result.session_id).unwrap_or_else(|| "in the sandbox".to_owned());
    let taken = match archive {
        Some(archive) => Taken::pack(app, &result, archive).await,
        None => Taken::take_out(app, &result, args.out, existing).await,
    };
    let taken = taken.with_context(|| format!("the results could not be taken out. They stay {}", stays()))?;
    let code = match result.status {
        TaskStatus::Completed if taken.all_well() && result.unlisted.is_none() => 0,
        TaskStatus::Timeout => exit::TIMEOUT,
        _ => exit::FAILED,
    };
    let mut told = taken.told(&result, &narrowed);
    told["unanswered"] = json!(unanswered);
    if let Some(why) = taken.missing(&result) {
        told["missing"] = json!(format!("{why}. What is missing stays {}", stays()));
    }
    match &view {
        View::Here(_) => results::show(&told, args.keep, answer),
        View::Apart(apart) => apart.result(&told),
    }
    Ok(code)
}
