//! Values that may be copied elsewhere before they are evicted.

use crate::shard::list_of;
use crate::{Cache, Class};
use std::hash::Hash;

/// A value that may be copied elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate<K, V> {
    /// Its key.
    pub key: K,
    /// Its compact form, or the only one.
    pub value: V,
    /// What it is.
    pub class: Class,
    /// Whether it is frequent.
    pub is_frequent: bool,
}

/// The lists in the order in which candidates are taken.
const ORDER: [(Class, bool); 4] = [
    (Class::Metadata, true),
    (Class::Metadata, false),
    (Class::Data, true),
    (Class::Data, false),
];

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// The values with a chosen key that are evicted next, frequent metadata first, then recent metadata,
    /// frequent and recent data. Before anything was evicted these are the newest ones. Speculative entries and
    /// those inserted with [`Retention::KeepInMemory`](crate::Retention::KeepInMemory) are left out.
    ///
    /// Looks at no more than `entries_max` entries of each list, divided among the shards. Each shard is locked for its
    /// part. This does not count as a look-up, and eviction is unaffected.
    #[must_use]
    pub fn candidates(
        &self,
        entries_max: usize,
        is_chosen: impl Fn(&K) -> bool,
    ) -> Vec<Candidate<K, V>> {
        let of_shard = entries_max.div_ceil(self.shards.len());
        let is_filling = self.statistics().evicted == 0;
        let mut candidates = vec![];
        for (class, is_frequent) in ORDER {
            for shard in &self.shards {
                let shard = shard.lock();
                let list = list_of(class, is_frequent);
                for item in shard.lists.walk(list, is_filling).take(of_shard) {
                    let Some((key, value)) = item.candidate().filter(|(key, _)| is_chosen(key))
                    else {
                        continue;
                    };
                    candidates.push(Candidate {
                        key: key.clone(),
                        value: value.clone(),
                        class,
                        is_frequent,
                    });
                }
            }
        }
        candidates
    }
}
