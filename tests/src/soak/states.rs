//! The permitted content of a pool by txg.

use super::logs::Done;
use crate::workload::Model;
use millpond_engine::Txg;
use millpond_env::sync::Arc;

/// The permitted content at a txg, before intent logs are replayed.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) txg: Txg,
    /// The minimum content.
    pub(super) model: Model,
    /// It contains all effects below this number.
    pub(super) from: u64,
    /// The effects of the operation that committed this txg; a prefix of them is present too.
    pub(super) then: Vec<Done>,
    /// The model after the whole operation, which may also be present.
    pub(super) after: Option<Model>,
    /// Intent logs were being replayed onto it, so the required content is known only afterwards.
    pub(super) is_replaying: bool,
    /// The content after the replay of its logs, if that was seen before.
    pub(super) replayed: Option<Arc<Model>>,
}

impl State {
    /// A state that is known exactly.
    pub(super) fn of(txg: Txg, model: Model, from: u64) -> Self {
        Self {
            txg,
            model,
            from,
            then: vec![],
            after: None,
            is_replaying: false,
            replayed: None,
        }
    }

    /// The permitted models, the most likely first, each with the number of the first effect that it lacks.
    pub(super) fn candidates(&self) -> Vec<(Model, u64)> {
        let mut all: Vec<(Model, u64)> = vec![];
        let end = self.then.last().map_or(self.from, |done| done.number + 1);
        all.extend(self.after.clone().map(|model| (model, end)));
        all.push((self.model.clone(), self.from));
        let mut model = self.model.clone();
        for done in &self.then {
            if let Some(head) = model.heads.get_mut(&*done.dataset) {
                done.effect.apply(&mut head.content);
            }
            all.push((model.clone(), done.number + 1));
        }
        if self.after.is_some() && !self.then.is_empty() {
            // The last one equals the first.
            all.pop();
        }
        all
    }
}
