//! What an engine answers when something went wrong, in words that say what to do.

use bollard::errors::Error as EngineError;
use sandbox_core::Error;

/// How to get an engine.
const START_ONE: &str = "Start Docker (`systemctl start docker`) or Podman (`systemctl --user start podman.socket`), or say \
    where it is with DOCKER_HOST; the embedded backend (`--backend linux`) needs none";

/// There is no engine to talk to.
pub fn no_engine(address: &str, why: &str) -> Error {
    let fix = if why.contains("ermission denied") {
        "Your user may not use that socket: add it to its group (`sudo usermod -aG docker $USER`, then log in again), or use \
         Podman, which needs no group; the embedded backend (`--backend linux`) needs no engine"
            .to_owned()
    } else {
        START_ONE.to_owned()
    };
    Error::Unavailable { what: format!("no container engine answers at {address}"), why: why.to_owned(), fix }
}

/// A step at the engine failed.
pub fn step(step: impl Into<String>) -> impl FnOnce(EngineError) -> Error {
    let step = step.into();
    move |error| Error::Step { step, why: words(&error) }
}

/// Something of a sandbox could not be removed.
pub fn removing(what: &str) -> impl FnOnce(EngineError) -> Error {
    let doing = format!("removing {what}");
    move |error| Error::Io { doing, source: std::io::Error::other(words(&error)) }
}

/// What the engine said, without the wrapping.
pub fn words(error: &EngineError) -> String {
    match error {
        EngineError::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        EngineError::DockerStreamError { error } => error.trim().to_owned(),
        other => with_sources(other),
    }
}

/// How a connection failed says more than that one did.
fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<std::io::Error>() {
            return error.to_string();
        }
        cause = inner.source();
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
}

/// Whether the engine said nothing at all: it was not reached, or went away.
pub fn is_silence(error: &EngineError) -> bool {
    !matches!(error, EngineError::DockerResponseServerError { .. } | EngineError::DockerStreamError { .. })
}

/// Whether the engine says that there is no such thing.
pub fn is_missing(error: &EngineError) -> bool {
    matches!(error, EngineError::DockerResponseServerError { status_code: 404, .. })
}

/// Whether it is just doing that, or has done it.
pub fn is_underway(error: &EngineError) -> bool {
    matches!(error, EngineError::DockerResponseServerError { status_code: 304 | 409, .. })
}
