//! See `entries::pipeline`.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code, reason = "one target of several")]
mod entries;

libfuzzer_sys::fuzz_target!(|input: &[u8]| entries::pipeline(input));
