//! The walls that the executor builds itself, by name; the others are the launcher's.
//!
//! Always there, but in a program that was built with the feature `breakable`, see `sandbox-linux/src/wall.rs`.

/// One of them.
#[derive(Clone, Copy)]
pub enum Wall {
    /// Our memory is out of reach.
    Dumpable,
    /// Commands have no capabilities.
    CommandCapabilities,
    /// A command's output can be written by it but not read.
    OutputPipes,
}

/// Whether this wall is to be built.
#[cfg(not(feature = "breakable"))]
pub const fn stands(_: Wall) -> bool {
    true
}

/// Whether this wall is to be built.
#[cfg(feature = "breakable")]
pub fn stands(wall: Wall) -> bool {
    let name = match wall {
        Wall::Dumpable => "dumpable",
        Wall::CommandCapabilities => "command_capabilities",
        Wall::OutputPipes => "output_pipes",
    };
    let missing = std::env::var(sandbox_executor::boot::WITHOUT).unwrap_or_default();
    missing.split(',').all(|missing| missing != name)
}
