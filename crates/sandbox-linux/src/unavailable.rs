//! Programs that a policy takes away: their files, so that a stub can be mounted over each.

/// The name of the stub in the folder that [`crate::etc`] prepares.
pub const STUB: &str = "unavailable";
/// What who reads it finds.
pub const TEXT: &str = "This program is not available in this sandbox: the sandbox's policy denies it.\n\
    Nothing that it does would have an effect here. Work without it, or ask for a policy that allows it.\n";
