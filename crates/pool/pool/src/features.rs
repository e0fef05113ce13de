//! The feature flags of a pool and the access they allow.
//!
//! Page `docs/format/features.md`.

pub(crate) mod counts;

use crate::PoolError;
use crate::error::Reading;
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::{FEATURES, Feature, FeatureState, hinders_reading, hinders_writing};
use millpond_ondisk::{ObjectId, Txg};
use millpond_zap::Zap;
use std::collections::BTreeMap;

/// A feature of the pool that this program does not know or does not support yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedFeature {
    /// Its guid, such as `com.example:feature`.
    pub guid: String,
    /// The description stored in the pool.
    pub description: Option<String>,
    /// Reference count: how many users the feature has in the pool.
    pub count: u64,
}

/// The feature tables of a pool. Empty for pools before version 5000.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    for_read: BTreeMap<String, u64>,
    for_write: BTreeMap<String, u64>,
    descriptions: BTreeMap<String, String>,
    enabled_txgs: BTreeMap<String, Txg>,
}

impl Features {
    pub(crate) fn load(
        mos: &Arc<ObjectSetView>,
        for_read: ObjectId,
        for_write: ObjectId,
        descriptions: ObjectId,
        enabled_txgs: Option<ObjectId>,
    ) -> Result<Self, PoolError> {
        let enabled = match enabled_txgs {
            Some(id) => counts(mos, id)?,
            None => BTreeMap::new(),
        };
        Ok(Self {
            for_read: counts(mos, for_read)?,
            for_write: counts(mos, for_write)?,
            descriptions: texts(mos, descriptions)?,
            enabled_txgs: enabled
                .into_iter()
                .map(|(guid, txg)| (guid, Txg(txg)))
                .collect(),
        })
    }

    /// A feature's reference count; `None` if the feature is disabled.
    #[must_use]
    pub fn count(&self, guid: &str) -> Option<u64> {
        self.for_read
            .get(guid)
            .or_else(|| self.for_write.get(guid))
            .copied()
    }
    /// A feature's state: disabled, enabled or active.
    #[must_use]
    pub fn state(&self, guid: &str) -> FeatureState {
        FeatureState::from_count(self.count(guid))
    }
    /// Whether a feature is in use.
    #[must_use]
    pub fn is_active(&self, guid: &str) -> bool {
        self.count(guid).is_some_and(|count| count > 0)
    }
    /// The txg in which a feature was enabled, if the pool recorded it.
    #[must_use]
    pub fn enabled_txg(&self, guid: &str) -> Option<Txg> {
        self.enabled_txgs.get(guid).copied()
    }
    /// Every feature that this program knows, with its state in the pool, ordered by feature number.
    pub fn known(&self) -> impl Iterator<Item = (&'static Feature, FeatureState)> + '_ {
        FEATURES
            .iter()
            .map(|feature| (feature, self.state(feature.guid)))
    }
    /// Active unsupported features that are required to read the pool.
    #[must_use]
    pub fn unreadable(&self) -> Vec<UnsupportedFeature> {
        self.unsupported(&self.for_read, hinders_reading)
    }
    /// Active unsupported features that are required to write to the pool.
    #[must_use]
    pub fn unwritable(&self) -> Vec<UnsupportedFeature> {
        let mut all = self.unsupported(&self.for_read, hinders_writing);
        all.extend(self.unsupported(&self.for_write, hinders_writing));
        all
    }
    /// Features of the pool that this program does not know, active or not.
    #[must_use]
    pub fn unknown(&self) -> Vec<UnsupportedFeature> {
        let is_unknown = |guid: &str, _| Feature::by_guid(guid).is_none();
        let mut all = self.unsupported(&self.for_read, is_unknown);
        all.extend(self.unsupported(&self.for_write, is_unknown));
        all
    }

    /// Whether a feature's count is stored in `features_for_write`. For a feature without a count, the
    /// feature's definition decides.
    pub(crate) fn is_for_write(&self, guid: &str) -> bool {
        self.for_write.contains_key(guid)
            || (!self.for_read.contains_key(guid)
                && Feature::by_guid(guid).is_some_and(Feature::is_read_only_compatible))
    }
    pub(crate) fn set_count(&mut self, guid: &str, is_for_write: bool, count: u64) {
        let table = if is_for_write {
            &mut self.for_write
        } else {
            &mut self.for_read
        };
        table.insert(guid.to_owned(), count);
    }
    pub(crate) fn set_description(&mut self, guid: &str, text: &str) {
        self.descriptions.insert(guid.to_owned(), text.to_owned());
    }
    pub(crate) fn set_enabled_txg(&mut self, guid: &str, txg: Txg) {
        self.enabled_txgs.insert(guid.to_owned(), txg);
    }

    fn unsupported(
        &self,
        table: &BTreeMap<String, u64>,
        hinders: impl Fn(&str, u64) -> bool,
    ) -> Vec<UnsupportedFeature> {
        table
            .iter()
            .filter(|(guid, count)| hinders(guid, **count))
            .map(|(guid, count)| UnsupportedFeature {
                guid: guid.clone(),
                description: self.descriptions.get(guid).cloned(),
                count: *count,
            })
            .collect()
    }
}

fn counts(mos: &Arc<ObjectSetView>, id: ObjectId) -> Result<BTreeMap<String, u64>, PoolError> {
    let what = "feature table";
    let zap = Zap::open(mos.object(id).reading(what)?).reading(what)?;
    let mut table = BTreeMap::new();
    for entry in zap.iter() {
        let entry = entry.reading(what)?;
        let guid = String::from_utf8_lossy(&entry.name).into_owned();
        table.insert(guid, entry.value.first().unwrap_or(0));
    }
    Ok(table)
}

fn texts(mos: &Arc<ObjectSetView>, id: ObjectId) -> Result<BTreeMap<String, String>, PoolError> {
    let what = "feature descriptions";
    let zap = Zap::open(mos.object(id).reading(what)?).reading(what)?;
    let mut table = BTreeMap::new();
    for entry in zap.iter() {
        let entry = entry.reading(what)?;
        let guid = String::from_utf8_lossy(&entry.name).into_owned();
        table.insert(guid, entry.value.text());
    }
    Ok(table)
}
