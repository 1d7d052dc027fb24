//! rdma-core's structures and functions, generated from its headers by `make bindings`, and never edited.

#![allow(
    unsafe_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    unused_qualifications,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]

pub mod ibverbs;
pub mod rdmacm;
pub mod types;
