//! What a controller supports: log pages (00h), commands (05h), features (12h)
//! and management interface commands (13h).

use crate::identify::layout::wire_layout;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of an entry in [`SupportedLogPages`].
pub mod supported_page {
    /// The page is supported (LSUPP).
    pub const SUPPORTED: u32 = 1 << 0;
    /// The offset may be an index (IOS).
    pub const INDEX_OFFSET: u32 = 1 << 1;
}

/// Supported log pages log (00h).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SupportedLogPages {
    /// One entry a log page identifier; bits in [`supported_page`], 31:16 are
    /// page specific (bytes 0 to 1023).
    pub pages: [U32; 256],
}

wire_layout!(SupportedLogPages, 1024, { 0 pages });

impl SupportedLogPages {
    /// Marks the page with identifier `id` as supported.
    pub fn add(&mut self, id: u8) {
        let entry = &mut self.pages[usize::from(id)];
        *entry = (entry.get() | supported_page::SUPPORTED).into();
    }
}

/// Bits of an entry in [`EffectsLog`].
pub mod effect {
    /// The command is supported (CSUPP).
    pub const SUPPORTED: u32 = 1 << 0;
    /// Logical block content may change (LBCC).
    pub const BLOCK_CONTENT: u32 = 1 << 1;
    /// Namespace capability may change (NCC).
    pub const NAMESPACE_CAPABILITY: u32 = 1 << 2;
    /// Namespace inventory may change (NIC).
    pub const NAMESPACE_INVENTORY: u32 = 1 << 3;
    /// Controller capability may change (CCC).
    pub const CONTROLLER_CAPABILITY: u32 = 1 << 4;
    /// Submit only when no command to the namespace is outstanding
    /// (CSE, field 18:16 = 1).
    pub const EXCLUSIVE_IN_NAMESPACE: u32 = 1 << 16;
    /// Submit only when no command at all is outstanding
    /// (CSE, field 18:16 = 2).
    pub const EXCLUSIVE: u32 = 2 << 16;
    /// UUID selection is supported (USS).
    pub const UUID_SELECTION: u32 = 1 << 19;
    /// Scope: namespace.
    pub const SCOPE_NAMESPACE: u32 = 1 << 20;
    /// Scope: controller.
    pub const SCOPE_CONTROLLER: u32 = 1 << 21;
    /// Scope: NVM set.
    pub const SCOPE_NVM_SET: u32 = 1 << 22;
    /// Scope: endurance group.
    pub const SCOPE_ENDURANCE_GROUP: u32 = 1 << 23;
    /// Scope: domain.
    pub const SCOPE_DOMAIN: u32 = 1 << 24;
    /// Scope: NVM subsystem.
    pub const SCOPE_SUBSYSTEM: u32 = 1 << 25;
}

/// Commands supported and effects log (05h) of one I/O command set.
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct EffectsLog {
    /// Admin commands by opcode; bits in [`effect`] (ACS, bytes 0 to 1023).
    pub admin: [U32; 256],
    /// I/O commands by opcode; bits in [`effect`] (IOCS, bytes 1024 to 2047).
    pub io: [U32; 256],
    _reserved2048: [u8; 2048],
}

wire_layout!(EffectsLog, 4096, {
    0 admin,
    1024 io,
});

impl EffectsLog {
    /// Marks the admin command `opcode` as supported, with more `effects`.
    pub fn add_admin(&mut self, opcode: u8, effects: u32) {
        self.admin[usize::from(opcode)] = (effect::SUPPORTED | effects).into();
    }

    /// Marks the I/O command `opcode` as supported, with more `effects`.
    pub fn add_io(&mut self, opcode: u8, effects: u32) {
        self.io[usize::from(opcode)] = (effect::SUPPORTED | effects).into();
    }
}

/// Feature identifiers supported and effects log (12h), and, as the layout is
/// the same, management interface commands supported and effects (13h).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FeaturesLog {
    /// One entry an identifier; bits in [`effect`], where
    /// [`effect::BLOCK_CONTENT`] is a change of user data (bytes 0 to 1023).
    pub features: [U32; 256],
}

wire_layout!(FeaturesLog, 1024, { 0 features });

impl FeaturesLog {
    /// Marks the feature `id` as supported, with more `effects`.
    pub fn add(&mut self, id: u8, effects: u32) {
        self.features[usize::from(id)] = (effect::SUPPORTED | effects).into();
    }
}

#[cfg(test)]
mod tests {
    use super::{EffectsLog, FeaturesLog, SupportedLogPages, effect};

    #[test]
    fn features_land_at_their_id() {
        let mut log = FeaturesLog::new_zeroed();
        log.add(0x81, effect::SCOPE_CONTROLLER);
        assert_eq!(log.as_bytes()[0x204..0x208], [1, 0, 0x20, 0]);
        assert_eq!(log.as_bytes().iter().filter(|&&b| b != 0).count(), 2);
    }

    #[test]
    fn commands_land_at_their_opcode() {
        let mut log = EffectsLog::new_zeroed();
        log.add_admin(0x06, 0);
        log.add_io(0x01, effect::BLOCK_CONTENT);
        assert_eq!(log.as_bytes()[24..28], [1, 0, 0, 0]);
        assert_eq!(log.as_bytes()[1028..1032], [3, 0, 0, 0]);
        assert_eq!(log.as_bytes().iter().filter(|&&b| b != 0).count(), 2);
    }

    #[test]
    fn pages_land_at_their_id() {
        let mut log = SupportedLogPages::new_zeroed();
        log.add(0xff);
        log.add(0xff);
        assert_eq!(log.as_bytes()[1020..], [1, 0, 0, 0]);
        assert!(log.as_bytes()[..1020].iter().all(|&b| b == 0));
    }
}
