//! Named places at which a test can have the process killed, to see that nothing half-made is left. They are there in
//! builds for tests only.

/// Ends this process as a `kill -9` would, if a test has asked for it here.
#[cfg(debug_assertions)]
pub fn reach(place: &str) {
    use std::sync::OnceLock;
    static ASKED: OnceLock<Option<String>> = OnceLock::new();
    let asked = ASKED.get_or_init(|| std::env::var(VARIABLE).ok());
    if asked.as_deref() == Some(place) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Does nothing in what is given to people.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn reach(_: &str) {}

/// Names the place.
pub const VARIABLE: &str = "SANDBOX_IMAGE_DIES_AT";
