//! The properties of an open pool.
//!
//! Page `docs/format/properties.md`, "Pools".

use crate::error::Reading;
use crate::import::VdevState;
use crate::properties::shape::{Edit, Preset, Shape};
use crate::properties::table::POOL_PROPERTIES;
use crate::properties::value::{Property, PropertySource, PropertyValue};
use crate::{PoolError, PoolSpace, PoolView};
use millpond_env::sync::Arc;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{FeatureState, PoolVersion};
use millpond_vdev::NodeId;
use millpond_zap::Zap;

/// Block and dnode sizes in bytes, without and with the features that raise them.
const BLOCK_BYTES: (u64, u64) = (128 << 10, 16 << 20);
const DNODE_BYTES: (u64, u64) = (512, 16 << 10);

impl PoolView {
    /// Every native property that `zpool get all` lists, in its order, then the user properties.
    ///
    /// Features are not included; see [`PoolView::feature_properties`]. If `bootfs` is set, its value is the
    /// dataset's object number, because this layer does not know dataset names. Space statistics have no
    /// value if space maps or tables are damaged; [`PoolView::space`] returns the error.
    ///
    /// # Errors
    /// If another source of the values cannot be read.
    pub fn properties(&self) -> Result<Vec<Property>, PoolError> {
        let stored = self.stored_properties()?;
        let listed = POOL_PROPERTIES.iter().filter(|shape| shape.is_listed);
        let mut properties = listed
            .map(|shape| self.native(shape, &stored))
            .collect::<Result<Vec<_>, _>>()?;
        for (name, value) in stored {
            if name.contains(':') {
                properties.push(Property::new(&name, Some(value), PropertySource::Local));
            }
        }
        Ok(properties)
    }

    /// Looks up one property by its full name: a native one (hidden ones too) or a user property.
    ///
    /// Returns `None` if there is no such property.
    ///
    /// # Errors
    /// If a source of the value cannot be read.
    pub fn property(&self, name: &str) -> Result<Option<Property>, PoolError> {
        let stored = self.stored_properties()?;
        if let Some(shape) = POOL_PROPERTIES.iter().find(|shape| shape.name == name) {
            return self.native(shape, &stored).map(Some);
        }
        let user = stored.into_iter().find(|(stored, _)| stored == name);
        Ok(user
            .filter(|_| name.contains(':'))
            .map(|(name, value)| Property::new(&name, Some(value), PropertySource::Local)))
    }

    /// `feature@NAME` for every known feature in order, then `unsupported@GUID` for unknown features of the
    /// pool.
    ///
    /// Below version 5000 all known features are disabled.
    #[must_use]
    pub fn feature_properties(&self) -> Vec<Property> {
        let text = |name: String, word: &str| {
            let value = PropertyValue::Text(word.to_owned());
            Property::new(&name, Some(value), PropertySource::Local)
        };
        let known = self.features().known().map(|(feature, state)| {
            let word = match state {
                FeatureState::Disabled => "disabled",
                FeatureState::Enabled => "enabled",
                FeatureState::Active(_) => "active",
            };
            text(format!("feature@{}", feature.name()), word)
        });
        let unknown = self.features().unknown().into_iter().map(|feature| {
            let word = match feature.count {
                0 => "inactive",
                _ => "readonly",
            };
            text(format!("unsupported@{}", feature.guid), word)
        });
        known.chain(unknown).collect()
    }

    /// The entries of `pool_props`, in hash order.
    fn stored_properties(&self) -> Result<Vec<(String, PropertyValue)>, PoolError> {
        let what = "pool properties";
        let Some(id) = self.find_directory_object(key::POOL_PROPERTIES)? else {
            return Ok(vec![]);
        };
        let zap = Zap::open(self.mos().object(id).reading(what)?).reading(what)?;
        let mut stored = vec![];
        for entry in zap.iter() {
            let entry = entry.reading(what)?;
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            stored.push((name, PropertyValue::from(&entry.value)));
        }
        Ok(stored)
    }

    fn native(
        &self,
        shape: &'static Shape,
        stored: &[(String, PropertyValue)],
    ) -> Result<Property, PoolError> {
        let number = |number| Ok(Property::numeric(shape.name, number));
        // Damaged space maps hide only the space statistics; the rest of the pool stays readable.
        let of_space = |of: fn(&PoolSpace) -> u64| match self.space() {
            Ok(space) => Ok(Property::numeric(shape.name, of(&space))),
            Err(_) => Ok(Property::new(shape.name, None, PropertySource::None)),
        };
        match shape.name {
            "name" => Ok(Property::new(
                shape.name,
                Some(PropertyValue::Text(self.name().to_owned())),
                PropertySource::None,
            )),
            "size" => of_space(|space| space.pool().space_bytes),
            "capacity" => of_space(|space| space.pool().capacity_percent()),
            "free" => of_space(|space| space.pool().free_bytes()),
            "allocated" => of_space(|space| space.pool().allocated_bytes),
            "fragmentation" => {
                of_space(|space| space.fragmentation_percent().map_or(u64::MAX, u64::from))
            }
            "freeing" => of_space(|space| space.freeing_bytes),
            "leaked" => of_space(|space| space.leaked_bytes),
            "checkpoint" => of_space(|space| space.usage.checkpoint_bytes),
            "dedupratio" => of_space(|space| space.dedup.ratio_percent()),
            "dedup_table_size" => of_space(|space| space.dedup.disk_bytes),
            "bcloneused" => of_space(|space| space.clones.used_bytes),
            "bclonesaved" => of_space(|space| space.clones.saved_bytes),
            "bcloneratio" => of_space(|space| space.clones.ratio_percent()),
            "dedupcached" => number(0),
            "health" => number(self.health() as u64),
            "guid" => number(self.guid().0),
            "load_guid" => number(self.load_guid),
            "expandsize" => number(self.expandable_bytes()),
            "maxblocksize" => number(self.pick("org.open-zfs:large_blocks", BLOCK_BYTES)),
            "maxdnodesize" => number(self.pick("org.zfsonlinux:large_dnode", DNODE_BYTES)),
            "last_scrubbed_txg" => {
                number(self.directory_number(key::LAST_SCRUBBED_TXG)?.unwrap_or(0))
            }
            // Constant, because a `PoolView` is open for reading only.
            "readonly" => number(1),
            "version" => {
                let source = if PoolVersion(self.version()).has_features() {
                    PropertySource::Default
                } else {
                    PropertySource::Local
                };
                let value = PropertyValue::Number(self.version());
                Ok(Property::new(shape.name, Some(value), source))
            }
            "comment" | "compatibility" => Ok(or_preset(shape, self.config_text(shape.name))),
            _ => {
                let value = stored.iter().find(|(name, _)| name == shape.name);
                Ok(or_preset(shape, value.map(|(_, value)| value.clone())))
            }
        }
    }

    /// The state of the pool, derived from its vdevs.
    #[must_use]
    pub fn health(&self) -> VdevState {
        self.assembly().state()
    }

    fn pick(&self, feature: &str, (without, with): (u64, u64)) -> u64 {
        match self.features().count(feature) {
            Some(_) => with,
            None => without,
        }
    }

    fn config_text(&self, name: &str) -> Option<PropertyValue> {
        let text = self.config().raw_string(name).ok()?;
        Some(PropertyValue::Text(text.to_string_lossy().into_owned()))
    }

    /// The number of bytes by which the pool could grow on its devices.
    #[must_use]
    pub fn expandable_bytes(&self) -> u64 {
        let topology = self.store().topology();
        let tops = topology.tree.tops();
        tops.map(|(id, _)| self.vdev_expandable_bytes(id))
            .fold(0, u64::saturating_add)
    }

    /// The number of bytes by which a top-level vdev could grow on its devices, in whole metaslabs.
    #[must_use]
    pub fn vdev_expandable_bytes(&self, id: millpond_ondisk::VdevId) -> u64 {
        let topology = self.store().topology();
        let tree = &topology.tree;
        let Some(node) = tree.top(id).filter(|node| !node.config.is_log) else {
            return 0;
        };
        let place = tree
            .nodes()
            .iter()
            .position(|other| std::ptr::eq(other, node));
        let Some(place) = place.and_then(|place| u32::try_from(place).ok()) else {
            return 0;
        };
        let device_bytes = |leaf: &millpond_vdev::VdevNode| {
            let device = topology.devices.get(leaf.leaf?.0 as usize)?;
            device.as_ref().map(|device| device.size_bytes())
        };
        let possible = tree.asize_from_devices(NodeId(place), &device_bytes);
        let more = possible
            .unwrap_or(0)
            .saturating_sub(node.config.asize_bytes);
        let metaslab = u32::try_from(node.config.metaslab_shift)
            .ok()
            .and_then(|shift| 1u64.checked_shl(shift));
        metaslab.map_or(0, |size| more - more % size)
    }
}

/// A setting's stored value, or its default.
fn or_preset(shape: &Shape, stored: Option<PropertyValue>) -> Property {
    let value = preset_value(shape);
    // A stored number equal to the default counts as the default.
    let is_preset = matches!(stored, Some(PropertyValue::Number(_))) && stored == value;
    if let (Some(value), false) = (stored, is_preset) {
        return Property::new(shape.name, Some(value), PropertySource::Local);
    }
    let source = if shape.edit == Edit::ReadOnly {
        PropertySource::None
    } else {
        PropertySource::Default
    };
    Property::new(shape.name, value, source)
}

/// The default value. For an indexed property this is the number of its word.
#[must_use]
pub fn preset_value(shape: &Shape) -> Option<PropertyValue> {
    match shape.preset {
        Preset::Unset => None,
        Preset::Number(number) => Some(PropertyValue::Number(number)),
        Preset::Text(text) => Some(match shape.number_of(text) {
            Some(number) => PropertyValue::Number(number),
            None => PropertyValue::Text(text.to_owned()),
        }),
    }
}

/// The properties of a pool as `zpool get -Hp all` prints them: name, value, source.
///
/// # Errors
/// As [`PoolView::properties`].
pub fn literal_pool_properties(
    pool: &Arc<PoolView>,
) -> Result<Vec<(String, String, String)>, PoolError> {
    let row = |property: Property| {
        let shape = POOL_PROPERTIES
            .iter()
            .find(|shape| shape.name == property.name);
        let text = property.literal(shape);
        (property.name, text, property.source.word())
    };
    let all = pool.properties()?.into_iter();
    Ok(all.chain(pool.feature_properties()).map(row).collect())
}
