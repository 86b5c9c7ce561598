//! OCI images without an engine: fetched from registries, archives and layouts, checked, unpacked once and kept.
//!
//! [`Images`] is what callers see. A pull resolves a name to a manifest ([`manifest`]), brings what is missing
//! ([`registry`], [`source`]), has each layer unpacked by a [`work`]er process with the ids that sandboxes have
//! ([`unpack`]), has layers put together into one folder, and writes the image down ([`store`]). Everything that comes
//! from a registry or an archive is hostile: it is bounded ([`limits`]), compared with its digest, and never followed.

#![forbid(unsafe_code)]

mod claim;
mod collect;
mod digest;
mod error;
mod faults;
mod images;
pub mod limits;
mod manifest;
mod pull;
pub mod registry;
mod source;
mod store;
mod unpack;
mod work;

pub use digest::Digest;
pub use error::{ImageError, Malformed};
pub use faults::VARIABLE as DIES_AT;
pub use images::{ImageSettings, Images, Standing, stand};
pub use manifest::architecture;
pub use source::Source;
pub use store::{Guard, LINK, Listed, ROOT, Record, Store};
pub use unpack::{fit::Fittings, tree::Owners};
pub use work::{Worker, work};
