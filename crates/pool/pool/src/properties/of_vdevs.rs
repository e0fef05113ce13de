//! Stored properties of vdevs.
//!
//! Page `docs/format/properties.md`, "Vdevs".

use crate::error::Reading;
use crate::properties::shape::Edit;
use crate::properties::value::PropertyValue;
use crate::properties::vdev_table;
use crate::{PoolError, PoolView};
use millpond_ondisk::{Guid, ObjectId};
use millpond_vdev::{VdevKind, VdevTree};
use millpond_zap::Zap;

/// The most properties of a vdev that are read. The ZAP also holds a few entries of other kinds.
const STORED_MAX: usize = 4096;
/// Name prefixes of entries in vdev ZAPs that are not properties.
const OTHERS: [&str; 3] = ["com.delphix:", "org.zfsonlinux:", "org.openzfs:"];

/// The ZAP that holds the properties of a vdev; `None` if it has none. For the root, `guid` is the pool's
/// guid.
#[must_use]
pub fn vdev_property_zap(tree: &VdevTree, guid: Guid) -> Option<ObjectId> {
    let node = tree.node(tree.find(guid)?)?;
    let config = &node.config;
    let zap = match node.kind {
        VdevKind::Root => config.zap_root,
        _ => config.zap_top.or(config.zap_leaf),
    };
    zap?.some()
}

impl PoolView {
    /// Reads the properties set on the vdev `guid`, by name: first those of the table, then user
    /// properties.
    ///
    /// Returns an empty list for a vdev without stored properties.
    ///
    /// # Errors
    /// If its ZAP cannot be read.
    pub fn stored_vdev_properties(
        &self,
        guid: Guid,
    ) -> Result<Vec<(String, PropertyValue)>, PoolError> {
        let what = "properties of a vdev";
        let Some(id) = vdev_property_zap(&self.store().topology().tree, guid) else {
            return Ok(vec![]);
        };
        let zap = Zap::open(self.mos().object(id).reading(what)?).reading(what)?;
        let (mut native, mut own) = (vec![], vec![]);
        for entry in zap.iter().take(STORED_MAX) {
            let entry = entry.reading(what)?;
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let shape = vdev_table::find(&name).filter(|shape| shape.name == name);
            let is_native = shape.is_some_and(|shape| shape.edit == Edit::Settable);
            let is_own = name.contains(':')
                && entry.value.integer_bytes == 1
                && OTHERS.iter().all(|start| !name.starts_with(start));
            let value = PropertyValue::from(&entry.value);
            match (is_native, is_own) {
                (true, _) => native.push((name, value)),
                (_, true) => own.push((name, value)),
                _ => {}
            }
        }
        own.sort_by(|one, other| one.0.cmp(&other.0));
        native.extend(own);
        Ok(native)
    }
}
