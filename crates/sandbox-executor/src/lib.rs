//! Our small program inside every sandbox, and how a server talks with it.
//!
//! [`protocol`] and [`boot`] are read by both sides. [`client`] is the server's side. [`carrier`] brings the flows,
//! [`frame`] cuts them into frames, [`passage`] moves file content past them. The program itself is the binary of this crate.

#![forbid(unsafe_code)]

pub mod boot;
pub mod carrier;
pub mod client;
pub mod frame;
mod multiplexed;
pub mod passage;
pub mod protocol;
pub mod socket;
pub mod transfer;
