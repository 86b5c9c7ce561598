//! Commands that will not end, or that write without end.

use std::{
    fs,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use sandbox_core::Control;
use sandbox_core::exec::{Exec, Exit};
use sandbox_executor::{client::JobEvent, protocol::Target};
use tokio::time::timeout;

use super::{or_return, with_cell};
use crate::{
    attack::Room,
    canary::{argument, random_mark},
    report::Finding,
    runner::small,
    workbench::{ANSWER, Bench, Said},
};

/// A command that ignores every signal must end when its time is over.
pub(crate) fn ignored_deadline(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        let mut exec = Exec::argv(["/workspace/sandbox-attack", "ignore_signals"]);
        exec.timeout = Some(Duration::from_millis(300));
        let begun = Instant::now();
        let ending = async {
            let mut follow = cell.client.spawn(&exec).await.ok()?;
            loop {
                if let JobEvent::Exited { exit, .. } = follow.next().await.ok()? {
                    return Some(exit);
                }
            }
        };
        match timeout(Duration::from_secs(15), ending).await {
            Ok(Some(Exit::Limit(Control::Time))) => Finding::held(format!("it was ended after {:?}", begun.elapsed())),
            Ok(other) => Finding::failed(format!("it ended as {other:?}")),
            Err(_) => Finding::broke("it still runs long after its time"),
        }
    })
}

/// A daemon that left its session must end with the job that started it.
pub(crate) fn daemon_survives_job(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        let mut follow = match cell.client.spawn(&Exec::argv(["/workspace/sandbox-attack", "daemon"])).await {
            Ok(follow) => follow,
            Err(error) => return Finding::failed(error.to_string()),
        };
        let job = follow.job();
        let _ =
            timeout(ANSWER, async { while !matches!(follow.next().await, Ok(JobEvent::Exited { .. }) | Err(_)) {} })
                .await;
        let _ = cell.client.signal(Target::Job(job), 9).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        match cell.client.usage().await {
            Ok(running) if running.processes == 0 => Finding::held("the daemon is gone"),
            Ok(running) => Finding::broke(format!("{} processes are left of a job that was killed", running.processes)),
            Err(error) => Finding::failed(error.to_string()),
        }
    })
}

/// Nothing may run on when its sandbox is gone. The mark is looked for among this machine's processes.
pub(crate) fn daemon_survives_sandbox(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        let mark = match random_mark() {
            Ok(mark) => argument(&mark),
            Err(error) => return Finding::failed(error.to_string()),
        };
        let _ = cell.attack("daemon", std::slice::from_ref(&mark)).await;
        let seen_before = seen_outside(&mark);
        if let Err(error) = cell.sandbox.destroy().await {
            return Finding::broke(format!("the sandbox could not be removed: {error}"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        match (seen_before, seen_outside(&mark)) {
            (_, count) if count > 0 => Finding::broke(format!("{count} processes outlived their sandbox")),
            (0, _) => Finding::not_applicable("processes inside are not seen from here, so nothing can be said"),
            _ => Finding::held("nothing is left"),
        }
    })
}

fn seen_outside(mark: &str) -> usize {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = std::process::id().to_string();
    let others = entries.filter(|entry| entry.file_name().to_str() != Some(&own));
    others
        .filter(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(mark)
        })
        .count()
}

/// Output without end: what is kept is bounded, and the executor answers meanwhile.
pub(crate) fn output_flood(bench: Bench) -> BoxFuture<'static, Finding> {
    Box::pin(async move {
        let cell = match bench.cell_with(small(&bench.subject.policy, Room::Small)).await {
            Ok(cell) => cell,
            Err(error) => return Finding::failed(error.to_string()),
        };
        // Three of them, and nobody who reads.
        for _ in 0..3 {
            if let Err(error) = cell.client.spawn(&Exec::argv(["/workspace/sandbox-attack", "output_flood"])).await {
                return Finding::failed(error.to_string());
            }
        }
        tokio::time::sleep(Duration::from_millis(800)).await;
        let mut trouble = Vec::new();
        trouble.extend(cell.answers().await.err());
        let jobs = timeout(ANSWER, cell.client.jobs()).await;
        let kept: Vec<u64> = match jobs {
            Ok(Ok(jobs)) => jobs.iter().map(|job| job.next_offset - job.first_offset).collect(),
            _ => Vec::new(),
        };
        if kept.iter().any(|kept| *kept > 32 << 20) {
            trouble.push(format!("{kept:?} bytes of output are kept"));
        }
        trouble.extend(cell.kill_all().await.err());
        trouble.extend(cell.is_well().await.err());
        match trouble.is_empty() {
            true => Finding::held(format!("{kept:?} bytes are kept")),
            false => Finding::broke(trouble.join("; ")),
        }
    })
}

/// A tree deeper than any path: it must be possible to list it, and to remove it.
pub(crate) fn deep_tree(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        let made = match cell.attack("disk_deep_tree", &[]).await {
            Said::Seen(made) => made,
            Said::Finding(finding) => return finding,
        };
        or_return!(cell.kill_all().await.map_err(Finding::broke));
        let path = sandbox_executor::protocol::Path::from("/workspace/d");
        let listed = timeout(2 * ANSWER, cell.client.list(&path, u32::MAX, 10_000)).await;
        let removed = timeout(2 * ANSWER, cell.client.remove(&path)).await;
        match (listed, removed, cell.is_well().await) {
            (_, _, Err(why)) => Finding::broke(format!("{made}; then {why}")),
            (Err(_), _, _) => Finding::broke(format!("{made}; listing them does not end")),
            (_, Err(_), _) => Finding::broke(format!("{made}; removing them does not end")),
            (_, Ok(Err(error)), _) => Finding::held(format!("{made}; the tool gave up: {error}")),
            _ => Finding::held(format!("{made}; they were listed and removed")),
        }
    })
}
