//! `weft-bench`: what `make bench` runs.
//!
//! * `load` drives an NVMe/TCP target, or with `--bare` one of the yardsticks below.
//! * `echo-ring` and `echo-tokio` are bare request/response servers that move the same bytes as NVMe/TCP does, one on
//!   a plain ring with the features weft uses, one on tokio-uring. What weft costs above `echo-ring` is weft.
//! * `compare` runs all of them in turns, target and generator on a core each, and prints one table of ratios.
//!
//! Nothing here uses weft's packages: a yardstick must not shrink with what it measures.

mod bare;
mod callgrind;
#[path = "../tests/host/command.rs"]
#[allow(dead_code, reason = "the load generator needs a part of the test host")]
mod command;
mod compare;
mod echo_ring;
mod echo_tokio;
mod handshake;
mod load;
mod options;
#[path = "../tests/host/pdu.rs"]
#[allow(dead_code, reason = "the load generator needs a part of the test host")]
mod pdu;
mod process;
mod report;
mod ring;
mod slots;
mod statistics;

use clap::Parser;
use options::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Load(options) => load::command(&options),
        Command::EchoRing(options) => echo_ring::serve(&options),
        Command::EchoTokio(options) => echo_tokio::serve(&options),
        Command::Compare(options) => compare::run(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
