//! Named steps of making and removing a sandbox, at which a test can end the program as a crash would.

/// Ends the program here, if the variable `SANDBOX_MCP_DOCKER_DIE_AT` says so.
#[cfg(feature = "breakable")]
pub fn point(name: &str) {
    if std::env::var_os("SANDBOX_MCP_DOCKER_DIE_AT").is_some_and(|wanted| wanted == name) {
        std::process::abort();
    }
}

/// Nothing.
#[cfg(not(feature = "breakable"))]
pub fn point(_name: &str) {}
