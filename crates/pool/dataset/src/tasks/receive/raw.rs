//! Raw streams: encrypted datasets are received without their key.
//!
//! The dataset gets the sender's wrapped keys, so that the user's key unlocks it here too. Page
//! `docs/format/send-stream.md`, "Raw streams".

use super::{IncomingSnapshot, ReceiveTarget};
use crate::datasets::Datasets;
use crate::heads::features;
use crate::heads::head::HeadDataset;
use crate::keys::FoundKey;
use crate::mos::{During, contradiction};
use crate::properties::PropertyValue;
use crate::tasks::change_property::Setting;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Head;
use crate::{DatasetError, Refusal};
use millpond_crypt::CryptKey;
use millpond_env::Tunable;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_object::{ObjectSet, ObjectSetView, RawHead};
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{ObjectId, ObjectType};
use millpond_pool::PoolError;
use millpond_stream::RawKeys;
use millpond_txg::Estimate;

const WHAT: &str = "receiving a raw stream";
/// What the object set block dirties, in bytes.
const HEAD_BYTES: u64 = 64 << 10;

/// The shape of the dnode array that a stream says.
pub(crate) fn raw_head(raw: &RawKeys) -> RawHead {
    RawHead {
        portable_mac: raw.portable_mac,
        array: raw.array,
    }
}

impl Datasets {
    /// Opens the dataset that takes a stream's objects.
    pub(super) fn open_receiving(
        &self,
        incoming: &IncomingSnapshot,
        id: ObjectId,
        name: &str,
    ) -> Result<Arc<HeadDataset>, DatasetError> {
        let Some(raw) = &incoming.raw else {
            return self.open_incomplete(id, name, false);
        };
        let head = self.open_incomplete(id, name, true)?;
        let tx = head.begin(Estimate {
            bytes: HEAD_BYTES,
            ..Estimate::default()
        })?;
        let set: Arc<ObjectSet> = head.set();
        let taken = set.set_raw_head(&tx, raw_head(raw));
        taken.during(WHAT)?;
        drop(tx);
        Ok(head)
    }
}

impl SyncTaskContext<'_> {
    /// Checks whether a raw stream can be a change of a snapshot.
    pub(super) fn check_raw(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
        directory: ObjectId,
        source: ObjectId,
    ) -> Result<(), DatasetError> {
        let Some(raw) = &incoming.raw else {
            return Ok(());
        };
        let refused = |why| Err(Refusal::error(&target.name, why));
        if incoming.from.is_none() {
            return refused(Refusal::Invalid(
                "a full raw stream cannot be received as a clone",
            ));
        }
        let Some(FoundKey { key, .. }) = self.found_key(directory)? else {
            return refused(Refusal::RawOntoPlain);
        };
        if key.guid != raw.key.guid {
            return refused(Refusal::OtherKey);
        }
        match self
            .extension_number(source, keys::IVSET_GUID)?
            .unwrap_or(0)
        {
            _ if self.skips_iv_sets() => {}
            here if here == 0 || raw.from_iv_set == 0 => return refused(Refusal::IvSetMissing),
            here if here != raw.from_iv_set => return refused(Refusal::IvSetMismatch),
            _ => {}
        }
        let store = Arc::clone(self.pool.store());
        let root = self.dataset(source)?.block_pointer;
        let set = ObjectSetView::open(store, source.0, root, None).during(WHAT)?;
        let (array, sent) = (&set.phys().meta_dnode, &raw.array);
        let shape = (array.levels, array.indirect_block_shift);
        if shape != (sent.levels, sent.indirect_shift) || array.block_id_max.0 > sent.last_block {
            return refused(Refusal::Invalid(
                "the array of dnodes has another shape than the stream says",
            ));
        }
        // Its sums would no longer be right, and without the key nothing can change them.
        match set.phys().user_used.is_some() {
            true => refused(Refusal::Unsupported(
                "a raw stream as a change of a snapshot whose space is counted by owner",
            )),
            false => Ok(()),
        }
    }

    fn skips_iv_sets(&self) -> bool {
        let tunables = &self.pool.env().tunables;
        tunables.is_on(Tunable::DisableIvSetGuidCheck)
    }

    /// Notes which set of initialization vectors a received snapshot has. Senders from before there were such guids send
    /// none: it gets one of its own then, if that is not to matter.
    pub(super) fn put_iv_set(&self, snapshot: ObjectId, raw: &RawKeys) -> Result<(), PoolError> {
        let iv_set = match raw.to_iv_set {
            0 if self.skips_iv_sets() => self.random().max(1),
            sent => sent,
        };
        self.update(snapshot, keys::IVSET_GUID, iv_set)
    }

    /// Stores the wrapped keys of a raw stream for a new dataset, which becomes its own encryption root.
    pub(super) fn put_sent_key(&self, head: &Head, raw: &RawKeys) -> Result<(), PoolError> {
        let object = CryptKey {
            root_directory: head.directory,
            reference_count: 1,
            ..raw.key.clone()
        };
        let id = self.create_zap(ObjectType::METADATA_ZAP)?;
        self.put_key_object(id, &object)?;
        self.zapify(head.directory)?;
        self.update(head.directory, keys::CRYPTO_KEY_OBJECT, id.0)?;
        self.activate_feature(head.dataset, features::ENCRYPTION, &[0])?;
        // Keys of an earlier directory with this id.
        self.datasets.keys.forget(head.directory);
        let setting = Setting {
            name: "keylocation".to_owned(),
            value: PropertyValue::Text("prompt".to_owned()),
        };
        self.apply_setting(head, &setting)
    }

    /// Takes over the wrapped keys of an incremental raw stream: the sender may have changed the user's key. Not if the
    /// dataset inherits its key here, or others inherit from it: the user's key that opens those would no longer open it.
    /// The master key is the same, so the wrapped keys that are here stay right.
    pub(super) fn update_sent_key(
        &self,
        directory: ObjectId,
        raw: &RawKeys,
    ) -> Result<(), PoolError> {
        let found = self.found_key(directory)?;
        let Some(FoundKey { object, key }) = found else {
            return Err(contradiction(WHAT, "an encrypted dataset without keys"));
        };
        let new = CryptKey {
            root_directory: key.root_directory,
            reference_count: key.reference_count,
            ..raw.key.clone()
        };
        if new == key {
            return Ok(());
        }
        let is_alone = key.root_directory == directory && self.keys_of_root(directory)?.len() == 1;
        if !is_alone {
            mark::hit("sent-key-left");
            return Ok(());
        }
        self.put_key_object(object, &new)?;
        self.forget_other_wrapping(directory, &new);
        Ok(())
    }
}
