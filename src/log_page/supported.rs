//! The log pages that say what a controller supports: log pages (00h), commands (05h), features (12h) and management
//! interface commands (13h, of which there are none). Each follows the list that the code itself goes by.

use crate::{admin, controller::Controller, features, io};
use nvme::{
    AdminOpcode, IoOpcode,
    log_page::{EffectsLog, FeaturesLog, SupportedLogPages, effect, log_id},
};

/// The log pages of an I/O controller.
pub const PAGES: &[u8] = &[
    log_id::SUPPORTED_LOG_PAGES,
    log_id::ERROR_INFORMATION,
    log_id::SMART,
    log_id::FIRMWARE_SLOT,
    log_id::CHANGED_NAMESPACES,
    log_id::EFFECTS,
    log_id::PERSISTENT_EVENT,
    log_id::FEATURES,
    log_id::MANAGEMENT_COMMANDS,
];

/// The log pages of a discovery controller.
pub const DISCOVERY_PAGES: &[u8] = &[log_id::SUPPORTED_LOG_PAGES, log_id::FEATURES, log_id::DISCOVERY];

/// Supported log pages (00h). No page takes an index for its offset.
pub fn pages(controller: &Controller) -> Vec<u8> {
    let mut page = SupportedLogPages::new_zeroed();
    let ids = if controller.is_discovery() { DISCOVERY_PAGES } else { PAGES };
    ids.iter().for_each(|id| page.add(*id));
    page.as_bytes().to_vec()
}

/// Features supported and their effects (12h).
pub fn features(controller: &Controller) -> Vec<u8> {
    let mut page = FeaturesLog::new_zeroed();
    features::supported(controller).for_each(|feature| page.add(feature.id, feature.effects()));
    page.as_bytes().to_vec()
}

/// Management interface commands supported and their effects (13h): there is no management interface.
pub fn management_commands() -> Vec<u8> {
    FeaturesLog::new_zeroed().as_bytes().to_vec()
}

/// Commands supported and their effects (05h): exactly what the pipeline executes.
pub fn effects() -> Vec<u8> {
    let mut page = EffectsLog::new_zeroed();
    for opcode in admin::SUPPORTED {
        // Features can belong to a namespace; all else is about the controller.
        let features = matches!(opcode, AdminOpcode::SetFeatures | AdminOpcode::GetFeatures);
        let namespaces = if features { effect::SCOPE_NAMESPACE } else { 0 };
        page.add_admin(opcode.code(), effect::SCOPE_CONTROLLER | namespaces);
    }
    for opcode in io::SUPPORTED {
        let changes =
            !matches!(opcode, IoOpcode::Flush | IoOpcode::Read | IoOpcode::Compare | IoOpcode::Verify);
        let content = if changes { effect::BLOCK_CONTENT } else { 0 };
        page.add_io(opcode.code(), effect::SCOPE_NAMESPACE | content);
    }
    page.as_bytes().to_vec()
}
