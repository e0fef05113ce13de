//! The datasets' skeleton of a new pool.
//!
//! Page `docs/format/dsl-directory.md`, "What a new pool holds".

use super::contents::NewContents;
use super::syncing::Syncing;
use millpond_object::ObjectSetKind;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{DslDatasetFlags, ObjectId};
use millpond_pool::PoolError;
use millpond_pool::live::BpObject;
use std::collections::BTreeMap;

impl Syncing<'_> {
    /// Makes root directory, `$MOS`, `$FREE` and its list, `$ORIGIN` with its snapshot. Returns the
    /// root directory.
    pub(crate) fn create_skeleton(&self) -> Result<ObjectId, PoolError> {
        let root = self.create_directory(None, "")?;
        self.ctx.set_directory_number("root_dataset", root.0)?;
        self.create_directory(Some(root), keys::MOS_DIRECTORY)?;
        self.create_directory(Some(root), keys::FREE_DIRECTORY)?;
        let free = BpObject::create(self.ctx)?;
        self.ctx.set_directory_number("free_bpobj", free.id().0)?;
        let origin = self.create_directory(Some(root), keys::ORIGIN_DIRECTORY)?;
        let head = self.create_head(origin, None, DslDatasetFlags::default())?;
        self.take_snapshot(head, keys::ORIGIN_DIRECTORY)?;
        Ok(root)
    }

    /// The empty snapshot that every dataset descends from.
    pub(crate) fn empty_origin(&self) -> Result<ObjectId, PoolError> {
        let directory = self.special_directory(keys::ORIGIN_DIRECTORY)?;
        let head = self.directory(directory)?.head_dataset;
        let head = self.dataset(Self::required(head, "$ORIGIN has no head")?)?;
        Self::required(head.previous_snapshot, "$ORIGIN has no snapshot")
    }

    pub(crate) fn create_root_dataset(
        &self,
        root_properties: &BTreeMap<String, String>,
    ) -> Result<(), PoolError> {
        let root = self.create_skeleton()?;
        let new = NewContents::of_root(root_properties);
        let head = self.create_head(root, Some(self.empty_origin()?), new.flags())?;
        self.create_contents(head, ObjectSetKind::FileSystem, &new)?;
        self.store_properties(root, root_properties)
    }
}
