//! See `sandbox_egress::fuzzing::client_hello`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_egress::fuzzing::client_hello(data));
