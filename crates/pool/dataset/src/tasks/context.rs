//! Access of the dataset layer to the MOS while a txg syncs: bonuses, tables, sets of numbers.

use crate::Datasets;
use crate::heads::space::{self, Use};
use crate::mos::{DATASET, DIRECTORY, During, MosView, contradiction};
use crate::tasks::key_uses::KeyUses;
use millpond_object::NewObject;
use millpond_ondisk::dsl::hex_key;
use millpond_ondisk::{DslDatasetPhys, DslDirectoryPhys, ObjectId, ObjectType, Txg};
use millpond_pool::PoolError;
use millpond_pool::{SpaceChange, SyncContext};
use millpond_zap::{NewZap, Normalisation, ObjectBlocks, ZapMut, ZapValue, new_salt};
use std::cell::RefCell;

/// Case folding of name tables: to upper case only.
const FOLD_TO_UPPER: u64 = 2;

/// The context for operations of this layer. It exists only on the thread that runs a sync task or the sync
/// itself, so reads and changes see the same state.
pub(crate) struct SyncTaskContext<'c> {
    pub(crate) datasets: &'c Datasets,
    pub(crate) ctx: &'c SyncContext<'c>,
    view: MosView<'c>,
    /// Which directories use which keys, if that was asked for.
    pub(crate) key_uses: RefCell<Option<KeyUses>>,
}

/// A ZAP open for changes.
type Table<'c> = ZapMut<ObjectBlocks<'c>>;

impl<'c> std::ops::Deref for SyncTaskContext<'c> {
    type Target = MosView<'c>;
    fn deref(&self) -> &MosView<'c> {
        &self.view
    }
}

impl<'c> SyncTaskContext<'c> {
    pub(crate) fn new(datasets: &'c Datasets, ctx: &'c SyncContext<'c>) -> Self {
        let view = MosView { pool: ctx.pool() };
        Self {
            datasets,
            ctx,
            view,
            key_uses: RefCell::default(),
        }
    }
    pub(crate) fn txg(&self) -> Txg {
        self.ctx.txg()
    }
    /// The current time in seconds since 1970.
    pub(crate) fn now_s(&self) -> u64 {
        self.ctx.pool().env().clock.wall_ns() / 1_000_000_000
    }
    pub(crate) fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.ctx.pool().env().entropy.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    // ---- features -------------------------------------------------------------------------------

    pub(crate) fn is_enabled(&self, feature: &str) -> bool {
        self.ctx.feature_is_enabled(feature)
    }
    pub(crate) fn feature_count(&self, feature: &str) -> u64 {
        self.ctx.feature_count(feature)
    }

    // ---- objects --------------------------------------------------------------------------------

    /// Allocates an object with a bonus.
    pub(crate) fn allocate(
        &self,
        object_type: ObjectType,
        bonus_type: ObjectType,
        bonus: Vec<u8>,
    ) -> Result<ObjectId, PoolError> {
        let new = NewObject::new(object_type).with_bonus(bonus_type, bonus);
        let object = self
            .ctx
            .mos()
            .allocate(self.ctx.tx(), new)
            .during(DATASET)?;
        Ok(object.id())
    }

    pub(crate) fn free_object(&self, id: ObjectId) -> Result<(), PoolError> {
        self.ctx.mos().free(self.ctx.tx(), id).during(DATASET)
    }

    pub(crate) fn free_if_any(&self, id: Option<ObjectId>) -> Result<(), PoolError> {
        id.map_or(Ok(()), |id| self.free_object(id))
    }

    pub(crate) fn put_bonus(
        &self,
        id: ObjectId,
        bonus: Vec<u8>,
        what: &'static str,
    ) -> Result<(), PoolError> {
        let object = self.object(id, what)?;
        object.set_bonus(self.ctx.tx(), bonus).during(what)
    }

    // ---- directories and datasets ---------------------------------------------------------------

    pub(crate) fn put_directory(
        &self,
        id: ObjectId,
        phys: &DslDirectoryPhys,
    ) -> Result<(), PoolError> {
        self.put_bonus(id, phys.encode(), DIRECTORY)?;
        self.datasets.admission.directory_changed(id, phys);
        Ok(())
    }

    pub(crate) fn edit_directory(
        &self,
        id: ObjectId,
        edit: impl FnOnce(&mut DslDirectoryPhys),
    ) -> Result<(), PoolError> {
        let mut phys = self.directory(id)?;
        edit(&mut phys);
        self.put_directory(id, &phys)
    }

    pub(crate) fn put_dataset(&self, id: ObjectId, phys: &DslDatasetPhys) -> Result<(), PoolError> {
        self.put_bonus(id, phys.encode(), DATASET)?;
        self.datasets.admission.dataset_changed(id, phys);
        Ok(())
    }

    pub(crate) fn edit_dataset(
        &self,
        id: ObjectId,
        edit: impl FnOnce(&mut DslDatasetPhys),
    ) -> Result<(), PoolError> {
        let mut phys = self.dataset(id)?;
        edit(&mut phys);
        self.put_dataset(id, &phys)
    }

    /// Charges a change of use to a directory and, as far as it affects them, to its ancestors.
    pub(crate) fn charge(
        &self,
        directory: ObjectId,
        uses: &[(Use, i64)],
        compressed: i64,
        uncompressed: i64,
    ) -> Result<(), PoolError> {
        let mut at = Some(directory);
        let mut uses = uses.to_vec();
        // Names nest less than 50 levels deep; a longer chain is a cycle.
        for _ in 0..crate::directory::DEPTH_MAX {
            let Some(id) = at else { return Ok(()) };
            if compressed == 0 && uncompressed == 0 && uses.iter().all(|(_, bytes)| *bytes == 0) {
                return Ok(());
            }
            let mut phys = self.directory(id)?;
            let rise = space::charge_directory(&mut phys, &uses, compressed, uncompressed)
                .during("space of a directory")?;
            self.put_directory(id, &phys)?;
            at = phys.parent;
            uses = rise.to_vec();
        }
        Err(contradiction(DIRECTORY, "its parents form a circle"))
    }

    /// Like [`SyncTaskContext::charge`], for one use with its three sizes.
    pub(crate) fn charge_space(
        &self,
        directory: ObjectId,
        used_for: Use,
        space: SpaceChange,
    ) -> Result<(), PoolError> {
        self.charge(
            directory,
            &[(used_for, space.used)],
            space.compressed,
            space.uncompressed,
        )
    }

    // ---- tables ---------------------------------------------------------------------------------

    pub(crate) fn zap(&self, id: ObjectId) -> Result<Table<'_>, PoolError> {
        Ok(ZapMut::of(&self.object(id, DATASET)?, self.ctx.tx()))
    }

    /// The initial form of a ZAP with this kind of name folding.
    pub(crate) fn new_zap(&self, folding: u64) -> NewZap {
        let mut new = NewZap::plain(new_salt(self.ctx.pool().env()));
        if let Some(normalisation) = Normalisation::from_normflags(folding) {
            new.normalisation = normalisation;
        }
        new
    }

    /// Turns an object without content into an empty ZAP.
    pub(crate) fn make_zap(&self, id: ObjectId, folding: u64) -> Result<(), PoolError> {
        self.zap(id)?.create(&self.new_zap(folding)).during(DATASET)
    }

    /// Creates an empty ZAP.
    pub(crate) fn create_zap(&self, object_type: ObjectType) -> Result<ObjectId, PoolError> {
        self.create_zap_with_bonus(object_type, ObjectType::NONE, vec![])
    }

    /// Creates an empty ZAP of names that can be looked up case-insensitively.
    pub(crate) fn create_folded_zap(&self, object_type: ObjectType) -> Result<ObjectId, PoolError> {
        let id = self.allocate(object_type, ObjectType::NONE, vec![])?;
        self.make_zap(id, FOLD_TO_UPPER)?;
        Ok(id)
    }

    /// Creates an empty ZAP with a bonus.
    pub(crate) fn create_zap_with_bonus(
        &self,
        object_type: ObjectType,
        bonus_type: ObjectType,
        bonus: Vec<u8>,
    ) -> Result<ObjectId, PoolError> {
        let id = self.allocate(object_type, bonus_type, bonus)?;
        self.make_zap(id, 0)?;
        Ok(id)
    }

    /// Sets an existing or new entry to a single number.
    pub(crate) fn update(&self, zap: ObjectId, key: &str, number: u64) -> Result<(), PoolError> {
        self.zap(zap)?
            .update_u64(key.as_bytes(), number)
            .during(DATASET)
    }
    pub(crate) fn update_words(
        &self,
        zap: ObjectId,
        key: &str,
        words: &[u64],
    ) -> Result<(), PoolError> {
        self.zap(zap)?
            .update(key.as_bytes(), &ZapValue::from_u64s(words))
            .during(DATASET)
    }
    /// Sets an entry to a text with a terminating NUL.
    pub(crate) fn update_text(
        &self,
        zap: ObjectId,
        key: &str,
        text: &str,
    ) -> Result<(), PoolError> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.zap(zap)?
            .update(key.as_bytes(), &ZapValue::from_bytes(&bytes))
            .during(DATASET)
    }
    /// Removes an entry; returns whether it existed.
    pub(crate) fn remove(&self, zap: ObjectId, key: &str) -> Result<bool, PoolError> {
        self.zap(zap)?.remove(key.as_bytes()).during(DATASET)
    }

    // ---- sets of numbers ------------------------------------------------------------------------

    /// Adds a number to a set: the key is the number in hexadecimal, the value the number.
    pub(crate) fn set_insert(&self, set: ObjectId, number: u64) -> Result<(), PoolError> {
        self.update(set, &hex_key(number), number)
    }
    pub(crate) fn set_remove(&self, set: ObjectId, number: u64) -> Result<(), PoolError> {
        if !self.remove(set, &hex_key(number))? {
            return Err(contradiction(DATASET, "a set lacks what should be in it"));
        }
        Ok(())
    }
    /// Replaces a number in a set.
    pub(crate) fn set_replace(
        &self,
        set: ObjectId,
        old: ObjectId,
        new: ObjectId,
    ) -> Result<(), PoolError> {
        self.set_remove(set, old.0)?;
        self.set_insert(set, new.0)
    }
}
