//! Named steps of fetching an image, and of making and removing a sandbox, at which a test can end the program as a crash
//! would, or stop it while something else is killed. Only in a build for development.

/// Ends the program here, if the variable `SANDBOX_MCP_DOCKER_DIE_AT` says so; stops it, once, if
/// `SANDBOX_MCP_DOCKER_STOP_AT` does.
#[cfg(debug_assertions)]
pub fn point(name: &str) {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    static STOPPED: AtomicBool = AtomicBool::new(false);
    let is = |variable: &str| std::env::var_os(variable).is_some_and(|wanted| wanted == name);
    if is("SANDBOX_MCP_DOCKER_DIE_AT") {
        std::process::abort();
    }
    if is("SANDBOX_MCP_DOCKER_STOP_AT") && !STOPPED.swap(true, Ordering::Relaxed) {
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
pub fn point(_name: &str) {}
