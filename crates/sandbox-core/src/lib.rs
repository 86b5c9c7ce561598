//! What a sandbox is: its name, what it may do, what runs in it, and what every backend must offer.
//!
//! Plain data and two traits. Nothing here opens a file, starts a process or knows a kernel.

#![forbid(unsafe_code)]

mod backend;
mod bytes;
mod denial;
mod ending;
mod enforcement;
mod error;
pub mod exec;
mod id;
pub mod policy;
mod reference;
mod spec;

pub use backend::{
    Backend, Channel, Created, Door, Duplex, Facts, Fetching, Finding, Grade, Outlook, Probe, Progress, Recovered,
    Sandbox, Usage,
};
pub use bytes::Bytes;
pub use denial::{Denial, Kind, Reason};
pub use enforcement::{Control, Enforcement, Held, Holding};
pub use error::{Error, Result};
pub use id::{InvalidId, JobId, SessionId, UserId};
pub use policy::Policy;
pub use reference::{InvalidReference, Reference};
pub use spec::{Image, SandboxSpec, Tool};
