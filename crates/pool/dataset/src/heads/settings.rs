//! Effective properties, and how they determine the blocks that a dataset writes.
//!
//! Page `docs/format/properties.md`.

use crate::directory::DEPTH_MAX;
use crate::heads::features;
use crate::mos::{DATASET, During, MosView};
use crate::properties::{DATASET_PROPERTIES, table};
use millpond_compress::ZstdLevel;
use millpond_object::{BlockChoice, Caching, DedupPolicy, RedundantMetadata, WritePolicy};
use millpond_ondisk::dsl::keys::{
    PROPERTY_HAS_RECEIVED, PROPERTY_INHERIT_SUFFIX, PROPERTY_RECEIVED_SUFFIX,
    PROPERTY_UNKNOWN_VALUE_SUFFIX,
};
use millpond_ondisk::{ChecksumKind, CompressionKind, ObjectId, ObjectSetKind};
use millpond_pool::PoolError;
use millpond_pool::properties::{Edit, Form, PropertyValue, Shape, preset_value};
use millpond_zap::ZapValue;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The effective settings of a head: every numeric OpenZFS property by name. Words are represented by their
/// numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    numbers: BTreeMap<&'static str, u64>,
}

impl Settings {
    /// The effective number; 0 if the name is not such a property.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.numbers.get(name).copied().unwrap_or(0)
    }
    /// What the cache keeps, and what is prefetched.
    #[must_use]
    pub fn caching(&self) -> Caching {
        Caching {
            kept: BlockChoice::from_number(self.number("primarycache")),
            copied: BlockChoice::from_number(self.number("secondarycache")),
            prefetched: BlockChoice::from_number(self.number("prefetch")),
        }
    }
    /// Whether an `on`/`off` property is on.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        self.number(name) != 0
    }
}

impl MosView<'_> {
    /// A value stored in a property table and effective there, and whether it was received.
    pub(crate) fn stored_value(
        &self,
        table: ObjectId,
        name: &str,
    ) -> Result<Option<(PropertyValue, bool)>, PoolError> {
        let table = self.table(table)?;
        in_force(name, |key| table.lookup(key.as_bytes()).during(DATASET))
    }

    /// Reads all settings of a property table at once. Keeps at most a few entries per setting, whatever
    /// else the table contains.
    fn stored_settings(&self, table: ObjectId) -> Result<StoredSettings, PoolError> {
        let mut stored = StoredSettings::new();
        for entry in self.table(table)?.iter() {
            let entry = entry.during(DATASET)?;
            let Ok(key) = String::from_utf8(entry.name) else {
                continue;
            };
            let name = key.split('$').next().unwrap_or(&key);
            if SETTINGS.contains_key(name) {
                stored.insert(key, entry.value);
            }
        }
        Ok(stored)
    }

    /// The effective value of a directory: stored there or inherited; `None` for the default.
    pub(crate) fn set_value(
        &self,
        directory: ObjectId,
        name: &str,
        is_inheritable: bool,
    ) -> Result<Option<PropertyValue>, PoolError> {
        let mut at = Some(directory);
        for _ in 0..DEPTH_MAX {
            let Some(id) = at else { return Ok(None) };
            let phys = self.directory(id)?;
            if let Some(table) = phys.properties
                && let Some((value, _)) = self.stored_value(table, name)?
            {
                return Ok(Some(value));
            }
            if !is_inheritable {
                return Ok(None);
            }
            at = phys.parent;
        }
        Ok(None)
    }

    /// The effective number of a native property.
    pub(crate) fn number(&self, directory: ObjectId, name: &str) -> Result<u64, PoolError> {
        let Some(property) = table::find(name) else {
            return Ok(0);
        };
        let shape = &property.shape;
        let set = self.set_value(directory, shape.name, shape.edit == Edit::Inheritable)?;
        Ok(match set.or_else(|| preset_value(shape)) {
            Some(PropertyValue::Number(number)) => number,
            _ => 0,
        })
    }

    pub(crate) fn ref_reservation(&self, directory: ObjectId) -> Result<u64, PoolError> {
        self.number(directory, "refreservation")
    }
    pub(crate) fn ref_quota(&self, directory: ObjectId) -> Result<u64, PoolError> {
        self.number(directory, "refquota")
    }

    /// Whether this directory or an ancestor has received properties.
    pub(crate) fn has_received(&self, directory: ObjectId) -> Result<bool, PoolError> {
        Ok(self
            .set_value(directory, PROPERTY_HAS_RECEIVED, true)?
            .is_some())
    }

    /// Computes all effective numbers of a head. Reads the property table of each ancestor once.
    pub(crate) fn settings(&self, directory: ObjectId) -> Result<Settings, PoolError> {
        let mut chain = vec![];
        let mut at = Some(directory);
        while let Some(id) = at
            && chain.len() < DEPTH_MAX
        {
            let phys = self.directory(id)?;
            let stored = phys.properties.map(|table| self.stored_settings(table));
            chain.push(stored.transpose()?.unwrap_or_default());
            at = phys.parent;
        }
        let mut numbers = BTreeMap::new();
        for (name, shape) in SETTINGS.iter() {
            let reach = match shape.edit {
                Edit::Inheritable => chain.len(),
                _ => 1,
            };
            let mut set = None;
            for stored in chain.iter().take(reach).filter(|stored| !stored.is_empty()) {
                set = in_force(name, |key| Ok(stored.get(key).cloned()))?;
                if set.is_some() {
                    break;
                }
            }
            let set = set.map(|(value, _)| value);
            let number = match set.or_else(|| preset_value(shape)) {
                Some(PropertyValue::Number(number)) => number,
                _ => 0,
            };
            numbers.insert(*name, number);
        }
        Ok(Settings { numbers })
    }

    /// Updates what the cache keeps of committed states that are open, in a directory and its descendants.
    pub(crate) fn refresh_caching(&self, within: ObjectId) {
        for (directory, cell) in self.pool.caching_cells().in_use() {
            // The directory of a state that is still open may be gone.
            if let Ok(true) = self.is_within(directory, within)
                && let Ok(settings) = self.settings(directory)
            {
                cell.set(settings.caching());
            }
        }
    }

    /// The write policy for a head's blocks.
    pub(crate) fn write_policy(&self, settings: &Settings, kind: ObjectSetKind) -> WritePolicy {
        let known = self.pool.features();
        let is_enabled = |guid: &str| known.count(guid).is_some();
        let has_lz4 = known.is_active(features::LZ4_COMPRESS);
        let compression = settings.number("compression");
        let (function, zstd_level) = compression_of(compression, has_lz4);
        let is_files = kind == ObjectSetKind::FileSystem;
        let version = self.pool.version();
        WritePolicy {
            checksum: checksum_of(settings.number("checksum")),
            compression: function,
            zstd_level,
            copies: u8::try_from(settings.number("copies")).map_or(1, |copies| copies.clamp(1, 3)),
            redundant_metadata: match settings.number("redundant_metadata") {
                1 => RedundantMetadata::Most,
                2 => RedundantMetadata::Some,
                3 => RedundantMetadata::None,
                _ => RedundantMetadata::All,
            },
            special_small_bytes: settings.number("special_small_blocks"),
            is_mos: false,
            pool_version: version,
            has_lz4,
            has_hole_birth: known.is_active("com.delphix:hole_birth"),
            may_embed: is_enabled("com.delphix:embedded_data"),
            may_have_large_blocks: is_enabled(features::LARGE_BLOCKS),
            may_have_large_dnodes: is_enabled(features::LARGE_DNODE),
            may_keep_births: is_enabled(features::PHYSICAL_REWRITE),
            has_project_quota: is_enabled(features::PROJECT_QUOTA),
            accounts_users: is_files && version >= 15,
            accounts_objects: is_files && is_enabled(features::USEROBJ_ACCOUNTING),
            accounts_projects: is_files && is_enabled(features::PROJECT_QUOTA),
            // The set itself knows.
            is_encrypted: false,
            caching: settings.caching(),
            dedup: dedup_of(settings.number("dedup")),
        }
    }
}

/// The entries of a property table for settings, by key.
type StoredSettings = BTreeMap<String, ZapValue>;

/// The numeric properties that can be changed, by name.
static SETTINGS: LazyLock<BTreeMap<&'static str, &'static Shape>> = LazyLock::new(|| {
    let shapes = DATASET_PROPERTIES.iter().map(|property| &property.shape);
    let settings = shapes.filter(|shape| {
        matches!(shape.edit, Edit::Settable | Edit::Inheritable)
            && !matches!(shape.form, Form::Text)
    });
    settings.map(|shape| (shape.name, shape)).collect()
});

/// The effective value of a property according to one table, and whether it was received.
fn in_force(
    name: &str,
    mut lookup: impl FnMut(&str) -> Result<Option<ZapValue>, PoolError>,
) -> Result<Option<(PropertyValue, bool)>, PoolError> {
    let with = |suffix: &str| format!("{name}{suffix}");
    if let Some(value) = lookup(&with(PROPERTY_UNKNOWN_VALUE_SUFFIX))? {
        return Ok(Some((PropertyValue::from(&value), false)));
    }
    if let Some(value) = lookup(name)? {
        return Ok(Some((PropertyValue::from(&value), false)));
    }
    if lookup(&with(PROPERTY_INHERIT_SUFFIX))?.is_some() {
        return Ok(None);
    }
    let received = lookup(&with(PROPERTY_RECEIVED_SUFFIX))?;
    Ok(received.map(|value| (PropertyValue::from(&value), true)))
}

/// The checksum function of a property value: `on` is fletcher4.
fn checksum_of(number: u64) -> ChecksumKind {
    match u8::try_from(number)
        .ok()
        .and_then(ChecksumKind::from_number)
    {
        None | Some(ChecksumKind::Inherit | ChecksumKind::On) => ChecksumKind::Fletcher4,
        Some(kind) => kind,
    }
}

/// How data is deduplicated: `on` is sha256, 256 more means that blocks are compared.
fn dedup_of(number: u64) -> Option<DedupPolicy> {
    const VERIFY: u64 = 0x100;
    const OFF: u64 = 2;
    let checksum = match number & !VERIFY {
        0 | OFF => return None,
        1 => ChecksumKind::Sha256,
        other => ChecksumKind::from_number(u8::try_from(other).ok()?)?,
    };
    let is_strong = checksum.is_dedup_strong();
    (is_strong || checksum == ChecksumKind::Edonr).then_some(DedupPolicy {
        checksum,
        is_verified: number & VERIFY != 0 || !is_strong,
    })
}

/// The function and level of a compression property value: `on` is lz4 if the pool has it.
fn compression_of(number: u64, has_lz4: bool) -> (CompressionKind, ZstdLevel) {
    let on = if has_lz4 {
        CompressionKind::Lz4
    } else {
        CompressionKind::Lzjb
    };
    let function = u8::try_from(number & 0x7f).ok();
    let function = match function.and_then(CompressionKind::from_number) {
        None | Some(CompressionKind::Inherit | CompressionKind::On) => on,
        Some(function) => function,
    };
    let level = ZstdLevel::from_property(number).unwrap_or(ZstdLevel::DEFAULT);
    (function, level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_that_are_on_mean_the_pool_s_best_function() {
        assert_eq!(checksum_of(1), ChecksumKind::Fletcher4);
        assert_eq!(checksum_of(8), ChecksumKind::Sha256);
        assert_eq!(compression_of(1, true).0, CompressionKind::Lz4);
        assert_eq!(compression_of(1, false).0, CompressionKind::Lzjb);
        assert_eq!(compression_of(2, true).0, CompressionKind::Off);
        let (function, level) = compression_of(16 + 128 * 9, true);
        assert_eq!((function, level.number()), (CompressionKind::Zstd, 9));
        assert_eq!((dedup_of(0), dedup_of(2), dedup_of(7)), (None, None, None));
        let dedup = |number| dedup_of(number).map(|dedup| (dedup.checksum, dedup.is_verified));
        assert_eq!(dedup(1), Some((ChecksumKind::Sha256, false)));
        assert_eq!(dedup(257), Some((ChecksumKind::Sha256, true)));
        assert_eq!(dedup(269), Some((ChecksumKind::Edonr, true)));
        assert_eq!(dedup(13), Some((ChecksumKind::Edonr, true)));
        assert_eq!(dedup(14), Some((ChecksumKind::Blake3, false)));
    }
}
