//! Turns objects into ZAPs, and tracks the features that datasets use.
//!
//! Page `docs/format/features.md`, `docs/format/dsl-dataset.md`.

use crate::heads::features;
use crate::mos::During;
use crate::tasks::context::SyncTaskContext;
use millpond_ondisk::{FEATURES, FeatureFlags, ObjectId, ObjectType};
use millpond_pool::PoolError;

const WHAT: &str = "extension of a dataset";

impl SyncTaskContext<'_> {
    /// Turns a directory's or dataset's own object into a ZAP, if it is not one yet.
    pub(crate) fn zapify(&self, id: ObjectId) -> Result<(), PoolError> {
        let object = self.object(id, WHAT)?;
        if object.object_type() == ObjectType::METADATA_ZAP {
            return Ok(());
        }
        let bonus_type = object.bonus_type();
        object
            .set_types(self.ctx.tx(), ObjectType::METADATA_ZAP, bonus_type)
            .during(WHAT)?;
        self.make_zap(id, 0)?;
        self.ctx.feature_increment(features::EXTENSIBLE_DATASET)
    }

    /// Frees a directory's or dataset's own object.
    pub(crate) fn free_zapified(&self, id: ObjectId) -> Result<(), PoolError> {
        if self.is_zapified(id)? {
            self.ctx.feature_decrement(features::EXTENSIBLE_DATASET)?;
        }
        self.free_object(id)
    }

    /// The features that a dataset uses, each with its value.
    pub(crate) fn dataset_features(
        &self,
        dataset: ObjectId,
    ) -> Result<Vec<(&'static str, Vec<u64>)>, PoolError> {
        let mut found = vec![];
        if !self.is_zapified(dataset)? {
            return Ok(found);
        }
        for feature in FEATURES {
            if feature.flags.contains(FeatureFlags::PER_DATASET)
                && let Some(words) = self.extension(dataset, feature.guid)?
            {
                found.push((feature.guid, words));
            }
        }
        Ok(found)
    }

    /// Marks a dataset as using a feature, unless it already does.
    pub(crate) fn activate_feature(
        &self,
        dataset: ObjectId,
        guid: &str,
        value: &[u64],
    ) -> Result<(), PoolError> {
        self.zapify(dataset)?;
        if self.lookup_value(dataset, guid)?.is_some() {
            return Ok(());
        }
        self.update_words(dataset, guid, value)?;
        self.ctx.feature_increment(guid)
    }

    /// Marks a dataset as no longer using a feature, if it does.
    pub(crate) fn deactivate_feature(
        &self,
        dataset: ObjectId,
        guid: &str,
    ) -> Result<(), PoolError> {
        if self.is_zapified(dataset)? && self.remove(dataset, guid)? {
            self.ctx.feature_decrement(guid)?;
        }
        Ok(())
    }

    /// Marks a dataset as using every feature that another one uses.
    pub(crate) fn copy_features(&self, from: ObjectId, to: ObjectId) -> Result<(), PoolError> {
        for (guid, value) in self.dataset_features(from)? {
            self.activate_feature(to, guid, &value)?;
        }
        Ok(())
    }

    /// Marks a dataset as using no features.
    pub(crate) fn drop_features(&self, dataset: ObjectId) -> Result<(), PoolError> {
        for (guid, _) in self.dataset_features(dataset)? {
            self.remove(dataset, guid)?;
            self.ctx.feature_decrement(guid)?;
        }
        Ok(())
    }

    /// Swaps the features of two datasets.
    pub(crate) fn swap_features(&self, one: ObjectId, other: ObjectId) -> Result<(), PoolError> {
        let of_one = self.dataset_features(one)?;
        let of_other = self.dataset_features(other)?;
        self.drop_features(one)?;
        self.drop_features(other)?;
        for (to, values) in [(other, of_one), (one, of_other)] {
            for (guid, value) in values {
                self.activate_feature(to, guid, &value)?;
            }
        }
        Ok(())
    }
}
