//! The private data of rdma_cm: what host and target tell each other while a connection is made.
//!
//! NVMe/RDMA transport specification, "Fabric dependent settings"; all integers are little-endian. HSQSIZE is 0's based and HRQSIZE is
//! not: neither leaves this file as it is on the wire.

use nvme::Qid;

/// Bytes of a request's private data. More may arrive: the connection manager pads.
pub const REQUEST_LEN: usize = 32;
/// Bytes of a reply's.
pub const REPLY_LEN: usize = 32;
/// Bytes of a rejection's.
pub const REJECT_LEN: usize = 4;
/// The only record format (RECFMT).
const RECORD_FORMAT: u16 = 0;

/// Why a connection is rejected (STS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Reject {
    /// The private data is missing or too short.
    PrivateDataLength = 1,
    /// An unknown record format (RECFMT).
    RecordFormat = 2,
    /// A queue number that no controller here has (QID).
    QueueId = 3,
    /// A host send queue of no or of too many entries (HSQSIZE).
    HostSendQueue = 4,
    /// A host receive queue that cannot take a response for every command (HRQSIZE).
    HostReceiveQueue = 5,
    /// Memory, device or connection limit.
    Resources = 6,
    /// The host serves no RDMA READ (IRD), so that its data could not be fetched.
    ReadDepth = 7,
}

impl Reject {
    /// The private data of the rejection.
    pub fn encode(self) -> [u8; REJECT_LEN] {
        let [low, high] = (self as u16).to_le_bytes();
        let [f0, f1] = RECORD_FORMAT.to_le_bytes();
        [f0, f1, low, high]
    }
}

impl Reject {
    /// In words.
    pub fn describe(self) -> &'static str {
        match self {
            Reject::PrivateDataLength => "the private data is missing or shorter than 32 bytes",
            Reject::RecordFormat => "the private data has an unknown record format",
            Reject::QueueId => "the queue number is beyond what controllers have",
            Reject::HostSendQueue => "the host's send queue has no entries, or more than allowed",
            Reject::HostReceiveQueue => "the host's receive queue is smaller than its send queue",
            Reject::Resources => "the resources for another queue pair are not there",
            Reject::ReadDepth => "the host serves no RDMA READ",
        }
    }
}

/// What a queue may be.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Entries of an admin queue.
    pub admin_entries: u32,
    /// Entries of an I/O queue.
    pub io_entries: u32,
    /// I/O queues of a controller.
    pub io_queues: u16,
}

/// A checked request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Which queue this will be (QID).
    pub qid: Qid,
    /// Commands the host may have outstanding: its send queue (HSQSIZE + 1).
    pub entries: u32,
    /// Responses it can take (HRQSIZE).
    pub host_receives: u32,
}

impl Request {
    /// Reads and checks the private data of a connection request. Every byte string is either one or has a reason to be rejected.
    pub fn parse(bytes: &[u8], limits: &QueueLimits) -> Result<Request, Reject> {
        let bytes = bytes.first_chunk::<REQUEST_LEN>().ok_or(Reject::PrivateDataLength)?;
        let [f0, f1, q0, q1, r0, r1, s0, s1, ..] = *bytes;
        if u16::from_le_bytes([f0, f1]) != RECORD_FORMAT {
            return Err(Reject::RecordFormat);
        }
        // CNTLID (bytes 9:8) is not looked at: older hosts leave it 0, and Connect names the controller.
        let qid = Qid(u16::from_le_bytes([q0, q1]));
        if qid.0 > limits.io_queues {
            return Err(Reject::QueueId);
        }
        let entries = u32::from(u16::from_le_bytes([s0, s1])) + 1;
        let most = if qid.is_admin() { limits.admin_entries } else { limits.io_entries };
        if entries < 2 || entries > most {
            return Err(Reject::HostSendQueue);
        }
        let host_receives = u32::from(u16::from_le_bytes([r0, r1]));
        if host_receives < entries {
            return Err(Reject::HostReceiveQueue);
        }
        Ok(Request { qid, entries, host_receives })
    }
}

/// The private data of the reply: how many commands can be received (CRQSIZE).
pub fn encode_reply(receives: u32) -> [u8; REPLY_LEN] {
    let mut bytes = [0; REPLY_LEN];
    bytes[0..2].copy_from_slice(&RECORD_FORMAT.to_le_bytes());
    bytes[2..4].copy_from_slice(&u16::try_from(receives).unwrap_or(u16::MAX).to_le_bytes());
    bytes
}

/// How many RDMA READs may be outstanding at once: no more than the host serves, nor than the device can have.
///
/// What the host serves arrives as the request's *initiator depth*: the connection manager turns its responder resources around.
pub fn read_depth(host_serves: u8, device_can: u8) -> Result<u8, Reject> {
    if host_serves == 0 { Err(Reject::ReadDepth) } else { Ok(host_serves.min(device_can.max(1))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: QueueLimits = QueueLimits { admin_entries: 128, io_entries: 128, io_queues: 64 };

    fn request(qid: u16, receives: u16, sends: u16) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[2..4].copy_from_slice(&qid.to_le_bytes());
        bytes[4..6].copy_from_slice(&receives.to_le_bytes());
        bytes[6..8].copy_from_slice(&sends.to_le_bytes());
        bytes
    }

    #[test]
    fn what_linux_and_spdk_hosts_send() {
        let admin = Request { qid: Qid(0), entries: 32, host_receives: 32 };
        assert_eq!(Request::parse(&request(0, 32, 31), &LIMITS), Ok(admin));
        let mut io = request(3, 128, 127);
        io[8] = 9;
        let mut padded = io.to_vec();
        padded.extend([0; 24]);
        let wanted = Request { qid: Qid(3), entries: 128, host_receives: 128 };
        assert_eq!(Request::parse(&padded, &LIMITS), Ok(wanted), "CM pads to 56 bytes, CNTLID may be there");
    }

    #[test]
    fn every_rejection_has_its_cause() {
        let mut format = request(1, 32, 31);
        format[0] = 1;
        let rejected = |bytes: &[u8]| Request::parse(bytes, &LIMITS).unwrap_err();
        assert_eq!(rejected(&[]), Reject::PrivateDataLength);
        assert_eq!(rejected(&request(1, 32, 31)[..31]), Reject::PrivateDataLength);
        assert_eq!(rejected(&format), Reject::RecordFormat);
        assert_eq!(rejected(&request(65, 32, 31)), Reject::QueueId);
        assert_eq!(rejected(&request(1, 32, 0)), Reject::HostSendQueue);
        assert_eq!(rejected(&request(1, 129, 128)), Reject::HostSendQueue);
        assert_eq!(rejected(&request(0, 129, 128)), Reject::HostSendQueue);
        assert_eq!(rejected(&request(1, 127, 127)), Reject::HostReceiveQueue);
        assert_eq!(rejected(&request(1, u16::MAX, u16::MAX)), Reject::HostSendQueue);
        assert_eq!(read_depth(0, 16), Err(Reject::ReadDepth));
        assert_eq!(Reject::HostSendQueue.encode(), [0, 0, 4, 0]);
        assert_eq!(Reject::Resources.encode(), [0, 0, 6, 0]);
    }

    #[test]
    fn reads_are_limited_by_both_ends() {
        assert_eq!((read_depth(16, 128), read_depth(128, 16), read_depth(1, 0)), (Ok(16), Ok(16), Ok(1)));
    }

    #[test]
    fn the_reply_says_how_many_commands_can_be_received() {
        let reply = encode_reply(128);
        assert_eq!(reply[..4], [0, 0, 128, 0]);
        assert!(reply[4..].iter().all(|byte| *byte == 0));
        assert_eq!(encode_reply(70_000)[2..4], [0xff, 0xff]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(request) = Request::parse(&bytes, &LIMITS) {
                prop_assert!((2..=128).contains(&request.entries) && request.qid.0 <= 64);
                prop_assert!(request.host_receives >= request.entries);
            }
        }

        #[test]
        fn sizes_survive(qid in 0..=64u16, entries in 2..=128u32) {
            let bytes = request(qid, entries as u16, (entries - 1) as u16);
            prop_assert_eq!(Request::parse(&bytes, &LIMITS), Ok(Request { qid: Qid(qid), entries, host_receives: entries }));
        }
    }
}
