//! The ZAPs of vdevs, all of which one table of the MOS lists.

use super::new_vdev::DRAID;
use crate::PoolError;
use crate::error::Reading;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::zap::ZapValue;
use millpond_ondisk::{Guid, ObjectId, ObjectType, VdevId};
use millpond_vdev::{AllocationClass, VdevConfig, VdevType};
use std::collections::BTreeMap;

const VDEV_ZAPS_V2: &str = "com.klarasystems:vdev_zaps_v2";
const ALLOCATION_CLASSES: &str = "org.zfsonlinux:allocation_classes";

impl Pool {
    /// Gives ZAPs to the vdevs of a pool from before there were any: software since then expects them.
    pub(crate) fn complete_vdev_zaps(&self) -> Result<(), PoolError> {
        if self.state.read().config.has_vdev_zaps {
            return Ok(());
        }
        self.sync_task(|ctx| ctx.make_missing_vdev_zaps())
    }
}

impl SyncContext<'_> {
    /// Creates a ZAP of a vdev.
    pub(crate) fn new_vdev_zap(&self) -> Result<ObjectId, PoolError> {
        let map = match self.directory_object(key::VDEV_ZAP_MAP)? {
            Some(id) => id,
            None => {
                let id = self.create_table(ObjectType::METADATA_ZAP)?;
                self.set_directory_number(key::VDEV_ZAP_MAP, id.0)?;
                id
            }
        };
        let id = self.create_table(ObjectType::METADATA_ZAP)?;
        self.table(map)?
            .insert_number(id.0, id.0)
            .reading("vdev ZAPs")?;
        Ok(id)
    }

    /// Destroys the ZAP of a vdev.
    pub(crate) fn free_vdev_zap(&self, id: ObjectId) -> Result<(), PoolError> {
        if let Some(map) = self.directory_object(key::VDEV_ZAP_MAP)? {
            self.table(map)?.remove_number(id.0).reading("vdev ZAPs")?;
        }
        self.mos().free(self.tx(), id).reading("vdev ZAPs")
    }

    /// Creates the ZAPs and metaslab arrays of new top-level vdevs; `first` is the id of the first one. The
    /// configuration and labels are written later.
    pub(crate) fn make_vdev_objects(
        &self,
        tops: &[(VdevConfig, AllocationClass)],
        first: VdevId,
    ) -> Result<(), PoolError> {
        let new_zap = || self.new_vdev_zap();
        let has_root_zap = self.pool.state.read().config.root.zap_root.is_some();
        if !has_root_zap && self.feature_is_enabled(VDEV_ZAPS_V2) {
            let root = new_zap()?;
            self.pool.state.write().config.root.zap_root = Some(root);
            self.feature_increment(VDEV_ZAPS_V2)?;
        }
        for (id, (top, class)) in (first.0..).map(VdevId).zip(tops) {
            let mut leaves = BTreeMap::new();
            self.new_leaf_zaps(top, &mut leaves)?;
            let zap = new_zap()?;
            self.pool.change_top(id, |top| {
                top.zap_top = Some(zap);
                put_leaf_zaps(top, &leaves);
            });
            if let Some(bias) = bias_of(*class) {
                let mut bytes = bias.as_bytes().to_vec();
                bytes.push(0);
                self.table(zap)?
                    .update(
                        vdev_key::ALLOCATION_BIAS.as_bytes(),
                        &ZapValue::from_bytes(&bytes),
                    )
                    .reading("vdev ZAP")?;
            }
            if matches!(class, AllocationClass::Special | AllocationClass::Dedup)
                && self.feature_is_enabled(ALLOCATION_CLASSES)
            {
                self.feature_increment(ALLOCATION_CLASSES)?;
            }
            if top.kind == VdevType::Draid {
                self.feature_increment(DRAID)?;
            }
            self.pool.maps.ensure_array(self, id)?;
        }
        Ok(())
    }

    fn make_missing_vdev_zaps(&self) -> Result<(), PoolError> {
        let tops = self.pool.state.read().config.root.children.clone();
        for (id, top) in (0u32..).map(VdevId).zip(&tops) {
            if matches!(top.kind, VdevType::Hole | VdevType::Missing) {
                continue;
            }
            let zap = match top.zap_top.and_then(ObjectId::some) {
                Some(zap) => zap,
                None => self.new_vdev_zap()?,
            };
            let mut leaves = BTreeMap::new();
            self.new_leaf_zaps(top, &mut leaves)?;
            self.pool.change_top(id, |top| {
                top.zap_top = Some(zap);
                put_leaf_zaps(top, &leaves);
            });
        }
        self.pool.state.write().config.has_vdev_zaps = true;
        self.mark_config_dirty();
        Ok(())
    }

    /// Recursion is bounded by the depth limit of the decoder.
    fn new_leaf_zaps(
        &self,
        vdev: &VdevConfig,
        zaps: &mut BTreeMap<Guid, ObjectId>,
    ) -> Result<(), PoolError> {
        if vdev.kind.is_leaf() && vdev.zap_leaf.and_then(ObjectId::some).is_none() {
            zaps.insert(vdev.guid, self.new_vdev_zap()?);
        }
        for child in &vdev.children {
            self.new_leaf_zaps(child, zaps)?;
        }
        Ok(())
    }
}

fn bias_of(class: AllocationClass) -> Option<&'static str> {
    match class {
        AllocationClass::Normal => None,
        AllocationClass::Log => Some("log"),
        AllocationClass::Special => Some("special"),
        AllocationClass::Dedup => Some("dedup"),
    }
}

fn put_leaf_zaps(vdev: &mut VdevConfig, zaps: &BTreeMap<Guid, ObjectId>) {
    if let Some(zap) = zaps.get(&vdev.guid) {
        vdev.zap_leaf = Some(*zap);
    }
    for child in &mut vdev.children {
        put_leaf_zaps(child, zaps);
    }
}
