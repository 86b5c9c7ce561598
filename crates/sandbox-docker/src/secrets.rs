//! Bytes that nobody can guess.

use std::io;

/// So many of them.
pub fn random(count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// So many of them, as hexadecimal digits.
pub fn random_text(count: usize) -> io::Result<String> {
    Ok(random(count)?.iter().map(|byte| format!("{byte:02x}")).collect())
}
