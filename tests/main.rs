//! The behaviour tests of weft: one binary, one module for each topic. Every test starts its own target process on
//! ports of its own and talks to it through [`host`], which shares no code with weft; but for those
//! that must run it in their own process.

mod abort;
mod admin;
mod allocations;
mod checks;
mod config;
mod connect;
mod connect_errors;
mod convert;
mod copy;
mod devices;
mod digests;
mod discovery;
mod durable;
mod events;
mod faulty;
mod features;
mod files;
mod fused;
mod fuzz;
mod host;
mod hostile;
mod identify;
mod inside;
mod io;
mod lifecycle;
mod log_pages;
mod mdns;
mod metrics;
mod pressure;
mod ranges;
mod rdma;
mod resize;
mod simulation;
mod stalled;
mod tcp_errors;
mod tcp_stream;
mod tidy;
mod write_protect;
