//! run_command and get_output: start a job, follow a job, tell how it stands.

use std::{sync::Arc, time::Duration};

use rmcp::{RoleServer, service::RequestContext};
use sandbox_core::{
    Control, JobId, Reason,
    exec::{Ending, Exec, Exit, Job, Stdin},
};
use sandbox_executor::{
    client::{Client, ClientError, InputEnd, Until},
    protocol::Target,
};

use super::{
    answers::{self, Answer, Denial, JobStatus, LeftOut, Ran},
    arguments::{GetOutput, RunCommand},
    error::ToolError,
    follow::{self, Followed},
    output::{DEFAULT_BUDGET, Keep, MAX_BUDGET, Transcript},
    progress::Progress,
    signals,
};
use crate::sandboxes::{
    SandboxesError, Session, State,
    access::{self, Person, Refused},
    check_env, patience,
    way_out::WayOut,
};

/// Starts a command and answers with its end, or with how it stands when the patience is over.
pub async fn run_command(
    session: Arc<Session>,
    asked: RunCommand,
    context: &RequestContext<RoleServer>,
    person: &dyn Person,
) -> Result<Answer, ToolError> {
    let progress = Progress::of(context);
    let exec = command(&asked)?;
    let client = session.client().await?;
    let admitted = tokio::select! {
        admitted = session.admit(exec, person) => admitted,
        () = context.ct.cancelled() => return Err(ToolError::Cancelled),
    };
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(Refused::Denied(denials)) => return Ok(not_run(&session, &denials)),
        Err(later) => return Err(later.into()),
    };
    let mut notes = admitted.notes.clone();
    let started = session.start(admitted).await?;
    let (job, allowed) = (started.job(), started.allowed());
    let wait = follow::patience(&progress, asked.wait_seconds, allowed.timeout);
    notes.extend(allowed.lowered_from.map(|from| {
        let by = access::lowered_by(allowed.timeout, &session.facts().spec.policy, session.settings());
        format!("timeout was lowered from {} s to {} s ({by})", from.as_secs(), allowed.timeout.as_secs())
    }));
    feed(&client, job, &asked);
    let transcript = Transcript::new(Keep::Ends, budget(asked.max_bytes), 0);
    let followed = match follow::follow(started, transcript, wait, &session, context, progress).await {
        Ok(followed) => followed,
        Err(ToolError::Cancelled) => {
            follow::kill(&client, job).await;
            return Err(ToolError::Cancelled);
        }
        Err(error) => return Err(ended(&session, error).await),
    };
    report(&session, &client, job, followed, notes).await
}

/// More of a job's output; input and signals go to it first.
pub async fn get_output(
    session: Arc<Session>,
    asked: GetOutput,
    context: &RequestContext<RoleServer>,
) -> Result<Answer, ToolError> {
    let job: JobId = asked.job_id.parse()?;
    let signal = asked.signal.as_deref().map(signals::parse).transpose()?;
    let client = session.client().await?;
    if asked.input.is_some() || asked.close_input == Some(true) {
        let end = if asked.close_input == Some(true) { InputEnd::Close } else { InputEnd::Keep };
        let text = asked.input.unwrap_or_default();
        patience::in_time(client.input(job, text.as_bytes(), end)).await?;
    }
    if let Some(signal) = signal {
        patience::soon(client.signal(Target::Job(job), signal)).await?;
    }
    let progress = Progress::of(context);
    let longest = session.allowed(None).timeout;
    let wait = follow::patience(&progress, Some(asked.wait_seconds.unwrap_or(0)), longest);
    let until = if wait.is_zero() { Until::Now } else { Until::Exit };
    let offset = asked.offset.unwrap_or(0);
    let output = patience::soon(client.attach(job, offset, until)).await?;
    let transcript = Transcript::new(Keep::First, budget(asked.max_bytes), offset);
    let wait = if wait.is_zero() { PROMPT } else { wait };
    let followed = follow::follow(output, transcript, wait, &session, context, progress).await?;
    report(&session, &client, job, followed, Vec::new()).await
}

/// Time for an executor to hand over what it has.
const PROMPT: Duration = Duration::from_secs(5);

fn command(asked: &RunCommand) -> Result<Exec, ToolError> {
    let texts = [Some(&asked.command), asked.cwd.as_ref()];
    if texts.into_iter().flatten().any(|text| text.contains('\0')) {
        let what = "the command and its cwd must not hold NUL characters; put binary data into a file or stdin";
        return Err(ToolError::Invalid(what.to_owned()));
    }
    if asked.timeout == Some(0) {
        return Err(ToolError::Invalid("timeout must be at least 1 second".to_owned()));
    }
    let mut exec = Exec::shell(&asked.command);
    exec.cwd = asked.cwd.clone();
    exec.env = asked.env.clone().unwrap_or_default();
    check_env(&exec.env).map_err(SandboxesError::from)?;
    if asked.stdin.is_some() || asked.interactive == Some(true) {
        exec.stdin = Stdin::Piped;
    }
    exec.timeout = asked.timeout.map(Duration::from_secs);
    Ok(exec)
}

/// Sends standard input beside everything else: a command that does not read must not hold up its own output.
fn feed(client: &Client, job: JobId, asked: &RunCommand) {
    let Some(text) = asked.stdin.clone() else { return };
    let end = if asked.interactive == Some(true) { InputEnd::Keep } else { InputEnd::Close };
    let client = client.clone();
    tokio::spawn(async move {
        if let Err(error) = client.input(job, text.as_bytes(), end).await {
            tracing::debug!(%error, %job, "not all input was taken");
        }
    });
}

/// The answer about a command that was not run.
fn not_run(session: &Session, denials: &[sandbox_core::Denial]) -> Answer {
    let answer = Ran {
        session_id: session.id().to_string(),
        job_id: None,
        status: JobStatus::Denied,
        exit_code: None,
        signal: None,
        stdout: String::new(),
        stderr: String::new(),
        next_offset: 0,
        left_out: Vec::new(),
        duration_seconds: 0.0,
        denials: denials.iter().map(Denial::from).collect(),
        notes: vec!["it was not run".to_owned()],
    };
    Answer::of(&answer).with_outcome(answers::Outcome::Partial)
}

/// What refused or ended it: what is known, else what can be guessed from its output.
fn denials(session: &Session, exit: Option<(Exit, Duration)>, ending: &Ending, stderr: &str) -> Vec<Denial> {
    let refused = session.way_out().map(WayOut::take_refused).unwrap_or_default();
    let unreached = !refused.is_empty();
    let mut denials: Vec<Denial> = refused.iter().map(Denial::from).collect();
    match exit {
        Some((Exit::Limit(control), elapsed)) => {
            denials.insert(0, Denial::from(&session.ended_by(control, elapsed, ending)));
        }
        // Programs abort where an allocation fails.
        Some((Exit::Code(1..) | Exit::Signal(ABORTED), _)) => {
            let hints = access::hints(stderr, &session.facts().spec.policy);
            let new = hints.iter().filter(|hint| !(unreached && hint.0.reason == Reason::Network));
            denials.extend(new.map(Denial::from));
        }
        _ => {}
    }
    denials
}

/// SIGABRT.
const ABORTED: i32 = 6;

fn budget(asked: Option<u64>) -> usize {
    let asked = asked.and_then(|bytes| usize::try_from(bytes).ok());
    asked.unwrap_or(DEFAULT_BUDGET).clamp(256, MAX_BUDGET)
}

async fn report(
    session: &Session,
    client: &Client,
    job: JobId,
    followed: Followed,
    mut notes: Vec<String>,
) -> Result<Answer, ToolError> {
    let rendered = followed.transcript.render();
    let (mut exit, mut ending) = (followed.exit, followed.ending);
    let mut left_out = rendered.left_out;
    notes.extend(rendered.notes);
    let known = if exit.is_none() || !left_out.is_empty() { known_job(client, job).await? } else { None };
    if let Some(known) = &known {
        if exit.is_none() {
            (exit, ending) = (known.exit.map(|exit| (exit, known.elapsed)), known.ending);
        }
        left_out = still_kept(left_out, known.first_offset);
        if known.next_offset > rendered.next_offset && known.exit.is_some() {
            notes.push(format!("there is more output: get_output with offset {}", rendered.next_offset));
        }
    }
    if let Some(part) = left_out.iter().find(|part| part.kept) {
        notes.push(format!("for the output that is left out: get_output with offset {}", part.from_offset));
    }
    let mut outcome = Outcome::of(exit.map(|(exit, _)| exit));
    if outcome.status == JobStatus::Running
        && let Some(why) = session.frozen()
    {
        outcome.status = JobStatus::Frozen;
        notes
            .push(format!("frozen: {why}. It will not go on; get_files takes files, cleanup_session ends the sandbox"));
    }
    notes.extend(ending.refused(&session.facts().spec.policy.limits));
    let elapsed = exit.map(|(_, elapsed)| elapsed).or(known.map(|job| job.elapsed)).unwrap_or_default();
    let denials = denials(session, exit, &ending, &rendered.stderr);
    Ok(Answer::of(&Ran {
        session_id: session.id().to_string(),
        job_id: Some(job.to_string()),
        status: outcome.status,
        exit_code: outcome.exit_code,
        signal: outcome.signal,
        stdout: rendered.stdout,
        stderr: rendered.stderr,
        next_offset: rendered.next_offset,
        left_out,
        duration_seconds: (elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
        denials,
        notes,
    }))
}

async fn known_job(client: &Client, job: JobId) -> Result<Option<Job>, ClientError> {
    Ok(patience::soon(client.jobs()).await?.into_iter().find(|known| known.id == job))
}

/// Divides what is left out into what get_output can still read and what is gone.
fn still_kept(left_out: Vec<LeftOut>, first_kept: u64) -> Vec<LeftOut> {
    let divide = |part: LeftOut| {
        let at = first_kept.clamp(part.from_offset, part.to_offset);
        let gone = LeftOut { from_offset: part.from_offset, to_offset: at, kept: false };
        let kept = LeftOut { from_offset: at, to_offset: part.to_offset, kept: true };
        [gone, kept].into_iter().filter(|part| part.from_offset < part.to_offset)
    };
    left_out.into_iter().flat_map(divide).collect()
}

/// A broken connection says little; that the sandbox has ended, and why, says much.
async fn ended(session: &Session, error: ToolError) -> ToolError {
    match error {
        ToolError::Executor(ClientError::Closed) => match session.status().await.summary.state {
            State::Ended { why } => ToolError::Ended { id: session.id().to_string(), why },
            _ => error,
        },
        other => other,
    }
}

/// The end of a job in the words of an answer.
struct Outcome {
    status: JobStatus,
    exit_code: Option<i32>,
    signal: Option<String>,
}

impl Outcome {
    fn of(exit: Option<Exit>) -> Self {
        let plain = |status| Self { status, exit_code: None, signal: None };
        match exit {
            None => plain(JobStatus::Running),
            Some(Exit::Code(code)) => Self { exit_code: Some(code), ..plain(JobStatus::Exited) },
            Some(Exit::Signal(number)) => Self { signal: Some(signals::name(number)), ..plain(JobStatus::Killed) },
            Some(Exit::Limit(Control::Time)) => plain(JobStatus::Timeout),
            Some(Exit::Limit(_)) => Self { signal: Some(signals::name(9)), ..plain(JobStatus::Killed) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_longer_kept_is_told_apart() {
        let part = |from_offset, to_offset, kept| LeftOut { from_offset, to_offset, kept };
        assert_eq!(still_kept(vec![part(10, 90, true)], 50), [part(10, 50, false), part(50, 90, true)]);
        assert_eq!(still_kept(vec![part(10, 90, true)], 0), [part(10, 90, true)]);
        assert_eq!(still_kept(vec![part(10, 90, true)], 100), [part(10, 90, false)]);
    }

    #[test]
    fn a_limit_is_told_apart_from_a_signal() {
        assert_eq!(Outcome::of(Some(Exit::Limit(Control::Memory))).status, JobStatus::Killed);
        assert_eq!(Outcome::of(Some(Exit::Limit(Control::Time))).status, JobStatus::Timeout);
    }
}
