//! One command on the standard streams that we were given, and nothing else. Made to start fast: no runtime, no socket.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::process::{WaitOptions, wait};
use sandbox_core::{
    Control,
    exec::{Exec, Exit},
};
use sandbox_executor::{boot::Boot, protocol::Reason};

use super::{
    NotStarted, Status,
    counters::Counters,
    jobs::exit_of,
    spawn::Starter,
    sys::{self, Session},
    tree::{Known, Members, Tree},
};

/// Between asking to end and ending.
const PATIENCE: Duration = Duration::from_secs(2);
/// Waiting without an end, in steps.
const LONG: Duration = Duration::from_secs(3600);

/// Runs the command to its end.
pub fn run(
    boot: &Boot,
    exec: &Exec,
    starter: &Starter,
    tree: &Tree,
    counters: &Counters,
    status: Status,
) -> Result<(), NotStarted> {
    let before = counters.read();
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let stdio = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let main = match starter.start_alone(boot, exec, tree.mark(1), stdio, Session::Inherited) {
        Ok(pid) => pid,
        Err(failure) => match code_of(failure.reason) {
            Some(code) => {
                eprintln!("sandbox-mcp: {}", failure.what);
                status.tell(&Exit::Code(code));
                std::process::exit(0);
            }
            None => return Err(Box::new((status, failure.what))),
        },
    };
    let mut clock = Clock { next: exec.timeout.map(|timeout| Instant::now() + timeout), expired: false };
    let ended = loop {
        match reap(main) {
            Some(ended) => break ended,
            None => clock.wait(tree),
        }
    };
    let exit = if clock.expired { Exit::Limit(Control::Time) } else { counters.judge(before, ended).0 };
    status.tell(&exit);
    tree.kill_everything();
    std::process::exit(0);
}

/// A command that cannot be started ends as shells have it; anything else is a sandbox that does not work.
fn code_of(reason: Reason) -> Option<i32> {
    match reason {
        Reason::NotFound => Some(127),
        Reason::Denied | Reason::WrongKind => Some(126),
        _ => None,
    }
}

/// Takes note of what has ended. The end of the command itself is returned.
fn reap(main: i32) -> Option<Exit> {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid.as_raw_nonzero().get() == main
            && let Some(exit) = exit_of(status)
        {
            return Some(exit);
        }
    }
    None
}

/// Ends the command when its time is over: first asked, then made.
struct Clock {
    next: Option<Instant>,
    expired: bool,
}

impl Clock {
    fn wait(&mut self, tree: &Tree) {
        let left = self.next.map_or(LONG, |next| next.saturating_duration_since(Instant::now()));
        sys::wait_for_child(left);
        if self.next.is_some_and(|next| Instant::now() >= next) {
            let signal = if self.expired { libc::SIGKILL } else { libc::SIGTERM };
            tree.signal(Members::All, &Known::default(), signal);
            tree.signal(Members::All, &Known::default(), libc::SIGCONT);
            self.expired = true;
            self.next = Some(Instant::now() + PATIENCE);
        }
    }
}
