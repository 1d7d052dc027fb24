//! How a command ends: completions, statuses, and the ways a dialogue can fail.

use std::fmt;

/// Status "invalid opcode".
pub const INVALID_OPCODE: u16 = 0x001;
/// Status "invalid field in command".
pub const INVALID_FIELD: u16 = 0x002;
/// Status "invalid namespace or format".
pub const INVALID_NAMESPACE: u16 = 0x00b;
/// Status "command sequence error".
pub const SEQUENCE_ERROR: u16 = 0x00c;
/// Status "data SGL length invalid".
pub const SGL_LENGTH: u16 = 0x00f;
/// Status "transient transport error".
pub const TRANSIENT_TRANSPORT: u16 = 0x022;
/// Status "LBA out of range".
pub const LBA_OUT_OF_RANGE: u16 = 0x080;
/// Status "capacity exceeded".
pub const CAPACITY_EXCEEDED: u16 = 0x081;
/// Status "asynchronous event request limit exceeded".
pub const AER_LIMIT: u16 = 0x105;
/// Status "connect invalid parameters".
pub const CONNECT_INVALID: u16 = 0x182;
/// Status "connect invalid host".
pub const INVALID_HOST: u16 = 0x184;

/// Why something a test asked for did not happen.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The controller answered with a status other than success.
    Status(Completion),
    /// The target ended the connection (or never let it be made).
    Closed(String),
    /// The target sent what no target may send.
    Protocol(String),
    /// Nothing came within [`super::LIMIT`].
    Silence(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(completion) => write!(f, "status {:03x}h: {completion:02x?}", completion.code()),
            Self::Closed(how) => write!(f, "the connection ended: {how}"),
            Self::Protocol(what) => write!(f, "against the protocol: {what}"),
            Self::Silence(what) => write!(f, "nothing happened: {what}"),
        }
    }
}

/// A completion queue entry, and the data that came with it.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// DW0.
    pub dw0: u32,
    /// DW1.
    pub dw1: u32,
    /// SQHD.
    pub sqhd: u16,
    /// SQID.
    pub sqid: u16,
    /// CID.
    pub cid: u16,
    /// The status field as on the wire: phase, SC, SCT, CRD, MORE, DNR.
    pub status: u16,
    /// What a command from controller to host brought.
    pub data: Vec<u8>,
    /// How many commands of the queue pair were answered before.
    pub order: u64,
}

impl Completion {
    /// SCT and SC, as three hexadecimal digits.
    pub fn code(&self) -> u16 {
        self.status >> 1 & 0x7ff
    }

    /// Do Not Retry.
    pub fn dnr(&self) -> bool {
        self.status & 0x8000 != 0
    }

    /// Whether the command succeeded.
    pub fn is_success(&self) -> bool {
        self.code() == 0
    }
}

/// What a test expects of a command that must fail.
pub trait Fails {
    /// The failed completion; panics unless status and DNR are these.
    fn fails_with(self, code: u16, dnr: bool) -> Completion;
    /// The failed completion; panics unless the status is one of these and DNR is set.
    fn fails_finally(self, codes: &[u16]) -> Completion;
}

impl Fails for Result<Completion, Failure> {
    #[track_caller]
    fn fails_with(self, code: u16, dnr: bool) -> Completion {
        match self {
            Err(Failure::Status(completion)) => {
                let got = (completion.code(), completion.dnr());
                let dw0 = completion.dw0;
                assert!(got == (code, dnr), "{got:03x?} DW0 {dw0:08x}h instead of ({code:03x}, {dnr})");
                completion
            }
            other => panic!("status {code:03x}h was due, but: {other:02x?}"),
        }
    }

    #[track_caller]
    fn fails_finally(self, codes: &[u16]) -> Completion {
        match self {
            Err(Failure::Status(completion)) if codes.contains(&completion.code()) && completion.dnr() => {
                completion
            }
            other => panic!("one of {codes:03x?} with DNR was due, but: {other:03x?}"),
        }
    }
}
