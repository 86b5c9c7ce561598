//! Our small program inside every sandbox, and how a server talks with it.
//!
//! [`protocol`] and [`boot`] are read by both sides. [`client`] is the server's side. The program itself is the
//! binary of this crate.

pub mod boot;
pub mod protocol;
