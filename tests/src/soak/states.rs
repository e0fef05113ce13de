//! What may be found in a pool, by txg.

use super::logs::Done;
use crate::workload::Model;
use millpond::Txg;
use millpond_env::sync::Arc;

/// What may be found at a txg, before intent logs are replayed.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) txg: Txg,
    /// What is there at least.
    pub(super) model: Model,
    /// All effects below this number are in it.
    pub(super) from: u64,
    /// The effects of the operation that committed this txg: of these a first part is there, too.
    pub(super) then: Vec<Done>,
    /// Or all of that operation.
    pub(super) after: Option<Model>,
    /// Intent logs were being replayed onto it: only afterwards it is known what must be there.
    pub(super) is_replaying: bool,
    /// What the logs that are found with it make of it, if that was seen before.
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

    /// What may be there, the likeliest first, each with the number of the first effect that is not in it.
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
            // The last one is the first once more.
            all.pop();
        }
        all
    }
}
