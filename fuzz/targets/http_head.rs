//! See `sandbox_egress::fuzzing::http_head`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_egress::fuzzing::http_head(data));
