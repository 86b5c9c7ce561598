//! Sandboxes in the containers of an engine: Docker or Podman, with whatever runtime it has (runc, gVisor, Kata).
//!
//! The engine makes the container by a [`plan`] that is computed first; our executor is its first process and does the rest,
//! as on every backend. On this machine the executor dials a socket of ours ([`meeting`]); elsewhere its standard streams and
//! bridges carry the same ([`streams`]). `bollard` is used here and nowhere else.

#![forbid(unsafe_code)]

mod attach;
mod backend;
mod boot;
mod credentials;
mod engine;
mod failure;
mod fault;
mod holdings;
mod image;
mod labels;
mod line;
mod listing;
mod make;
mod meeting;
mod nature;
mod network;
mod outward;
mod plan;
mod probe;
mod program;
mod programs;
mod record;
mod recover;
mod removal;
mod sandbox;
mod secrets;
mod streams;
mod trouble;
mod usage;
mod volumes;

pub use attach::{attach, bury, container};
pub use backend::{DockerBackend, Options};

/// The name under which sandboxes of this backend are known.
pub const BACKEND: &str = "docker";
