//! weft, an NVMe over Fabrics target: the pipeline and the daemon's parts.
//!
//! # The life of a command
//!
//! ```text
//! transport: capsule ─► slot ─► parse ─► admit ─► data in ─► execute ─► respond ─► transport
//!                       (tag)   once     access,  R2T or     backend    one CQE
//!                                        range    in-capsule
//! ```
//!
//! A queue pair has a slot for every command its host may have outstanding, and each slot is one long-lived future on the
//! queue pair's reactor: [`io::serve`] for I/O queues, [`admin::serve`] for the admin queue. A slot waits for a command,
//! checks it, gets its data, lets a backend execute it, answers, and waits again. Nothing on this way allocates, locks or
//! is shared with another thread.
//!
//! # Where to find what
//!
//! | For | Look in |
//! |---|---|
//! | Read, Write, Flush and any other I/O command | [`io`] |
//! | admin commands | [`admin`], and one file each for [`identify`], [`features`], [`log_page`], [`error_log`], [`persistent_event`], [`events`] |
//! | Connect, properties | [`fabrics`], [`controller`], [`claims`] |
//! | discovery | [`discovery`], [`mdns`] |
//! | what exists: ports, subsystems, namespaces | [`target`], [`subsystem`], [`namespace`] |
//! | what one reactor keeps of it | [`local`] |
//! | files and devices that grow or shrink | [`watch`] |
//! | what outlives the process | [`state`] |
//! | starting and ending it all | [`daemon`] |
//! | accepting, placing and ending queue pairs | [`queue_pair`] |
//! | how soon a host may try again | [`retry_delay`] |

pub mod admin;
pub mod claims;
pub mod cli;
pub mod config;
pub mod control;
pub mod controller;
pub mod daemon;
pub mod discovery;
pub mod drives;
pub mod error_log;
pub mod events;
pub mod exporter;
pub mod fabrics;
pub mod features;
pub mod identify;
pub mod io;
pub mod keep_alive;
pub mod local;
pub mod log_page;
pub mod logging;
pub mod mdns;
pub mod metrics;
pub mod namespace;
pub mod persistent_event;
pub mod queue_pair;
pub mod retry_delay;
pub mod state;
pub mod subsystem;
pub mod target;
pub mod watch;
