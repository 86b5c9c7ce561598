//! Names that nobody can guess, and that no two sandboxes share.

use crate::agent::WorkError;

/// So many random bytes, in hexadecimal.
pub(super) fn hex<const BYTES: usize>() -> Result<String, WorkError> {
    Ok(random::<BYTES>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A random UUID.
pub(super) fn uuid() -> Result<String, WorkError> {
    let mut bytes = random::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

fn random<const BYTES: usize>() -> Result<[u8; BYTES], WorkError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| WorkError::Agent(format!("there is no source of chance: {error}")))?;
    Ok(bytes)
}
