//! create_sandbox, get_sandbox_status and cleanup_session: a sandbox's coming, being and going.

use std::{collections::BTreeMap, time::Duration};

use rmcp::{RoleServer, service::RequestContext};
use sandbox_core::{Bytes, Control, Denial, Policy, Reason, SessionId, UserId, exec::Exit, exec::Job, policy::Limits};
use serde_json::{Map, Value, json};

use super::{
    answers::{self, Answer, CleanedUp, Created, Held, Statuses},
    arguments::{CleanupSession, CreateSandbox, GetSandboxStatus, LowerLimits},
    error::ToolError,
    follow,
    progress::{self, Progress},
    schema, signals, task,
};
use crate::{
    app::App,
    config::{NotAllowed, Settings},
    sandboxes::{Lifetime, NewSandbox, Session, Status, access},
};

/// Commands start here.
const WORKSPACE: &str = "/workspace";
/// Jobs of one sandbox in an answer; the newest.
const SHOWN_JOBS: usize = 50;

/// Who the caller says to be. On standard streams the operating system knows who it is, so this is a label.
pub fn caller(app: &App, user_id: Option<&str>) -> Result<UserId, ToolError> {
    Ok(user_id.map(str::parse).transpose()?.unwrap_or_else(|| app.caller.clone()))
}

/// The caller's label for a sandbox: the one that is given, else the one that the sandbox has, or had by its id.
pub fn caller_of(app: &App, id: &SessionId, user_id: Option<&str>) -> Result<UserId, ToolError> {
    let label = || id.as_str().split('_').nth(1).and_then(|label| label.parse().ok());
    match user_id {
        Some(_) => caller(app, user_id),
        None => Ok(app.sandboxes.owner_of(id).or_else(label).unwrap_or_else(|| app.caller.clone())),
    }
}

/// Makes a sandbox.
pub async fn create_sandbox(
    app: &App,
    asked: CreateSandbox,
    context: &RequestContext<RoleServer>,
) -> Result<Answer, ToolError> {
    let owner = caller(app, asked.user_id.as_deref())?;
    let refuse = |refused| above_the_ceiling(app, refused);
    let template = asked.template.as_deref().map(|name| app.settings.template(name)).transpose();
    let template = template.map_err(NotAllowed::from)?;
    if template.is_some() && asked.image.is_some() {
        return Err(ToolError::Invalid("a template has an image: leave out `image` or `template`".to_owned()));
    }
    let mut policy = match (asked.policy.as_deref(), template.and_then(|template| template.policy.as_deref())) {
        // The operator wrote it there, for models too.
        (None, Some(name)) => app.settings.policy(name).map_err(NotAllowed::from)?,
        (asked, _) => app.settings.policy_for_model(asked).map_err(refuse)?,
    };
    let given = policy.clone();
    let raised = lower(&mut policy.limits, &asked.limits.unwrap_or_default())?;
    let image = match template {
        Some(template) => template.image.clone(),
        None => app.settings.image_for_model(asked.image.as_deref()).map_err(refuse)?,
    };
    let mut env = template.map(|template| template.env.clone()).unwrap_or_default();
    env.extend(asked.env.unwrap_or_default());
    let backend = template.and_then(|template| template.backend.clone());
    let lifetime = if asked.persistent == Some(true) { Lifetime::Persistent } else { Lifetime::Temporary };
    let new = NewSandbox { backend, image, policy, lifetime, env };
    let session = progress::while_fetching(context, |tell| app.sandboxes.create_telling(&owner, new, tell)).await?;
    let denials: Vec<Denial> = raised.iter().map(|raised| raised.denial(&given, &app.settings)).collect();
    let mut answer = created(&session);
    answer.notes = app.settings.lowered_by_ceiling(&given.name);
    answer.denials = denials.iter().map(answers::Denial::from).collect();
    session.refuse(denials);
    Ok(Answer::of(&answer))
}

/// What the operator lets nobody have.
fn above_the_ceiling(app: &App, refused: NotAllowed) -> ToolError {
    let (target, rule) = match &refused {
        NotAllowed::Image { asked, .. } => (asked, "allowed_images"),
        NotAllowed::Policy { asked, .. } => (asked, "allowed_policies"),
        NotAllowed::UnknownPolicy(_) | NotAllowed::NoImage(_) => return refused.into(),
    };
    let (message, how_to_ask) = refused.to_string().split_once(". ").map_or_else(
        || (refused.to_string(), String::new()),
        |(message, how_to_ask)| (message.to_owned(), how_to_ask.to_owned()),
    );
    app.sandboxes.journal().denials().count(Reason::Ceiling);
    let (target, rule, level) = (schema::shortened(target), rule.to_owned(), "operator".to_owned());
    ToolError::Denied(vec![Denial { reason: Reason::Ceiling, target, rule, level, message, how_to_ask, verdict: None }])
}

/// A limit that was asked for above the policy's.
#[derive(Debug, PartialEq, Eq)]
struct Raised {
    control: Control,
    asked: String,
}

impl Raised {
    fn denial(&self, policy: &Policy, settings: &Settings) -> Denial {
        let more = access::roomier(self.control, policy, settings);
        access::not_raised(self.control, &self.asked, policy, more.as_deref())
    }
}

fn created(session: &Session) -> Created {
    let facts = session.facts();
    Created {
        session_id: session.id().to_string(),
        image: facts.spec.image.to_string(),
        policy: facts.spec.policy.name.clone(),
        persistent: facts.spec.persistent,
        workspace: WORKSPACE.to_owned(),
        limits: shown_limits(&facts.spec.policy.limits),
        enforcement: enforcement(&facts.enforcement),
        denials: Vec::new(),
        notes: Vec::new(),
    }
}

fn enforcement(enforcement: &sandbox_core::Enforcement) -> BTreeMap<String, Held> {
    let held = |holding: &sandbox_core::Holding| Held {
        held: format!("{:?}", holding.held).to_lowercase(),
        by: holding.by.clone(),
    };
    enforcement.0.iter().map(|(control, holding)| (control.to_string(), held(holding))).collect()
}

fn shown_limits(limits: &Limits) -> BTreeMap<String, Value> {
    [
        ("memory", json!(limits.memory.to_string())),
        ("cpus", json!(f64::from(limits.cpu_millis) / 1000.0)),
        ("pids", json!(limits.pids)),
        ("disk", json!(limits.disk.to_string())),
        ("tmp", json!(limits.tmp.to_string())),
        ("timeout_seconds", json!(limits.run.as_secs())),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// Lowers limits; what would raise one is left out, and said.
fn lower(limits: &mut Limits, asked: &LowerLimits) -> Result<Vec<Raised>, ToolError> {
    let mut raised = Vec::new();
    let mut size = |name: Control, limit: &mut Bytes, asked: &Option<String>| {
        let Some(text) = asked else { return Ok(()) };
        let asked: Bytes = text.parse().map_err(|error| ToolError::Invalid(format!("limits.{name}: {error}")))?;
        if asked.0 < 1 << 20 {
            return Err(ToolError::Invalid(format!("limits.{name} must be at least 1MiB")));
        }
        if asked > *limit {
            raised.push(Raised { control: name, asked: asked.to_string() });
        }
        *limit = asked.min(*limit);
        Ok(())
    };
    size(Control::Memory, &mut limits.memory, &asked.memory)?;
    size(Control::Disk, &mut limits.disk, &asked.disk)?;
    size(Control::Tmp, &mut limits.tmp, &asked.tmp)?;
    if let Some(pids) = asked.pids {
        if pids == 0 {
            return Err(ToolError::Invalid("limits.pids must be at least 1".to_owned()));
        }
        if pids > limits.pids {
            raised.push(Raised { control: Control::Pids, asked: pids.to_string() });
        }
        limits.pids = pids.min(limits.pids);
    }
    if let Some(cpus) = asked.cpus {
        if !(0.01..=1024.0).contains(&cpus) {
            return Err(ToolError::Invalid("limits.cpus must be from 0.01 up, such as 0.5".to_owned()));
        }
        let millis = (cpus * 1000.0).round() as u32;
        if millis > limits.cpu_millis {
            raised.push(Raised { control: Control::Cpu, asked: cpus.to_string() });
        }
        limits.cpu_millis = millis.min(limits.cpu_millis);
    }
    Ok(raised)
}

/// One sandbox in full, or a line about each.
pub async fn get_sandbox_status(
    app: &App,
    asked: GetSandboxStatus,
    context: &RequestContext<RoleServer>,
) -> Result<Answer, ToolError> {
    let recovery = app.sandboxes.recovery();
    let recovered = (!recovery.is_empty()).then(|| recovery.to_string());
    let sandboxes = match &asked.session_id {
        Some(id) => {
            let id: SessionId = id.parse()?;
            let caller = caller_of(app, &id, asked.user_id.as_deref())?;
            let session = app.sandboxes.find(&caller, &id).await?;
            if let Some(seconds) = asked.wait_seconds {
                let mut progress = Progress::of(context);
                let patience = follow::patience(&progress, Some(seconds), Duration::from_secs(3600));
                task::wait(app, &id, patience, &mut progress).await;
                progress.finish().await;
            }
            let mut shown = in_full(&session.status().await);
            if let Some(task) = task::of_sandbox(app, &id) {
                shown.insert("task".to_owned(), task);
            }
            vec![shown]
        }
        None => {
            let list = app.sandboxes.list(&caller(app, asked.user_id.as_deref())?).await;
            list.iter().map(|summary| object(json!(summary))).collect()
        }
    };
    let counts = app.sandboxes.journal().denials().read();
    let denials = counts.into_iter().map(|(reason, count)| (reason.to_string(), count)).collect();
    let warm = app.sandboxes.warm();
    Ok(Answer::of(&Statuses { sandboxes, denials, recovered, warm }))
}

/// The one sandbox of whoever asks, with nothing about others.
pub async fn status_of_one(app: &App, id: &SessionId) -> Result<Answer, ToolError> {
    let session = app.sandboxes.find(&caller_of(app, id, None)?, id).await?;
    let mut shown = in_full(&session.status().await);
    let policy = &session.facts().spec.policy;
    shown.insert("limits".to_owned(), json!(shown_limits(&policy.limits)));
    // Elsewhere the network is not ours to give.
    if session.way_out().is_some() {
        let reaches =
            json!({ "network": policy.network, "rules": policy.network_rules, "host_ports": policy.host_ports });
        shown.insert("reaches".to_owned(), reaches);
    }
    let sandboxes = vec![shown];
    Ok(Answer::of(&Statuses { sandboxes, denials: BTreeMap::new(), recovered: None, warm: None }))
}

fn in_full(status: &Status) -> Map<String, Value> {
    let mut shown = object(json!(status.summary));
    let usage = status.usage.map(|usage| {
        json!({
            "memory_bytes": usage.memory.0,
            "cpu_seconds": (usage.cpu.as_secs_f64() * 1000.0).round() / 1000.0,
            "pids": usage.pids,
            "disk_bytes": usage.disk.0,
        })
    });
    let skipped = status.jobs.len().saturating_sub(SHOWN_JOBS);
    let jobs: Vec<Value> = status.jobs.iter().skip(skipped).map(job).collect();
    shown.insert("backend".to_owned(), json!(status.backend));
    shown.insert("usage".to_owned(), json!(usage));
    shown.insert("jobs".to_owned(), json!(jobs));
    shown.insert("enforcement".to_owned(), json!(enforcement(&status.enforcement)));
    shown.insert("grants".to_owned(), json!(status.grants));
    shown
}

fn job(job: &Job) -> Value {
    let (status, end) = match job.exit {
        None => ("running", Value::Null),
        Some(Exit::Code(code)) => ("exited", json!(code)),
        Some(Exit::Signal(number)) => ("killed", json!(signals::name(number))),
        Some(Exit::Limit(control)) => ("killed", json!(format!("{control} limit"))),
    };
    let command: String = job.command.chars().take(200).collect();
    json!({
        "job_id": job.id.to_string(),
        "command": command,
        "status": status,
        "end": end,
        "elapsed_seconds": (job.elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
        "next_offset": job.next_offset,
    })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Ends a sandbox.
pub async fn cleanup_session(app: &App, asked: CleanupSession) -> Result<Answer, ToolError> {
    let id: SessionId = asked.session_id.parse()?;
    let caller = caller_of(app, &id, asked.user_id.as_deref())?;
    app.sandboxes.remove(&caller, &id).await?;
    Ok(Answer::of(&CleanedUp {
        status: "success".to_owned(),
        message: "The sandbox and everything in it was removed.".to_owned(),
        session_id: id.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn limits_go_down_and_never_up() {
        let mut limits = sandbox_core::Policy::default().limits;
        let before = limits.clone();
        let asked =
            LowerLimits { memory: Some("64MiB".into()), pids: Some(9999), cpus: Some(0.5), ..LowerLimits::default() };
        let raised = lower(&mut limits, &asked).unwrap();
        assert_eq!((limits.memory, limits.cpu_millis, limits.pids), (Bytes::mib(64), 500, before.pids));
        assert_eq!(raised, [Raised { control: Control::Pids, asked: "9999".into() }]);
        let nonsense = LowerLimits { disk: Some("lots".into()), ..LowerLimits::default() };
        assert!(lower(&mut limits, &nonsense).unwrap_err().to_string().contains("limits.disk"));
    }
}
