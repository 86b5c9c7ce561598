//! See `sandbox_egress::fuzzing::socks`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_egress::fuzzing::socks(data));
