//! The discovery log page (70h): header and entries.
//!
//! Which entries a host gets to see, and the generation counter, are the
//! business of the discovery service.

use crate::Nqn;
use crate::identify::layout::{wire_layout, write_ascii};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// CNTLID of an entry whose controllers are allocated on Connect.
pub const DYNAMIC_CONTROLLER: u16 = 0xffff;

/// Transport type of an entry (TRTYPE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TransportType {
    /// RDMA.
    Rdma = 1,
    /// Fibre Channel.
    FibreChannel = 2,
    /// TCP.
    Tcp = 3,
    /// Inside one host.
    Loopback = 0xfe,
}

/// Address family of an entry (ADRFAM).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AddressFamily {
    /// PCI.
    Pci = 0,
    /// IPv4.
    Ipv4 = 1,
    /// IPv6.
    Ipv6 = 2,
    /// InfiniBand.
    InfiniBand = 3,
    /// Fibre Channel.
    FibreChannel = 4,
    /// Inside one host.
    Loopback = 0xfe,
}

/// What an entry leads to (SUBTYPE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SubsystemType {
    /// Another discovery service.
    Referral = 1,
    /// A subsystem with namespaces.
    Nvm = 2,
    /// The discovery subsystem that returned the log.
    CurrentDiscovery = 3,
}

/// Bits of TREQ, transport requirements.
pub mod transport_requirements {
    /// Not said whether a secure channel is required (field 1:0 = 0).
    pub const SECURE_CHANNEL_UNSPECIFIED: u8 = 0;
    /// A secure channel is required (field 1:0 = 1).
    pub const SECURE_CHANNEL_REQUIRED: u8 = 1;
    /// A secure channel is not required (field 1:0 = 2).
    pub const SECURE_CHANNEL_NOT_REQUIRED: u8 = 2;
    /// The controller can do without SQ flow control.
    pub const SQ_FLOW_CONTROL_OPTIONAL: u8 = 1 << 2;
}

/// Bits of EFLAGS, entry flags; meaningful for discovery subsystems.
pub mod entry_flags {
    /// Every port of the discovery subsystem returns the same (DUPRETINFO).
    pub const DUPLICATE_INFORMATION: u16 = 1 << 0;
    /// Explicit persistent connections are supported (EPCSD).
    pub const PERSISTENT_CONNECTIONS: u16 = 1 << 1;
    /// No connectivity to a central discovery controller (NCC).
    pub const NO_CDC: u16 = 1 << 2;
}

/// Values of SECTYPE, byte 0 of the transport specific part for TCP.
pub mod tcp_security {
    /// No TLS.
    pub const NONE: u8 = 0;
    /// TLS 1.2.
    pub const TLS_1_2: u8 = 1;
    /// TLS 1.3.
    pub const TLS_1_3: u8 = 2;
}

/// The transport specific part for RDMA (TSAS), bytes 0 to 2.
pub mod rdma {
    /// Queue pair type (RDMA_QPTYPE): reliable connected.
    pub const RELIABLE_CONNECTED: u8 = 1;
    /// Provider type (RDMA_PRTYPE): not specified.
    pub const ANY_PROVIDER: u8 = 1;
    /// Connection management (RDMA_CMS): RDMA_CM, with IP addresses.
    pub const RDMA_CM: u8 = 1;
}

/// Header of the discovery log page.
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Changes with every change of content (GENCTR, bytes 0 to 7).
    pub generation: U64,
    /// Number of entries (NUMREC, bytes 8 to 15).
    pub record_count: U64,
    /// Record format, 0 (RECFMT, bytes 16 to 17).
    pub record_format: U16,
    /// Flags: bit 0 EXTEND, bit 1 PORTLCL, bit 2 ALLSUBE (DLPF, byte 18).
    pub flags: u8,
    _reserved19: u8,
    /// Length of the whole log in bytes if extended (TDLPL, bytes 20 to 23).
    pub total_length: U32,
    _reserved24: [u8; 1000],
}

wire_layout!(DiscoveryHeader, 1024, {
    0 generation,
    8 record_count,
    16 record_format,
    18 flags,
    20 total_length,
});

/// One entry of the discovery log page.
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Transport; see [`TransportType`] (TRTYPE, byte 0).
    pub transport_type: u8,
    /// Address family; see [`AddressFamily`] (ADRFAM, byte 1).
    pub address_family: u8,
    /// What is there; see [`SubsystemType`] (SUBTYPE, byte 2).
    pub subsystem_type: u8,
    /// Requirements; bits in [`transport_requirements`] (TREQ, byte 3).
    pub transport_requirements: u8,
    /// Port within the subsystem (PORTID, bytes 4 to 5).
    pub port_id: U16,
    /// Controller, or [`DYNAMIC_CONTROLLER`] (CNTLID, bytes 6 to 7).
    pub controller_id: U16,
    /// Maximum admin queue size in entries, not 0's based (ASQSZ, bytes 8 to 9).
    pub admin_queue_size: U16,
    /// Flags; bits in [`entry_flags`] (EFLAGS, bytes 10 to 11).
    pub entry_flags: U16,
    _reserved12: [u8; 20],
    /// Service: the port in decimal, padded with spaces (TRSVCID, bytes 32 to 63).
    pub service: [u8; 32],
    _reserved64: [u8; 192],
    /// Subsystem NQN, padded with NUL (SUBNQN, bytes 256 to 511).
    pub subsystem_nqn: [u8; 256],
    /// Address in ASCII, padded with spaces (TRADDR, bytes 512 to 767).
    pub address: [u8; 256],
    /// Transport specific address subtype: for TCP byte 0 is a value of
    /// [`tcp_security`] (TSAS, bytes 768 to 1023).
    pub transport_specific: [u8; 256],
}

wire_layout!(DiscoveryEntry, 1024, {
    0 transport_type,
    1 address_family,
    2 subsystem_type,
    3 transport_requirements,
    4 port_id,
    6 controller_id,
    8 admin_queue_size,
    10 entry_flags,
    32 service,
    256 subsystem_nqn,
    512 address,
    768 transport_specific,
});

impl DiscoveryEntry {
    /// Writes the service (TRSVCID); cut at 32 characters.
    pub fn set_service(&mut self, service: &str) {
        write_ascii(&mut self.service, service);
    }

    /// Writes the address (TRADDR); cut at 256 characters. IPv6 has no
    /// brackets and no scope.
    pub fn set_address(&mut self, address: &str) {
        write_ascii(&mut self.address, address);
    }

    /// Writes the transport specific part for RDMA (TSAS): a reliable connection by RDMA_CM, over whatever provider.
    pub fn set_rdma(&mut self) {
        self.transport_specific[..3].copy_from_slice(&[
            rdma::RELIABLE_CONNECTED,
            rdma::ANY_PROVIDER,
            rdma::RDMA_CM,
        ]);
    }

    /// Writes the subsystem NQN (SUBNQN).
    pub fn set_subsystem_nqn(&mut self, nqn: &Nqn) {
        nqn.write_field(&mut self.subsystem_nqn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_padded_with_spaces() {
        let mut entry = DiscoveryEntry::new_zeroed();
        entry.transport_type = TransportType::Tcp as u8;
        entry.set_service("4420");
        entry.set_address("192.0.2.1");
        let nqn = Nqn::discovery();
        entry.set_subsystem_nqn(&nqn);
        let bytes = entry.as_bytes();
        assert_eq!(bytes[0], 3);
        assert_eq!(&bytes[32..38], b"4420  ");
        assert_eq!(bytes[63..65], [b' ', 0]);
        let end = 256 + nqn.as_str().len();
        assert_eq!(&bytes[256..end], nqn.as_str().as_bytes());
        assert_eq!(bytes[end], 0);
        assert_eq!(&bytes[512..523], b"192.0.2.1  ");
        assert_eq!(bytes[767..769], [b' ', 0]);
    }

    #[test]
    fn rdma_entries_say_how_to_connect() {
        let mut entry = DiscoveryEntry::new_zeroed();
        entry.set_rdma();
        assert_eq!(entry.as_bytes()[768..772], [1, 1, 1, 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..1100)) {
            match DiscoveryEntry::from_bytes(&bytes) {
                Some(entry) => prop_assert_eq!(entry.as_bytes(), &bytes[..1024]),
                None => prop_assert!(bytes.len() < 1024),
            }
            match DiscoveryHeader::from_bytes(&bytes) {
                Some(header) => prop_assert_eq!(header.as_bytes(), &bytes[..1024]),
                None => prop_assert!(bytes.len() < 1024),
            }
        }
    }
}
