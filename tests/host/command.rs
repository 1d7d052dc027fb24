//! Submission queue entries as the test host builds them: one constructor for each command, and setters that make a
//! correct command wrong on purpose.

/// Where a command's data travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In the capsule where it fits, else by R2T: what every host does.
    Auto,
    /// In the capsule, whatever its size.
    Capsule,
    /// By R2T and H2CData, whatever its size.
    Transport,
    /// The SGL descriptor was written by hand; data goes into the capsule.
    ByHand,
}

/// A command before it has a command identifier.
#[derive(Clone, Debug)]
pub struct Command {
    /// The 64-byte entry; CID and SGL1 are filled in when it is submitted.
    pub sqe: [u8; 64],
    /// Data from host to controller.
    pub data: Vec<u8>,
    /// How many bytes the controller has to send.
    pub reads: usize,
    /// Where `data` travels.
    pub placement: Placement,
    /// What SGL1 says, where it differs from the data.
    pub sgl_length: Option<u32>,
}

/// The well-known name of discovery subsystems.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

impl Command {
    /// A command with this opcode and PSDT 01b, which is what every fabrics host sends.
    pub fn new(opcode: u8) -> Self {
        let mut sqe = [0; 64];
        sqe[0] = opcode;
        sqe[1] = 0x40;
        Self { sqe, data: Vec::new(), reads: 0, placement: Placement::Auto, sgl_length: None }
    }

    /// A Fabrics command (opcode 7Fh).
    pub fn fabrics(fctype: u8) -> Self {
        Self::new(0x7f).byte(4, fctype)
    }

    /// Property Get of four or eight bytes.
    pub fn property_get(offset: u32, size: usize) -> Self {
        Self::fabrics(0x04).byte(40, u8::from(size == 8)).dword(44, offset)
    }

    /// Property Set of four bytes.
    pub fn property_set(offset: u32, value: u32) -> Self {
        Self::fabrics(0x00).dword(44, offset).dword(48, value)
    }

    /// Identify with this CNS.
    pub fn identify(cns: u8, nsid: u32) -> Self {
        Self::new(0x06).nsid(nsid).dword(40, u32::from(cns)).reading(4096)
    }

    /// Get Log Page: `bytes` of page `lid` from `offset` on, RAE clear.
    pub fn get_log(lid: u8, bytes: usize, offset: u64) -> Self {
        let dwords = (bytes / 4 - 1) as u32;
        Self::new(0x02)
            .nsid(0xffff_ffff)
            .dword(40, u32::from(lid) | (dwords & 0xffff) << 16)
            .dword(44, dwords >> 16)
            .dword(48, offset as u32)
            .dword(52, (offset >> 32) as u32)
            .reading(bytes)
    }

    /// Get Features, the current value.
    pub fn get_features(fid: u8) -> Self {
        Self::new(0x0a).dword(40, u32::from(fid))
    }

    /// Set Features, not to be saved.
    pub fn set_features(fid: u8, value: u32) -> Self {
        Self::new(0x09).dword(40, u32::from(fid)).dword(44, value)
    }

    /// Abort of the command `cid` on queue `sqid`.
    pub fn abort(sqid: u16, cid: u16) -> Self {
        Self::new(0x08).dword(40, u32::from(sqid) | u32::from(cid) << 16)
    }

    /// Asynchronous Event Request.
    pub fn async_event_request() -> Self {
        Self::new(0x0c)
    }

    /// Keep Alive.
    pub fn keep_alive() -> Self {
        Self::new(0x18)
    }

    /// Flush.
    pub fn flush(nsid: u32) -> Self {
        Self::new(0x00).nsid(nsid)
    }

    /// Read of `blocks` logical blocks that hold `bytes` bytes.
    pub fn read(nsid: u32, lba: u64, blocks: u32, bytes: usize) -> Self {
        Self::new(0x02).nsid(nsid).range(lba, blocks).reading(bytes)
    }

    /// Write of `data` into `blocks` logical blocks.
    pub fn write(nsid: u32, lba: u64, blocks: u32, data: &[u8]) -> Self {
        Self::new(0x01).nsid(nsid).range(lba, blocks).writing(data)
    }

    /// SLBA in CDW10/11 and the 0's based NLB in CDW12.
    pub fn range(self, lba: u64, blocks: u32) -> Self {
        self.dword(40, lba as u32).dword(44, (lba >> 32) as u32).dword(48, blocks - 1)
    }

    /// Get Log Page that leaves the page's event masked (RAE).
    pub fn retaining_event(mut self) -> Self {
        self.sqe[41] |= 0x80;
        self
    }

    /// Expects `bytes` from the controller.
    pub fn reading(mut self, bytes: usize) -> Self {
        self.reads = bytes;
        self
    }

    /// Carries `data` to the controller.
    pub fn writing(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }

    /// Sets the namespace identifier.
    pub fn nsid(self, nsid: u32) -> Self {
        self.dword(4, nsid)
    }

    /// Sets four bytes of the entry.
    pub fn dword(mut self, at: usize, value: u32) -> Self {
        self.sqe[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// Sets one byte of the entry.
    pub fn byte(mut self, at: usize, value: u8) -> Self {
        self.sqe[at] = value;
        self
    }

    /// Forced Unit Access, CDW12 bit 30.
    pub fn force_unit_access(mut self) -> Self {
        self.sqe[51] |= 0x40;
        self
    }

    /// Sends the data by R2T even where it would fit into the capsule.
    pub fn by_r2t(mut self) -> Self {
        self.placement = Placement::Transport;
        self
    }

    /// Sends the data in the capsule whatever the capacity.
    pub fn in_capsule(mut self) -> Self {
        self.placement = Placement::Capsule;
        self
    }

    /// Leaves the SGL descriptor as this says: length and the byte with type and subtype.
    pub fn descriptor(mut self, length: u32, kind: u8) -> Self {
        self.placement = Placement::ByHand;
        self.sqe[32..36].copy_from_slice(&length.to_le_bytes());
        self.sqe[39] = kind;
        self
    }

    /// Lets SGL1 claim another length than the data has.
    pub fn claiming(mut self, length: u32) -> Self {
        self.sgl_length = Some(length);
        self
    }

    /// The entry with its identifier and descriptor, and whether the data goes into the capsule.
    pub fn encode(&self, cid: u16, capsule_capacity: usize) -> ([u8; 64], bool) {
        let mut sqe = self.sqe;
        sqe[2..4].copy_from_slice(&cid.to_le_bytes());
        let in_capsule = !self.data.is_empty()
            && match self.placement {
                Placement::Auto => self.data.len() <= capsule_capacity,
                Placement::Capsule | Placement::ByHand => true,
                Placement::Transport => false,
            };
        if self.placement != Placement::ByHand {
            let length = self.sgl_length.unwrap_or(self.data.len().max(self.reads) as u32);
            sqe[24..39].fill(0);
            sqe[32..36].copy_from_slice(&length.to_le_bytes());
            sqe[39] = if in_capsule { 0x01 } else { 0x5a };
        }
        (sqe, in_capsule)
    }
}

/// Who connects to what: the fields of a Connect command and of its data.
#[derive(Clone, Debug)]
pub struct Connect {
    /// QID: 0 is the admin queue.
    pub qid: u16,
    /// SQSIZE, 0's based.
    pub sqsize: u16,
    /// CATTR: bit 2 disables SQ flow control.
    pub cattr: u8,
    /// KATO in milliseconds.
    pub kato_ms: u32,
    /// HOSTID.
    pub hostid: [u8; 16],
    /// CNTLID: FFFFh asks for a new controller.
    pub cntlid: u16,
    /// SUBNQN.
    pub subnqn: String,
    /// HOSTNQN.
    pub hostnqn: String,
}

impl Connect {
    /// The 1024 bytes of Connect data.
    pub fn data(&self) -> Vec<u8> {
        let mut data = vec![0; 1024];
        data[..16].copy_from_slice(&self.hostid);
        data[16..18].copy_from_slice(&self.cntlid.to_le_bytes());
        data[256..256 + self.subnqn.len()].copy_from_slice(self.subnqn.as_bytes());
        data[512..512 + self.hostnqn.len()].copy_from_slice(self.hostnqn.as_bytes());
        data
    }

    /// The command with its data.
    pub fn command(&self) -> Command {
        Command::fabrics(0x01)
            .dword(40, u32::from(self.qid) << 16)
            .dword(44, u32::from(self.sqsize) | u32::from(self.cattr) << 16)
            .dword(48, self.kato_ms)
            .writing(&self.data())
            .in_capsule()
    }
}
