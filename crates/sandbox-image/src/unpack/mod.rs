//! From layers to a folder that a sandbox can stand on. Runs in a process of its own, which has the ids that sandboxes
//! have (see [`crate::work`]).
//!
//! Everything in a layer is hostile: [`name`] lets no path out, [`archive`] and [`stream`] bound what is read, [`tree`]
//! follows no link, [`layer`] makes no device and keeps no extended attribute. [`merge`] does what whiteouts say, so no
//! kernel has to, and [`fit`] makes the places where a sandbox mounts its own things.

pub mod archive;
pub mod fit;
pub mod layer;
pub mod merge;
pub mod name;
pub mod stream;
pub mod tree;
