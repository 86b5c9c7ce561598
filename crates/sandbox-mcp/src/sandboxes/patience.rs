//! How long a sandbox may take to answer. What runs inside may freeze its executor; nobody outside waits for ever.

use std::{io, time::Duration};

use super::ClientError;

/// For an answer that costs nothing.
const SHORT: Duration = Duration::from_secs(15);
/// For an answer that the sandbox's disk may hold up.
const LONG: Duration = Duration::from_secs(60);

/// A short answer, or an error that says what to do.
pub async fn soon<T, E: From<ClientError>>(answer: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    within(SHORT, answer).await
}

/// An answer that needs work, such as a list of many files, or the same error later.
pub async fn in_time<T, E: From<ClientError>>(answer: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    within(LONG, answer).await
}

async fn within<T, E: From<ClientError>>(limit: Duration, answer: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| Err(silent(limit).into()))
}

fn silent(limit: Duration) -> ClientError {
    let seconds = limit.as_secs();
    let what = format!(
        "the sandbox does not answer (for {seconds} s); cleanup_session, or `sandbox-mcp rm SESSION` at the terminal, ends it"
    );
    ClientError::Io(io::Error::new(io::ErrorKind::TimedOut, what))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn silence_becomes_an_error_that_says_what_to_do() {
        let silence = std::future::pending::<Result<(), ClientError>>();
        let error = within(Duration::from_millis(1), silence).await.unwrap_err().to_string();
        assert!(error.contains("does not answer") && error.contains("cleanup_session"), "{error}");
    }
}
