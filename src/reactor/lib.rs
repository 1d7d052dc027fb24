//! One thread, one ring: the event loop under weft's data path.
//!
//! A [`Reactor`] owns an `io_uring`, the tasks that run on it, its timers, a mailbox for other threads and an arena of
//! registered data buffers. This package is the only one that names `io_uring`, and the fence around weft's `unsafe`
//! code: memory the kernel uses belongs to the operation in flight until its last completion, whatever future is
//! dropped. It knows nothing of NVMe; what the bytes mean is left to the packages above.
//!
//! | File | Holds |
//! |---|---|
//! | `reactor.rs` | the turn of the loop: run tasks, fire timers, one `io_uring_enter`, reap |
//! | `ring.rs` | set-up and probing of the ring, errors that say the way out |
//! | `operation.rs` | the table of operations in flight and the future that waits for one |
//! | `io.rs` | receive, send, read, write, sync, accept as `async` functions |
//! | `drive.rs` | commands to NVMe drives, by the ring and by `ioctl` |
//! | `executor.rs` | tasks of many slots, wakers that are plain integers |
//! | `arena.rs`, `buddy.rs` | data buffers in size classes, first come first served |
//! | `device.rs` | for devices with their own way to memory: what they register, a look at them every turn |
//! | `gather.rs` | a response batch: headers and data in one send |
//! | `shared.rs` | memory of memory namespaces, handed out as bytes to send in place |
//! | `received.rs` | the shared receive buffers of a reactor |
//! | `timer.rs`, `mailbox.rs`, `signal.rs` | time, the door in, waking by condition |
//! | `system.rs` | processors, limits of the process, sockets and files |

#![allow(unsafe_code)]

mod arena;
mod buddy;
mod data;
mod device;
mod drive;
mod executor;
mod gather;
mod io;
mod mailbox;
mod operation;
#[path = "reactor.rs"]
mod reactor_loop;
mod received;
mod ring;
mod shared;
mod signal;
mod stats;
pub mod system;
mod timer;

#[cfg(test)]
mod tests;

pub use arena::{ArenaUse, BufferClass, BufferPool, DataBuffer, GetBuffer, PAGE, Reserve};
pub use data::Data;
pub use device::{DeviceMemory, HookGuard, TurnHook};
pub use drive::{DriveAnswer, DriveCommand, DriveQueue, Driven, drive_admin, drive_nsid};
pub use gather::Gather;
pub use io::{AcceptStream, Readable, Sent, Transferred};
pub use mailbox::Mailbox;
pub use reactor_loop::{Options, Reactor, ReactorThread, start};
pub use received::Received;
pub use ring::SetupError;
pub use shared::{LocalMemory, SharedBytes, SharedMemory};
pub use signal::Signal;
pub use stats::{Cell as Counter, Stats};
pub use timer::Sleep;
