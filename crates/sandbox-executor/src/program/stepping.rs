//! What runs for longer than a moment steps back: it gets a lower priority than this executor, than servers and than
//! commands that have just been started. So whoever exhausts the processor hardly delays others, also where no cgroup
//! weighs sandboxes against each other.
//!
//! Priority is inherited, so a tree that forks as fast as it can steps back as a whole. Nobody can take it back.

use std::{rc::Rc, time::Duration};

use rustix::{
    process::{Pid, setpriority_process},
    time::{ClockId, clock_gettime},
};

use super::{Executor, census::Census};

/// How much lower, see nice(2).
const NICE: i32 = 10;
/// Short commands are over by then.
const MOMENT: Duration = Duration::from_millis(150);
/// Between two looks: soon after something was started, and when nothing had to be done.
const SOON: Duration = Duration::from_millis(100);
const CALM: Duration = Duration::from_secs(2);

/// Looks at all processes whenever something was started, until there are none. Only as the first process of a
/// namespace: elsewhere they are not all ours.
pub async fn watch(executor: Rc<Executor>) {
    if std::process::id() != 1 {
        return;
    }
    let census = Census::new();
    loop {
        executor.started.notified().await;
        let mut pause = SOON;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = executor.started.notified() => pause = SOON,
            }
            match step_back(&census) {
                Some(Seen::Young) => pause = SOON,
                Some(Seen::Calm) => pause = (pause * 2).min(CALM),
                None => break,
            }
        }
    }
}

/// Whether somebody has yet to step back.
enum Seen {
    Young,
    Calm,
}

/// Nothing if there are no processes but us.
fn step_back(census: &Census) -> Option<Seen> {
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    let mut seen = None;
    for process in census.take().iter().filter(|process| process.pid != 1) {
        let young = now.saturating_sub(process.started) < MOMENT;
        if process.nice < NICE && !young {
            // Refused for what was put into the sandbox from outside; that is not ours.
            let _ = Pid::from_raw(process.pid).map(|pid| setpriority_process(Some(pid), NICE));
        }
        seen = match (seen, young) {
            (Some(Seen::Young), _) | (_, true) => Some(Seen::Young),
            _ => Some(Seen::Calm),
        };
    }
    seen
}
