//! Images through the real doors: the real binary, a real registry on loopback, real archives, real sandboxes.
//!
//! They run as root and as an ordinary user, with two ids and with one.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod archives;
mod commands;
mod debian;
mod hostile;
mod killed;
mod kit;
mod onward;
mod proxy;
mod pull;
mod registry;
mod served;
mod token;
