//! Runs attacks on one policy: those that disturb nobody together in one sandbox, the others each in their own.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use sandbox_core::{Backend, Bytes, Control, Error, Facts, Image, Policy};
use sandbox_executor::client::ClientError;
use tokio::{process::Command, time::timeout};

use crate::{
    Attack, Bystander, Group, Outcome, PolicyReport, Record, Wall,
    attack::{Room, Way},
    canary::Canary,
    expectation::{self, capability_masks},
    program,
    report::Finding,
    workbench::{ANSWER, Bench, Cell, PATIENCE, SILENT, Said},
};

/// What is attacked.
#[derive(Clone)]
pub struct Subject {
    /// Where sandboxes are made.
    pub backend: Arc<dyn Backend>,
    /// Its name, for the report.
    pub backend_name: String,
    /// What they start from.
    pub image: Image,
    /// What they may do.
    pub policy: Policy,
}

/// Why nothing could be tried.
#[derive(Debug, thiserror::Error)]
pub enum AttackError {
    /// No sandbox.
    #[error(transparent)]
    Create(Error),
    /// A sandbox without a name.
    #[error("there is no name for a sandbox: {0}")]
    Name(String),
    /// No executor.
    #[error("the attack program could not be brought into the sandbox: {0}")]
    Talk(ClientError),
    /// Its way out could not be served.
    #[error("the way out of the sandbox could not be served: {0}")]
    WayOut(String),
    /// The suite's own things on this machine.
    #[error("the canary could not be started on this machine: {0}")]
    Canary(std::io::Error),
    /// The program does not run inside, so that nothing would be proved.
    #[error("the attack program does not run inside: {0}")]
    Program(String),
}

/// What happens meanwhile.
pub enum Progress<'a> {
    /// So many attacks are to be made.
    Begun(usize),
    /// One is over.
    Ended(&'a Record),
}

/// Disturbing nobody, so many at once.
const TOGETHER: usize = 4;
/// Exhausting their own sandbox, so many at once. They mostly wait for those who watch.
const EXHAUSTING: usize = 4;

/// Tries all attacks of these groups whose name contains `filter`.
pub async fn run(
    subject: Subject,
    groups: &[Group],
    filter: &str,
    progress: &(dyn Fn(Progress<'_>) + Send + Sync),
) -> Result<PolicyReport, AttackError> {
    let begun = Instant::now();
    let chosen: Vec<Attack> =
        crate::all().filter(|attack| groups.contains(&attack.group) && attack.name.contains(filter)).collect();
    let canary = Arc::new(Canary::start().await.map_err(AttackError::Canary)?);
    let bench = Bench::new(subject.clone(), canary);
    let cell = bench.cell().await?;
    cell.is_well().await.map_err(AttackError::Program)?;
    progress(Progress::Begun(chosen.len()));
    let mut run = Run { facts: cell.sandbox.facts().clone(), subject, bench, cell, records: Vec::new() };
    run.inside(&chosen, progress).await;
    run.apart(&chosen, progress).await;
    let bystander = run.exhaustion(&chosen, progress).await;
    let _ = run.bench.clear().await;
    Ok(run.report(bystander, begun.elapsed()))
}

struct Run {
    subject: Subject,
    facts: Facts,
    bench: Bench,
    /// The sandbox for attacks that disturb nobody, and the bystander of those that do.
    cell: Cell,
    records: Vec<Record>,
}

type Tell<'a> = &'a (dyn Fn(Progress<'_>) + Send + Sync);

impl Run {
    async fn inside(&mut self, chosen: &[Attack], progress: Tell<'_>) {
        let arguments = self.arguments();
        let attacks = chosen.iter().filter(|attack| matches!(attack.way, Way::Inside | Way::Judged(_)));
        let tried = stream::iter(attacks).map(|attack| {
            let (cell, arguments, bench) = (&self.cell, &arguments, &self.bench);
            let facts = &self.facts;
            async move {
                let begun = Instant::now();
                let finding = match (cell.attack(attack.name, arguments).await, attack.way) {
                    (Said::Finding(finding), _) => finding,
                    (Said::Seen(seen), Way::Judged(judge)) => judge(&seen, &bench.canary, facts),
                    (Said::Seen(seen), _) => Finding::failed(format!("nobody judges what it saw: {seen}")),
                };
                (attack, finding, begun.elapsed())
            }
        });
        let mut tried = std::pin::pin!(tried.buffer_unordered(TOGETHER));
        let mut records = Vec::new();
        while let Some((attack, finding, took)) = tried.next().await {
            records.push(self.record(attack, finding, took, progress));
        }
        self.records.extend(records);
        if let Err(why) = self.cell.is_well().await {
            let attack =
                Attack::new(Group::Escape, Way::Inside, "executor_survives", &[Wall::ExecutorHardening], SURVIVES);
            let record = self.record(&attack, Finding::broke(why), Duration::ZERO, progress);
            self.records.push(record);
        }
    }

    /// Those that want a sandbox of their own.
    async fn apart(&mut self, chosen: &[Attack], progress: Tell<'_>) {
        let arguments = self.arguments();
        let attacks = chosen.iter().filter(|attack| matches!(attack.way, Way::Alone | Way::Outside(_)));
        let tried = stream::iter(attacks).map(|attack| {
            let (bench, arguments) = (self.bench.fresh(), &arguments);
            async move {
                let begun = Instant::now();
                let work = async {
                    match attack.way {
                        Way::Outside(attack) => attack(bench.clone()).await,
                        _ => alone(&bench, attack, arguments).await,
                    }
                };
                let finding = timeout(3 * PATIENCE, work).await;
                let finding = finding.unwrap_or_else(|_| Finding::failed("it did not end"));
                (attack, after_clearing(finding, &bench).await, begun.elapsed())
            }
        });
        let mut tried = std::pin::pin!(tried.buffer_unordered(TOGETHER));
        let mut records = Vec::new();
        while let Some((attack, finding, took)) = tried.next().await {
            records.push(self.record(attack, finding, took, progress));
        }
        self.records.extend(records);
    }

    async fn exhaustion(&mut self, chosen: &[Attack], progress: Tell<'_>) -> Option<Bystander> {
        let attacks: Vec<&Attack> = chosen.iter().filter(|attack| matches!(attack.way, Way::Exhausting(_))).collect();
        if attacks.is_empty() {
            return None;
        }
        let before = self.percentile(20).await;
        let healthy = host_trouble(&self.bench.canary).await;
        // What a sandbox lacks by itself is no harm that another does to it.
        let neighbour = self.cell.look("host_resources", &[]).await;
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let cell = self.cell.clone();
        let watching = tokio::spawn(async move {
            let mut times = Vec::new();
            while stopped.try_recv().is_err() {
                times.push(command_time(&cell).await);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            times
        });
        // What is a user's or the whole machine's is used up by one at a time, so that it is known who did it. So is
        // processor time, or they would take it from each other.
        let (apart, together): (Vec<&Attack>, Vec<&Attack>) = attacks
            .into_iter()
            .partition(|attack| attack.walls.iter().any(|wall| matches!(wall, Wall::UserLimits | Wall::CpuLimit)));
        for (attacks, at_once) in [(together, EXHAUSTING), (apart, 1)] {
            let tried = stream::iter(attacks).map(|attack| {
                let (bench, healthy, bystander) = (self.bench.fresh(), &healthy, &self.cell);
                let neighbour = &neighbour;
                async move {
                    let begun = Instant::now();
                    let finding = timeout(4 * PATIENCE, exhaust(&bench, attack, bystander, healthy, neighbour)).await;
                    let finding = finding.unwrap_or_else(|_| Finding::failed("it did not end"));
                    (attack, after_clearing(finding, &bench).await, begun.elapsed())
                }
            });
            let mut tried = std::pin::pin!(tried.buffer_unordered(at_once));
            let mut records = Vec::new();
            while let Some((attack, finding, took)) = tried.next().await {
                records.push(self.record(attack, finding, took, progress));
            }
            self.records.extend(records);
        }
        let _ = stop.send(());
        let during = percentile(watching.await.unwrap_or_default());
        Some(Bystander { before, during })
    }

    async fn percentile(&self, count: usize) -> f64 {
        let mut times = Vec::new();
        for _ in 0..count {
            times.push(command_time(&self.cell).await);
        }
        percentile(times)
    }

    fn arguments(&self) -> Vec<String> {
        let mut all = self.bench.canary.arguments();
        let (granted, bounding) = capability_masks(&self.facts);
        all.extend([format!("granted={granted:x}"), format!("bounding={bounding:x}")]);
        if self.facts.spec.image != Image::Host {
            // The image brings its own people.
            all.retain(|argument| !argument.starts_with("user="));
        }
        all
    }

    fn record(&self, attack: &Attack, finding: Finding, took: Duration, progress: Tell<'_>) -> Record {
        let record = Record {
            attack: attack.name.to_owned(),
            group: attack.group,
            policy: self.subject.policy.name.clone(),
            outcome: finding.outcome,
            expected: expectation::of(attack, &self.facts),
            detail: finding.detail,
            tries: attack.tries.to_owned(),
            walls: attack.walls.to_vec(),
            milliseconds: took.as_millis() as u64,
        };
        progress(Progress::Ended(&record));
        record
    }

    fn report(self, bystander: Option<Bystander>, took: Duration) -> PolicyReport {
        PolicyReport {
            backend: self.subject.backend_name,
            policy: self.subject.policy.name,
            image: self.subject.image.to_string(),
            skipped: None,
            failed: false,
            memory_held: self.facts.enforcement.0.get(&Control::Memory).map(|holding| holding.held),
            records: self.records,
            bystander,
            milliseconds: took.as_millis() as u64,
        }
    }
}

const SURVIVES: &str = "All attacks that were made in one sandbox, together, on its executor";

async fn after_clearing(finding: Finding, bench: &Bench) -> Finding {
    match bench.clear().await {
        Err(why) if finding.outcome != Outcome::Failed => Finding::broke(format!("{}; then {why}", finding.detail)),
        _ => finding,
    }
}

/// In a sandbox of its own, whose executor must be well afterwards.
async fn alone(bench: &Bench, attack: &Attack, arguments: &[String]) -> Finding {
    let cell = match bench.cell().await {
        Ok(cell) => cell,
        Err(error) => return Finding::failed(error.to_string()),
    };
    let said = cell.attack(attack.name, arguments).await;
    match (said, cell.is_well().await) {
        (Said::Finding(finding), Ok(())) => finding,
        (Said::Seen(seen), Ok(())) => Finding::held(seen),
        (_, Err(why)) => Finding::broke(why),
    }
}

/// The policy with limits that are reached in a moment.
pub(crate) fn small(policy: &Policy, room: Room) -> Policy {
    let mut policy = policy.clone();
    let limits = &mut policy.limits;
    limits.memory = Bytes(limits.memory.0.min(64 << 20));
    limits.pids = limits.pids.min(64);
    limits.disk = Bytes(limits.disk.0.min(if room == Room::TinyDisk { 4 << 20 } else { 32 << 20 }));
    limits.cpu_millis = limits.cpu_millis.min(1000);
    limits.tmp = if room == Room::LargeTmp { Bytes(1 << 30) } else { Bytes(limits.tmp.0.min(24 << 20)) };
    policy
}

/// In a sandbox with small limits; meanwhile its executor, another sandbox and this machine must be well.
async fn exhaust(bench: &Bench, attack: &Attack, bystander: &Cell, healthy: &[String], neighbour: &str) -> Finding {
    let Way::Exhausting(room) = attack.way else { return Finding::failed("it exhausts nothing") };
    let policy = small(&bench.subject.policy, room);
    let limits = policy.limits.clone();
    let cell = match bench.cell_with(policy).await {
        Ok(cell) => cell,
        Err(error) => return Finding::failed(error.to_string()),
    };
    let facts = cell.sandbox.facts();
    let mut arguments = vec![
        format!("limit={}", limits.memory.0 + expectation::room_beside_memory(room, facts)),
        format!("pids={}", limits.pids),
        format!("disk={}", limits.disk.0),
        format!("tmp={}", limits.tmp.0),
        format!("cpu={}", limits.cpu_millis),
        format!("files={}", expectation::open_files(cell.sandbox.facts())),
    ];
    arguments.extend(bench.canary.arguments());
    let outside = attack.walls.contains(&Wall::CpuLimit) && expectation::clocks_go_on(facts);
    let before = if outside { used_processor(&cell).await } else { None };
    let finding = match cell.attack(attack.name, &arguments).await {
        Said::Finding(finding) => finding,
        Said::Seen(seen) => Finding::held(seen),
    };
    let finding = match before {
        Some(before) => processor_from_outside(&cell, before, limits.cpu_millis).await,
        None => finding,
    };
    let (own, others, lacks, host) = tokio::join!(
        cell.answers(),
        bystander.is_well(),
        bystander.attack("host_resources", &[]),
        host_trouble(&bench.canary)
    );
    let mut trouble = Vec::new();
    // Where its label says that it may end as a whole, that is how the limit is held: it harms nobody else.
    let ended = own.is_err() && expectation::may_end_as_a_whole(facts) && has_ended(&cell).await;
    let finding = match attack.walls.contains(&Wall::MemoryLimit) && finding.detail == SILENT {
        _ if ended => Finding::held("the whole sandbox ended, as its label says"),
        // So ends a command in gVisor whose memory this machine's kernel took.
        true if expectation::may_end_as_a_whole(facts) => Finding::held("it was ended without a word"),
        _ if finding.outcome == Outcome::Failed && memory_is_full(&cell, limits.memory).await => {
            Finding::held(format!("its memory is full, so it gets nowhere ({})", finding.detail))
        }
        _ => finding,
    };
    trouble.extend(own.err().filter(|_| !ended));
    trouble.extend(others.err().map(|why| format!("in another sandbox {why}")));
    if let Said::Finding(Finding { outcome: Outcome::BrokeThrough, detail }) = lacks {
        let new = detail.split(": ").last().unwrap_or_default().split(", ").filter(|what| !neighbour.contains(what));
        trouble.extend(new.map(|what| format!("in another sandbox {what}")));
    }
    trouble.extend(host.into_iter().filter(|what| !healthy.contains(what)));
    if let Ok(Ok(usage)) = timeout(ANSWER, cell.sandbox.usage()).await
        && usage.pids > limits.pids + 2
    {
        trouble.push(format!("{} processes are seen from outside, {} are allowed", usage.pids, limits.pids));
    }
    if !ended {
        trouble.extend(cell.kill_all().await.err());
    }
    // What it left may keep its own sandbox from starting commands; that harms nobody else.
    match (finding.outcome, trouble.is_empty()) {
        (_, true) => finding,
        (Outcome::BrokeThrough, _) => Finding::broke(format!("{}; {}", finding.detail, trouble.join("; "))),
        _ => Finding::broke(format!("{} ({})", trouble.join("; "), finding.detail)),
    }
}

async fn has_ended(cell: &Cell) -> bool {
    timeout(ANSWER, cell.sandbox.ended()).await.is_ok()
}

/// Where nothing is left of its memory a kernel throws out pages of the programs that run and reads them again, for as long as it
/// finds any. Nobody is killed then, and nobody but that sandbox waits.
async fn memory_is_full(cell: &Cell, limit: Bytes) -> bool {
    match timeout(ANSWER, cell.sandbox.usage()).await {
        Ok(Ok(usage)) => usage.memory.0 <= limit.0 && usage.memory.0 >= limit.0 / 10 * 9,
        _ => false,
    }
}

/// Processor time as it is counted outside, and when.
async fn used_processor(cell: &Cell) -> Option<(Duration, Instant)> {
    let usage = timeout(ANSWER, cell.sandbox.usage()).await.ok()?.ok()?;
    Some((usage.cpu, Instant::now()))
}

/// The share that a sandbox took, where its own clocks do not tell.
async fn processor_from_outside(cell: &Cell, (before, begun): (Duration, Instant), share: u32) -> Finding {
    let elapsed = begun.elapsed();
    let Some((after, _)) = used_processor(cell).await else {
        return Finding::failed("nobody says how much processor time it used");
    };
    let used = after.saturating_sub(before);
    // A share is held over periods, so the first one counts double; a fifth is the clock's.
    let allowed = elapsed * share / 1000;
    let detail = format!("{used:.1?} of processor time in {elapsed:.1?} as counted outside, {allowed:.1?} are allowed");
    if used > allowed * 13 / 10 + Duration::from_millis(250) {
        Finding::broke(detail)
    } else if used < allowed / 4 {
        Finding::not_applicable(format!("this machine is too busy: {detail}"))
    } else {
        Finding::held(detail)
    }
}

/// What everybody else on this machine lacks right now.
async fn host_trouble(canary: &Canary) -> Vec<String> {
    let mut command: Command = program::on_host(&canary.program);
    let output = timeout(ANSWER, command.arg("host_resources").output()).await;
    let Ok(Ok(output)) = output else { return vec!["no program can be started on this machine".to_owned()] };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line: serde_json::Value = serde_json::from_str(said.trim()).unwrap_or_default();
    match line["outcome"].as_str() {
        Some("held") => Vec::new(),
        _ => line["detail"].as_str().unwrap_or("this machine is not well").split(", ").map(str::to_owned).collect(),
    }
}

async fn command_time(cell: &Cell) -> f64 {
    let begun = Instant::now();
    let _ = cell.is_well().await;
    begun.elapsed().as_secs_f64() * 1000.0
}

fn percentile(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() * 95 / 100).or(times.last()).copied().unwrap_or_default()
}
