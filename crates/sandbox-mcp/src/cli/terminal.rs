//! The terminal we were started on: its size, its raw mode (always undone), and the signals that say stop.

use std::{
    io::{IsTerminal, stdin, stdout},
    sync::{Mutex, Once, PoisonError},
};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sandbox_core::exec::TerminalSize;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How the terminal was before; taken by whoever puts it back first.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Keys go to the sandbox as they are typed, for as long as this lives.
pub(super) struct Raw(());

impl Raw {
    /// Also undone when this program panics.
    pub fn enter() -> rustix::io::Result<Self> {
        static HOOK: Once = Once::new();
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        HOOK.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                usual(info);
            }));
        });
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(()))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

/// Whether a person sits at both ends.
pub(super) fn is_interactive() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// How large the terminal is.
pub(super) fn size() -> TerminalSize {
    match tcgetwinsize(stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TerminalSize { rows: size.ws_row, columns: size.ws_col },
        _ => TerminalSize { rows: 24, columns: 80 },
    }
}

/// Returns with the signal's number when somebody asks this program to stop. Asked again, it stops at once.
pub(super) async fn stop_asked() -> u8 {
    let number = first_of_stops().await;
    tokio::spawn(async {
        let number = first_of_stops().await;
        restore();
        std::process::exit(i32::from(128 + number));
    });
    number
}

/// Returns each time the terminal has changed its size.
pub(super) fn resizes() -> std::io::Result<Signal> {
    signal(SignalKind::window_change())
}

async fn first_of_stops() -> u8 {
    let stop = |kind: SignalKind, number: u8| async move {
        match signal(kind) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
        number
    };
    tokio::select! {
        number = stop(SignalKind::interrupt(), 2) => number,
        number = stop(SignalKind::terminate(), 15) => number,
        number = stop(SignalKind::hangup(), 1) => number,
    }
}
