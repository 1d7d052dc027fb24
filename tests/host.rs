//! A small NVMe/TCP host for the behaviour tests. It runs on tokio-uring, uses nothing of weft's packages, and checks
//! everything the target sends while it is at it. A test reads as a dialogue:
//!
//! ```ignore
//! let target = Target::start(&[]);
//! run(async move {
//!     let host = Host::connect(&target, DEFAULT_NQN, Options::default()).await?;
//!     let io = host.io_queue(1, 128).await?;
//!     io.write(1, 0, &data).await?;
//!     assert_eq!(io.read(1, 0, data.len()).await?, data);
//!     Ok(())
//! });
//! ```
//!
//! Layers, from below: `pdu` (bytes), `connection` (one socket, raw), `queue` (a queue pair with commands in flight),
//! this file (controllers and I/O queues), `target` (the process under test).

pub mod command;
pub mod connection;
pub mod http;
pub mod outcome;
pub mod pdu;
#[cfg(test)]
mod peer;
pub mod queue;
pub mod target;

pub use command::{Command, Connect, DISCOVERY_NQN};
pub use connection::Connection;
pub use outcome::*;
pub use pdu::{Digests, Wire, u16_at, u32_at, u64_at};
pub use queue::{Pending, QueuePair};
pub use target::{DEFAULT_NQN, Target};

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The longest any single answer may take. Generous: a test never passes or fails by speed.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Property offsets.
pub mod property {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version.
    pub const VS: u32 = 0x08;
    /// Controller Configuration.
    pub const CC: u32 = 0x14;
    /// Controller Status.
    pub const CSTS: u32 = 0x1c;
}

/// CC as a Linux host sets it: IOCQES 4, IOSQES 6; without EN.
pub const CC_CONFIGURED: u32 = 0x0046_0000;

/// How a host connects.
#[derive(Clone, Debug)]
pub struct Options {
    /// Digests to ask for.
    pub digests: Digests,
    /// HPDA of ICReq.
    pub hpda: u8,
    /// HOSTNQN.
    pub hostnqn: String,
    /// HOSTID.
    pub hostid: [u8; 16],
    /// KATO in milliseconds; 0 leaves keep alive off.
    pub kato_ms: u32,
    /// Keeps SQ flow control; hosts usually ask to disable it.
    pub flow_control: bool,
    /// Sends H2CData in pieces of at most this size.
    pub h2c_chunk: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            digests: Digests::NONE,
            hpda: 0,
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:7e57ab1e-0000-4000-8000-000000000001".to_owned(),
            hostid: *b"\x7e\x57\xab\x1e\0\0\x40\0\x80\0\0\0\0\0\0\x01",
            kato_ms: 0,
            flow_control: false,
            h2c_chunk: None,
        }
    }
}

impl Options {
    /// Options with these digests.
    pub fn with(digests: Digests) -> Self {
        Self { digests, ..Self::default() }
    }

    /// The name of another host.
    pub fn host(hostnqn: &str) -> Self {
        Self { hostnqn: hostnqn.to_owned(), ..Self::default() }
    }

    /// What ICReq proposes.
    pub fn wire(&self) -> Wire {
        Wire { digests: self.digests, hpda: self.hpda }
    }

    /// Connect as these options ask, for a new controller.
    pub fn connect(&self, subnqn: &str, qid: u16, sqsize: u16) -> Connect {
        Connect {
            qid,
            sqsize,
            cattr: if self.flow_control { 0 } else { 4 },
            kato_ms: if qid == 0 { self.kato_ms } else { 0 },
            hostid: self.hostid,
            cntlid: 0xffff,
            subnqn: subnqn.to_owned(),
            hostnqn: self.hostnqn.clone(),
        }
    }
}

/// A controller, seen from its host: the admin queue and what is needed to add I/O queues.
pub struct Host {
    /// The admin queue pair.
    pub admin: QueuePair,
    /// CNTLID, as Connect returned it.
    pub cntlid: u16,
    /// How this host connects.
    pub options: Options,
    /// SUBNQN as given to Connect.
    pub subnqn: String,
    address: SocketAddr,
}

impl Host {
    /// Connects and enables a controller the way Linux does.
    pub async fn connect(target: &Target, subnqn: &str, options: Options) -> Result<Self, Failure> {
        let host = Self::attach(target.address, subnqn, options).await?;
        host.enable().await?;
        Ok(host)
    }

    /// Connects the admin queue and leaves the controller disabled.
    pub async fn attach(address: SocketAddr, subnqn: &str, options: Options) -> Result<Self, Failure> {
        let connect = options.connect(subnqn, 0, 31);
        let admin = QueuePair::open(address, &options, 0).await?;
        let completion = admin.connect(&connect).await?;
        if completion.dw0 >> 16 != 0 {
            return Err(Failure::Protocol(format!(
                "Connect DW0 {:08x}h asks for authentication",
                completion.dw0
            )));
        }
        let cntlid = completion.dw0 as u16;
        Ok(Self { admin, cntlid, options, subnqn: subnqn.to_owned(), address })
    }

    /// CC without EN, CC with EN, then waits for CSTS.RDY.
    pub async fn enable(&self) -> Result<(), Failure> {
        self.set_property(property::CC, CC_CONFIGURED).await?;
        self.set_property(property::CC, CC_CONFIGURED | 1).await?;
        self.wait_for_status(1, 1).await
    }

    /// Waits until `CSTS & mask == value`.
    pub async fn wait_for_status(&self, mask: u32, value: u32) -> Result<(), Failure> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let csts = self.property(property::CSTS).await? as u32;
            if csts & mask == value {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Failure::Silence(format!("CSTS stays {csts:08x}h")));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Reads a property.
    pub async fn property(&self, offset: u32) -> Result<u64, Failure> {
        let size = if offset == property::CAP { 8 } else { 4 };
        let completion = self.admin.execute(&Command::property_get(offset, size)).await?;
        Ok(u64::from(completion.dw0) | u64::from(completion.dw1) << 32)
    }

    /// Writes a property of four bytes.
    pub async fn set_property(&self, offset: u32, value: u32) -> Result<(), Failure> {
        self.admin.execute(&Command::property_set(offset, value)).await.map(drop)
    }

    /// The 4096 bytes of an Identify.
    pub async fn identify(&self, cns: u8, nsid: u32) -> Result<Vec<u8>, Failure> {
        Ok(self.admin.execute(&Command::identify(cns, nsid)).await?.data)
    }

    /// Part of a log page.
    pub async fn log(&self, lid: u8, bytes: usize, offset: u64) -> Result<Vec<u8>, Failure> {
        Ok(self.admin.execute(&Command::get_log(lid, bytes, offset)).await?.data)
    }

    /// The active namespaces.
    pub async fn namespaces(&self) -> Result<Vec<u32>, Failure> {
        let list = self.identify(0x02, 0).await?;
        Ok((0..1024).map(|index| u32_at(&list, index * 4)).take_while(|nsid| *nsid != 0).collect())
    }

    /// The Connect that opens I/O queue `qid` with `entries` entries.
    pub fn io_connect(&self, qid: u16, entries: u16) -> Connect {
        Connect { cntlid: self.cntlid, ..self.options.connect(&self.subnqn, qid, entries - 1) }
    }

    /// Opens I/O queue `qid` with `entries` entries.
    pub async fn io_queue(&self, qid: u16, entries: u16) -> Result<IoQueue, Failure> {
        let mut lba_sizes = Vec::new();
        for nsid in self.namespaces().await? {
            let namespace = self.identify(0x00, nsid).await?;
            let format = usize::from(namespace[26] & 0xf);
            lba_sizes.push((nsid, 1_usize << namespace[128 + 4 * format + 2]));
        }
        let controller = self.identify(0x01, 0).await?;
        let queue = QueuePair::open(self.address, &self.options, qid).await?;
        queue.connect(&self.io_connect(qid, entries)).await?;
        let capsule_capacity = (u32_at(&controller, 1792) as usize * 16).saturating_sub(64);
        queue.capsule_capacity.set(capsule_capacity);
        Ok(IoQueue { queue, lba_sizes })
    }
}

/// An I/O queue pair that knows the namespaces' block sizes.
pub struct IoQueue {
    /// The queue pair.
    pub queue: QueuePair,
    lba_sizes: Vec<(u32, usize)>,
}

impl IoQueue {
    /// Bytes in a logical block of `nsid`; 512 for namespaces that do not exist.
    pub fn lba_size(&self, nsid: u32) -> usize {
        self.lba_sizes.iter().find(|known| known.0 == nsid).map_or(512, |known| known.1)
    }

    /// The Write command for `data` from `lba` on.
    pub fn writing(&self, nsid: u32, lba: u64, data: &[u8]) -> Command {
        Command::write(nsid, lba, (data.len() / self.lba_size(nsid)) as u32, data)
    }

    /// The Read command for `bytes` bytes from `lba` on.
    pub fn reading(&self, nsid: u32, lba: u64, bytes: usize) -> Command {
        Command::read(nsid, lba, (bytes / self.lba_size(nsid)) as u32, bytes)
    }

    /// Writes and waits.
    pub async fn write(&self, nsid: u32, lba: u64, data: &[u8]) -> Result<Completion, Failure> {
        self.queue.execute(&self.writing(nsid, lba, data)).await
    }

    /// Reads and waits.
    pub async fn read(&self, nsid: u32, lba: u64, bytes: usize) -> Result<Vec<u8>, Failure> {
        Ok(self.queue.execute(&self.reading(nsid, lba, bytes)).await?.data)
    }

    /// Flushes and waits.
    pub async fn flush(&self, nsid: u32) -> Result<Completion, Failure> {
        self.queue.execute(&Command::flush(nsid)).await
    }
}

/// Runs a dialogue to its end on a ring of its own.
#[track_caller]
pub fn run<F: Future<Output = Result<(), Failure>>>(dialogue: F) {
    run_for(LIMIT * 6, dialogue);
}

/// The same for a dialogue that may take longer.
#[track_caller]
pub fn run_for<F: Future<Output = Result<(), Failure>>>(limit: Duration, dialogue: F) {
    let result = tokio_uring::start(async { tokio::time::timeout(limit, dialogue).await });
    match result {
        Ok(Ok(())) => {}
        Ok(Err(failure)) => panic!("{failure}"),
        Err(_) => panic!("the dialogue did not come to its end within {limit:?}"),
    }
}

/// Waits until `condition` holds.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) -> Result<(), Failure> {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        if Instant::now() > deadline {
            return Err(Failure::Silence(what.to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Bytes that look random and depend on nothing but `seed`.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}
