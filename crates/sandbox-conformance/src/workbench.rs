//! What a case works with: sandboxes that are removed afterwards, and commands in one line.

use std::sync::{Arc, Mutex};

use sandbox_core::{
    Control, Error, Image, Policy, Sandbox, SandboxSpec, SessionId, UserId,
    exec::{Ending, Exec, Exit, Stream},
    policy::SystemCalls,
};
use sandbox_executor::{
    client::{Client, Follow, JobEvent},
    protocol::{NewFile, Path},
    transfer::Piece,
};

use crate::{Programs, Subject};

/// Makes sandboxes and removes them when the case is over.
#[derive(Clone)]
pub struct Workbench {
    /// What is being tried.
    pub subject: Subject,
    calls: SystemCalls,
    made: Arc<Mutex<Vec<Arc<dyn Sandbox>>>>,
}

/// How a command ended and what it wrote.
#[derive(Debug)]
pub struct Outcome {
    pub exit: Exit,
    pub ending: Ending,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Outcome {
    /// Standard output as text, without the last newline.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }
}

impl Workbench {
    /// A clean one.
    pub fn new(subject: Subject) -> Self {
        Self { subject, calls: spec().policy.privileges.system_calls, made: Arc::default() }
    }

    /// The same with other system calls.
    pub fn with_calls(self, calls: SystemCalls) -> Self {
        Self { calls, ..self }
    }

    /// A clean one of the same kind.
    pub fn another(&self) -> Self {
        Self { made: Arc::default(), ..self.clone() }
    }

    /// A sandbox with the default policy.
    pub async fn sandbox(&self) -> (Arc<dyn Sandbox>, Client) {
        self.sandbox_with(|_| {}).await
    }

    /// A sandbox with something changed.
    pub async fn sandbox_with(&self, change: impl FnOnce(&mut SandboxSpec)) -> (Arc<dyn Sandbox>, Client) {
        let mut spec = spec();
        spec.policy.privileges.system_calls = self.calls.clone();
        change(&mut spec);
        spec.policy.allow_unenforced.extend(&self.subject.unheld);
        let sandbox = self.subject.backend.create(&spec).await.unwrap_or_else(|error| panic!("create: {error}"));
        self.made.lock().unwrap().push(sandbox.clone());
        let client = connect(sandbox.as_ref()).await;
        (sandbox, client)
    }

    /// What every case starts from that makes its own, with what cannot be held accepted.
    pub fn spec(&self) -> SandboxSpec {
        let mut spec = spec();
        spec.policy.allow_unenforced.extend(&self.subject.unheld);
        spec
    }

    /// The same, where nothing is accepted of this control.
    pub fn spec_with(&self, control: Control) -> SandboxSpec {
        let mut spec = self.spec();
        spec.policy.allow_unenforced.remove(&control);
        spec
    }

    /// Whether sandboxes without an image have this machine's own programs.
    pub fn is_of_this_machine(&self) -> bool {
        self.subject.programs == Programs::OfThisMachine
    }

    /// Removes all that was made.
    pub async fn clear(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap());
        for sandbox in made {
            let _ = sandbox.destroy().await;
        }
    }
}

/// Whether going over this limit ends the whole sandbox, as its label says. Then that is tried with this command: it ends, the
/// sandbox with it, and another one is well.
pub async fn ends_with_all(
    bench: &Workbench,
    control: Control,
    change: impl Fn(&mut SandboxSpec),
    exec: &Exec,
) -> bool {
    let (sandbox, client) = bench.sandbox_with(&change).await;
    if !sandbox.facts().enforcement.0[&control].by.contains("the whole sandbox ends") {
        return false;
    }
    let (_other, bystander) = bench.sandbox().await;
    if let Ok(mut follow) = client.spawn(exec).await {
        loop {
            match follow.next().await {
                Ok(JobEvent::Exited { exit, .. }) => {
                    assert_ne!(exit, Exit::Code(0), "{control} was not held");
                    break;
                }
                Ok(_) => {}
                Err(_) => {
                    let ended = tokio::time::timeout(std::time::Duration::from_secs(20), sandbox.ended()).await;
                    ended.expect("it is told that the sandbox has ended");
                    break;
                }
            }
        }
    }
    assert_eq!(sh(&bystander, "echo alive").await.text(), "alive");
    true
}

/// Whether a command ended for its memory, as far as that can be told apart in this sandbox.
pub fn is_out_of_memory(sandbox: &dyn Sandbox, outcome: &Outcome) -> bool {
    let told_apart = !sandbox.facts().enforcement.0[&Control::Memory].by.contains("not told apart");
    let killed = matches!(outcome.exit, Exit::Signal(9) | Exit::Code(9 | 137));
    outcome.exit == Exit::Limit(Control::Memory) || (!told_apart && killed)
}

/// Whether this backend cannot hold a control. Then it refuses a sandbox that does not accept that, by name.
pub async fn is_unheld(bench: &Workbench, control: Control) -> bool {
    let unheld = bench.subject.unheld.contains(&control);
    if unheld {
        is_refused_by_name(bench, &bench.spec_with(control), control).await;
    }
    unheld
}

/// Whether this backend says of a control that it is watched in a way that misses something, in these words. Then it is
/// refused by name where a policy takes nothing that is only watched.
pub async fn is_said(bench: &Workbench, control: Control, words: &str) -> bool {
    let (sandbox, _client) = bench.sandbox().await;
    let said = sandbox.facts().enforcement.0[&control].by.contains(words);
    if said {
        let mut strict = bench.spec();
        strict.policy.strict = true;
        is_refused_by_name(bench, &strict, control).await;
    }
    said
}

/// That such a sandbox is refused, and by the name of this control.
pub async fn is_refused_by_name(bench: &Workbench, spec: &SandboxSpec, control: Control) {
    match bench.subject.backend.create(spec).await {
        Err(Error::Unenforceable { refused, .. }) => assert!(refused.0.contains_key(&control), "{refused:?}"),
        Err(other) => panic!("create: {other}"),
        Ok(_) => panic!("{control} cannot be held, and was not refused"),
    }
}

/// A sandbox as most cases want it.
pub fn spec() -> SandboxSpec {
    let owner = UserId::local();
    let id = SessionId::random(&owner).unwrap();
    SandboxSpec {
        id,
        owner,
        image: Image::Host,
        policy: Policy::default(),
        persistent: false,
        env: Default::default(),
        certificates: None,
        tools: Vec::new(),
    }
}

pub async fn connect(sandbox: &dyn Sandbox) -> Client {
    let channel = sandbox.connect().await.unwrap_or_else(|error| panic!("connect: {error}"));
    Client::connect(channel).await.unwrap_or_else(|error| panic!("connect: {error}"))
}

/// Whether a sandbox has a kernel of its own, gVisor's, which shows less and counts otherwise.
pub fn has_own_kernel(sandbox: &dyn Sandbox) -> bool {
    sandbox.facts().enforcement.0.get(&sandbox_core::Control::Privileges).is_some_and(|held| held.by.contains("gVisor"))
}

/// Runs a shell command to its end.
pub async fn sh(client: &Client, script: &str) -> Outcome {
    run(client, &Exec::shell(script)).await
}

/// Runs a command to its end.
pub async fn run(client: &Client, exec: &Exec) -> Outcome {
    let follow = client.spawn(exec).await.unwrap_or_else(|error| panic!("{}: {error}", exec.program));
    collect(follow).await
}

pub async fn collect(mut follow: Follow) -> Outcome {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match follow.next().await.unwrap_or_else(|error| panic!("following: {error}")) {
            JobEvent::Output { stream: Stream::Stdout, data, .. } => stdout.extend(data),
            JobEvent::Output { stream: Stream::Stderr, data, .. } => stderr.extend(data),
            JobEvent::Exited { exit, .. } => return Outcome { exit, ending: follow.ending(), stdout, stderr },
            JobEvent::Gap { .. } | JobEvent::Current => {}
        }
    }
}

/// Writes one file.
pub async fn put(client: &Client, path: &str, content: &[u8], mode: u32) {
    let mut writer = client.write().await.unwrap();
    writer.begin(&NewFile { path: Path::from(path), mode: Some(mode) }).await.unwrap();
    writer.data(content).await.unwrap();
    writer.finish().await.unwrap_or_else(|error| panic!("writing {path}: {error}"));
}

/// Reads one file.
pub async fn get(client: &Client, path: &str) -> Vec<u8> {
    let mut reader =
        client.read(&Path::from(path), 0, None).await.unwrap_or_else(|error| panic!("reading {path}: {error}"));
    let mut content = Vec::new();
    while let Some(piece) = reader.next().await.unwrap() {
        match piece {
            Piece::Data(data) => content.extend(data),
            Piece::Hole(length) => content.resize(content.len() + length as usize, 0),
        }
    }
    content
}
