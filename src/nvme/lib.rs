//! NVMe wire formats, pure: bytes in, typed values out, and back.
//!
//! No I/O, no clock, no unsafe code, no state. Arbitrary bytes never panic. Counts
//! that are 0's based on the wire are 1's based in every value this package hands
//! out. Transport PDUs, controllers, namespaces and the decision what to answer
//! belong to the packages that use this one.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod connect;
pub mod cqe;
pub mod discovery;
pub mod features;
pub mod identify;
pub mod ids;
pub mod io;
pub mod log_page;
pub mod nqn;
pub mod opcode;
pub mod property;
pub mod sgl;
pub mod sqe;
pub mod status;

pub use cqe::{Completion, Cqe};
pub use ids::*;
pub use io::IoCommand;
pub use nqn::{Nqn, NqnError};
pub use opcode::{AdminOpcode, DataDirection, FabricsType, IoOpcode};
pub use sgl::{SglDescriptor, SglKind};
pub use sqe::Sqe;
pub use status::Status;
