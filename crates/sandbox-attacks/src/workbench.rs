//! What attacks work with: sandboxes that are removed afterwards, with the program in them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use sandbox_core::{
    Control, Created, Held, Policy, Sandbox, SandboxSpec, SessionId, UserId,
    exec::{Exec, Exit, Stream},
};
use sandbox_egress::{Doors, Engine, Resolver, Rules, Setup};
use sandbox_executor::{
    client::{Client, ClientError, Follow, JobEvent},
    protocol::{Failure, NewFile, Path, Reason, Target},
};
use serde::Deserialize;
use tokio::time::timeout;

use crate::{
    canary::Canary,
    program::PROGRAM,
    report::{Finding, Outcome},
    runner::{AttackError, Subject},
};

/// How long an attack may take before it counts as failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// How soon an executor must answer, whatever goes on in its sandbox.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);
const PLACE: &str = "/workspace/sandbox-attack";

/// Makes sandboxes.
#[derive(Clone)]
pub(crate) struct Bench {
    pub subject: Subject,
    pub canary: Arc<Canary>,
    made: Arc<Mutex<Vec<Made>>>,
}

/// A sandbox, and its way out if it has one.
type Made = (Created, Option<Arc<Engine>>);

/// A sandbox with the program in it.
#[derive(Clone)]
pub(crate) struct Cell {
    pub sandbox: Created,
    pub client: Client,
}

/// What the program inside said.
pub(crate) enum Said {
    Finding(Finding),
    /// Something for us to judge; it may still be running.
    Seen(String),
}

#[derive(Deserialize)]
struct Line {
    outcome: String,
    detail: String,
}

impl Bench {
    pub fn new(subject: Subject, canary: Arc<Canary>) -> Self {
        Self { subject, canary, made: Arc::default() }
    }

    /// Another one with nothing made yet.
    pub fn fresh(&self) -> Self {
        Self::new(self.subject.clone(), self.canary.clone())
    }

    /// A sandbox of the policy that is being tried.
    pub async fn cell(&self) -> Result<Cell, AttackError> {
        self.cell_with(self.subject.policy.clone()).await
    }

    pub async fn cell_with(&self, policy: Policy) -> Result<Cell, AttackError> {
        let owner = UserId::local();
        let id = SessionId::random(&owner).map_err(|error| AttackError::Name(error.to_string()))?;
        let image = self.subject.image.clone();
        let spec = SandboxSpec {
            id,
            owner,
            image,
            policy,
            persistent: false,
            env: Default::default(),
            certificates: None,
            tools: Vec::new(),
        };
        let sandbox = self.subject.backend.create(&spec).await.map_err(AttackError::Create)?;
        let opened = way_out(&*sandbox).await;
        let engine = opened.as_ref().ok().cloned().flatten();
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((sandbox.clone(), engine));
        opened?;
        let channel = sandbox.connect().await.map_err(AttackError::Create)?;
        let client = Client::connect(channel).await.map_err(AttackError::Talk)?;
        write(&client, PLACE.as_bytes(), PROGRAM, 0o755).await.map_err(AttackError::Talk)?;
        Ok(Cell { sandbox, client })
    }

    /// Removes all that was made. Says what could not be removed in time.
    pub async fn clear(&self) -> Result<(), String> {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for (sandbox, engine) in made {
            if let Some(engine) = engine {
                engine.close();
            }
            match timeout(PATIENCE, sandbox.destroy()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(format!("the sandbox could not be removed: {error}")),
                Err(_) => return Err(format!("the sandbox could not be removed within {PATIENCE:?}")),
            }
        }
        Ok(())
    }
}

impl Cell {
    /// Runs one attack to its first word.
    pub async fn attack(&self, name: &str, arguments: &[String]) -> Said {
        match timeout(PATIENCE, self.first_word(name, arguments)).await {
            Ok(Ok(said)) => said,
            Ok(Err(error)) => Said::Finding(Finding::failed(format!("it could not be started: {error}"))),
            Err(_) => Said::Finding(Finding::failed(format!("it said nothing for {PATIENCE:?}"))),
        }
    }

    /// Runs a helper, and says whether it did what it is for.
    pub async fn plant(&self, name: &str, arguments: &[&str]) -> Result<(), Finding> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        match self.attack(name, &arguments).await {
            Said::Seen(_) => Ok(()),
            Said::Finding(finding) if finding.outcome == Outcome::Held => Ok(()),
            Said::Finding(finding) => Err(finding),
        }
    }

    /// What a helper saw.
    pub async fn look(&self, name: &str, arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        match self.attack(name, &arguments).await {
            Said::Seen(seen) => seen,
            Said::Finding(finding) => finding.detail,
        }
    }

    /// Where processes are counted for other sandboxes too, those of the attack before may still be going.
    async fn start(&self, exec: &Exec) -> Result<Follow, ClientError> {
        let pids = self.sandbox.facts().enforcement.0.get(&Control::Pids);
        let is_shared = pids.is_some_and(|holding| holding.held == Held::None);
        let end = Instant::now() + ANSWER;
        loop {
            match self.client.spawn(exec).await {
                Err(ClientError::Refused(Failure { reason: Reason::TooMany, .. }))
                    if is_shared && Instant::now() < end =>
                {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                started => return started,
            }
        }
    }

    async fn first_word(&self, name: &str, arguments: &[String]) -> Result<Said, ClientError> {
        let argv = [PLACE, name].into_iter().map(str::to_owned).chain(arguments.iter().cloned());
        let mut exec = Exec::argv(argv);
        exec.timeout = Some(PATIENCE);
        let mut follow = self.start(&exec).await?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match follow.next().await? {
                JobEvent::Output { stream: Stream::Stdout, data, .. } => {
                    stdout.extend(data);
                    if let Some(end) = stdout.iter().position(|byte| *byte == b'\n') {
                        return Ok(read_line(&stdout[..end]));
                    }
                }
                JobEvent::Output { data, .. } if stderr.len() < 4096 => stderr.extend(data),
                JobEvent::Exited { exit, .. } => return Ok(Said::Finding(silent_end(exit, &stderr))),
                _ => {}
            }
        }
    }

    /// Whether its executor answers in time.
    pub async fn answers(&self) -> Result<(), String> {
        match timeout(ANSWER, self.client.usage()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("the executor is gone: {error}")),
            Err(_) => Err(format!("the executor did not answer within {ANSWER:?}")),
        }
    }

    /// Whether it still runs commands.
    pub async fn is_well(&self) -> Result<(), String> {
        self.answers().await?;
        match timeout(ANSWER, self.attack("still_here", &[])).await {
            Ok(Said::Finding(Finding { outcome: Outcome::Held, .. })) => Ok(()),
            Ok(Said::Finding(finding)) => Err(format!("commands do not run any more: {}", finding.detail)),
            Ok(Said::Seen(_)) => Err("commands do something else".to_owned()),
            Err(_) => Err(format!("a command did not end within {ANSWER:?}")),
        }
    }

    /// Ends every command, and says what is left after some time.
    pub async fn kill_all(&self) -> Result<(), String> {
        let mut left = 0;
        for _ in 0..50 {
            let _ = timeout(ANSWER, self.client.signal(Target::All, 9)).await;
            left = match timeout(ANSWER, self.client.usage()).await {
                Ok(Ok(running)) => running.processes,
                Ok(Err(error)) => return Err(format!("the executor is gone: {error}")),
                Err(_) => return Err(format!("the executor did not answer within {ANSWER:?}")),
            };
            if left == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(format!("{left} processes could not be ended"))
    }
}

/// The way out, as a server would serve it. Names are not looked up, so that nothing is ever sent to anywhere.
async fn way_out(sandbox: &dyn Sandbox) -> Result<Option<Arc<Engine>>, AttackError> {
    let doors = sandbox.doors().await.map_err(AttackError::Create)?;
    if doors.is_empty() {
        return Ok(None);
    }
    let failed = |why: String| AttackError::WayOut(why);
    let rules = Rules::of_policy(&sandbox.facts().spec.policy, &[]).map_err(|error| failed(error.to_string()))?;
    let nobody = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 9));
    let resolver = Resolver::with_server(nobody).map_err(|error| failed(error.to_string()))?;
    let doors = Doors::new(doors).map_err(|error| failed(error.to_string()))?;
    let engine = Engine::new(Setup::new(rules, resolver, drop));
    tokio::spawn(Arc::clone(&engine).serve(doors));
    Ok(Some(engine))
}

/// Writes one file through the executor.
pub(crate) async fn write(client: &Client, path: &[u8], content: &[u8], mode: u32) -> Result<(), ClientError> {
    let mut writer = client.write().await?;
    writer.begin(&NewFile { path: Path(path.to_vec()), mode: Some(mode) }).await?;
    writer.data(content).await?;
    writer.finish().await
}

fn read_line(line: &[u8]) -> Said {
    let Ok(Line { outcome, detail }) = serde_json::from_slice(line) else {
        return Said::Finding(Finding::failed(format!("it said {:?}", String::from_utf8_lossy(line))));
    };
    Said::Finding(match outcome.as_str() {
        "broke_through" => Finding::broke(detail),
        "held" => Finding::held(detail),
        "not_applicable" => Finding::not_applicable(detail),
        "seen" => return Said::Seen(detail),
        _ => Finding::failed(detail),
    })
}

/// What is said of a program that ended with 1 and said nothing at all.
pub(crate) const SILENT: &str = "it ended with 1: ";

/// It ended without a word: a limit did it, or a signal.
fn silent_end(exit: Exit, stderr: &[u8]) -> Finding {
    match exit {
        Exit::Limit(control) => Finding::held(format!("the {control} limit ended it")),
        Exit::Signal(signal) => Finding::held(format!("signal {signal} ended it")),
        Exit::Code(code) => {
            Finding::failed(format!("it ended with {code}: {}", String::from_utf8_lossy(stderr).trim()))
        }
    }
}
