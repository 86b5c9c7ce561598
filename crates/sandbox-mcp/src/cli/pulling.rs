//! Shows how far an image is: a bar on a terminal, a line for each step elsewhere, nothing where a program reads.

use std::{
    io::IsTerminal,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sandbox_core::Fetching;

use super::screen;

/// What people see of a pull.
pub struct Pulling {
    bar: ProgressBar,
    lines: bool,
    last: Mutex<String>,
}

impl Pulling {
    /// On standard error. With `lines` steps are told there also where it is no terminal.
    pub fn new(lines: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        Self { bar, lines: lines && !terminal, last: Mutex::default() }
    }

    /// More is known.
    pub fn show(&self, fetching: &Fetching) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Names come from whoever made the image.
        let step = screen::harmless(&fetching.step);
        if *last != step {
            if self.lines {
                screen::tell(&step);
            }
            last.clone_from(&step);
            self.bar.set_style(style(fetching));
            self.bar.enable_steady_tick(Duration::from_millis(100));
        }
        self.bar.set_message(step);
        match fetching.total {
            Some(total) => self.bar.set_length(total),
            None => self.bar.unset_length(),
        }
        self.bar.set_position(fetching.done);
    }
}

impl Drop for Pulling {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style(fetching: &Fetching) -> ProgressStyle {
    let form = match (fetching.total, fetching.done) {
        (Some(_), _) => "{spinner} {msg} [{bar:24}] {bytes}/{total_bytes} {bytes_per_sec}",
        (None, 0) => "{spinner} {msg}",
        (None, _) => "{spinner} {msg} {bytes}",
    };
    ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar())
}
