//! ANA groups: kept in the model, not served yet, and said so.

use std::collections::BTreeMap;

use super::model::{AnaGroup, AnaState, DEFAULT_ANA_GROUP};
use super::report::Report;
use super::section::Located;

/// Collects the groups of one port.
pub(super) struct AnaGroups<'a> {
    report: &'a Report<'a>,
    states: BTreeMap<u32, (AnaState, usize)>,
}

impl<'a> AnaGroups<'a> {
    pub(super) fn new(report: &'a Report<'a>) -> Self {
        Self { report, states: BTreeMap::new() }
    }

    /// Takes in a group; `id_key` and `state_key` are what the file calls them.
    pub(super) fn add(&mut self, id: Located<u32>, state: Located<AnaState>, id_key: &str, state_key: &str) {
        if let Some(&(_, first)) = self.states.get(&id.value) {
            let line = self.report.line(first);
            let message = format!("group {} has its state from line {line}: expected it once", id.value);
            self.report.mistake(id.at, id_key, message);
            return;
        }
        self.states.insert(id.value, (state.value, id.at));
        if state.value != AnaState::Optimized {
            let message = format!(
                "ANA groups: group {} is served as if it were optimized, not as {:?}",
                id.value,
                state.value.name()
            );
            self.report.unsupported(state.at, state_key, message);
        }
    }

    /// The groups by ascending id. Group 1 is optimized wherever nothing else is said.
    pub(super) fn finish(self) -> Vec<AnaGroup> {
        let groups = self.states.into_iter().map(|(id, (state, _))| AnaGroup { id, state });
        groups.filter(|group| (group.id, group.state) != (DEFAULT_ANA_GROUP, AnaState::Optimized)).collect()
    }
}
