//! Begins and ends the receiving of a snapshot.
//!
//! What is received goes into a dataset that is marked as inconsistent: a new one, or the hidden child `%recv` of an
//! existing one. The end makes it complete in one txg. Until then nothing else changes.
//!
//! Page `docs/format/dsl-dataset.md`, "Half received".

mod begin;
mod end;
mod properties;
mod raw;
mod resume;
mod sent_roots;

pub use properties::RefusedProperty;
pub(crate) use raw::raw_head;
pub use resume::{ResumeAllowances, ResumePoint};
pub use sent_roots::SentKeys;

use crate::datasets::Datasets;
use crate::heads::head::HeadDataset;
use crate::tasks::directories::Head;
use crate::{Creator, DatasetError, PropertyValue, Refusal, RootKey};
use millpond_crypt::CryptKey;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{Guid, ObjectId, ObjectSetKind};
use millpond_stream::RawKeys;
use std::collections::BTreeSet;

/// What a stream says of the snapshot that it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncomingSnapshot {
    /// Its guid.
    pub guid: Guid,
    /// The guid of the snapshot that it is a change of; `None` for a full stream.
    pub from: Option<Guid>,
    /// When it was created, in seconds since 1970.
    pub creation_s: u64,
    /// Whether it is a file system or a volume.
    pub kind: ObjectSetKind,
    /// Whether names of the file system differ in more than case.
    pub is_case_insensitive: bool,
    /// Whether its file system is of version 5, which pools before version 24 cannot have.
    pub needs_system_attributes: bool,
    /// Whether blocks above 128 KiB are sent as such.
    pub has_large_blocks: bool,
    /// Guids of the features that the pool must have enabled.
    pub needs: Vec<&'static str>,
    /// Guids of the features that the dataset uses from the start.
    pub uses: Vec<&'static str>,
    /// Its full name at the sender.
    pub sent_name: String,
    /// The keys of a raw stream.
    pub raw: Option<RawKeys>,
    /// The guids of the snapshots that a redacted stream still has all blocks of; `None` if nothing was left out.
    pub redacted: Option<Vec<u64>>,
    /// The same of the older snapshot, if the sender says so.
    pub redacted_from: Option<Vec<u64>>,
}

/// Where a snapshot is received to, and how.
#[derive(Debug, Clone, Default)]
pub struct ReceiveTarget {
    /// The full name of the file system or volume.
    pub name: String,
    /// The name of the snapshot, after the `@`.
    pub snapshot: String,
    /// The full name of the snapshot that a new clone begins with.
    pub origin: Option<String>,
    /// Whether changes and snapshots after the older snapshot are given up, and whether a full stream replaces a file
    /// system or volume.
    pub is_forced: bool,
    /// Set if an interruption leaves a state that another stream can resume.
    pub resume: Option<ResumeAllowances>,
    /// Whether a new dataset is not encrypted although its parent is: the sender's is known not to be.
    pub is_plain: bool,
    /// The properties `encryption`, `keyformat`, `keylocation` and `pbkdf2iters` of a new dataset, if it is not encrypted as
    /// its parent is. A full stream that is not raw may have them.
    pub encryption: Vec<(String, PropertyValue)>,
    /// The user's key, if it becomes an encryption root.
    pub root_key: Option<RootKey>,
    /// The user who receives it, if not the superuser.
    pub creator: Option<Creator>,
}

/// A snapshot that is being received.
#[derive(Debug)]
pub struct Receiving {
    head: Arc<HeadDataset>,
    target: ReceiveTarget,
    guid: Guid,
    creation_s: u64,
    /// The existing dataset whose contents are replaced.
    replaced: Option<Replaced>,
    /// Whether the dataset began with the contents of a snapshot.
    has_origin: bool,
    /// The keys of a raw stream.
    raw: Option<RawKeys>,
    _under_way: UnderWay,
}

/// The datasets that are being received into.
pub(crate) type Receives = Mutex<BTreeSet<ObjectId>, rank::Leaf>;

/// Marks a dataset as one that is being received into. Only one stream at a time may fill it.
#[derive(Debug)]
struct UnderWay {
    receives: Arc<Receives>,
    dataset: ObjectId,
}

impl UnderWay {
    /// `None` if another receive fills the dataset.
    fn begin(datasets: &Datasets, dataset: ObjectId) -> Option<Self> {
        let is_first = datasets.receives.lock().insert(dataset);
        is_first.then(|| Self {
            receives: Arc::clone(&datasets.receives),
            dataset,
        })
    }
    /// Whether a dataset is being filled.
    fn has_begun(datasets: &Datasets, dataset: ObjectId) -> bool {
        datasets.receives.lock().contains(&dataset)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.receives.lock().remove(&self.dataset);
    }
}

/// An existing dataset whose contents are replaced at the end.
#[derive(Debug, Clone)]
struct Replaced {
    /// Its head.
    head: ObjectId,
    /// The snapshot that the hidden dataset began with, if any.
    origin: Option<ObjectId>,
}

impl Receiving {
    /// The dataset that takes the objects.
    #[must_use]
    pub fn head(&self) -> &Arc<HeadDataset> {
        &self.head
    }
    /// The id of the last block of dnodes of a raw stream; 0 for another stream.
    #[must_use]
    pub fn last_dnode_block(&self) -> u64 {
        self.raw.as_ref().map_or(0, |raw| raw.array.last_block)
    }
    /// Whether blocks are kept as they come, without the dataset's key.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.raw.is_some()
    }
    /// The wrapped keys of a raw stream.
    #[must_use]
    pub fn sent_key(&self) -> Option<&CryptKey> {
        self.raw.as_ref().map(|raw| &raw.key)
    }
    /// Whether an interruption leaves a state that another stream can resume.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        self.target.resume.is_some()
    }
    /// Whether the dataset began with the contents of a snapshot, before anything was received into it.
    #[must_use]
    pub fn has_origin(&self) -> bool {
        self.has_origin
    }
    fn own_name(&self) -> String {
        match &self.replaced {
            Some(_) => hidden_name(&self.target.name),
            None => self.target.name.clone(),
        }
    }
}

/// The name of the hidden dataset that takes what is received into an existing one.
fn hidden_name(name: &str) -> String {
    format!("{name}/{}", millpond_ondisk::dsl::keys::RECEIVE_DATASET)
}

/// The head of a directory, by its name.
fn head(name: &str, directory: ObjectId, dataset: ObjectId) -> Head {
    Head {
        name: name.to_owned(),
        directory,
        dataset,
    }
}

/// How often the destruction of a given up dataset is tried: its last changes may not be written yet.
const ABORT_TRIES: u32 = 4;

impl Datasets {
    /// Whether something is being received: the pool must stay open.
    #[must_use]
    pub fn is_receiving(&self) -> bool {
        !self.receives.lock().is_empty()
    }

    /// Gives up what was received. A state that a stream can resume stays, unless `is_final`.
    ///
    /// # Errors
    /// If it cannot be destroyed now. It is destroyed when the pool is opened next.
    pub fn abort_receive(&self, receiving: Receiving, is_final: bool) -> Result<(), DatasetError> {
        let name = receiving.own_name();
        let stays = receiving.is_resumable() && !is_final;
        drop(receiving);
        match stays {
            true => Ok(()),
            false => self.destroy_received(&name),
        }
    }

    /// Destroys a dataset that is partly received.
    fn destroy_received(&self, name: &str) -> Result<(), DatasetError> {
        let mut tries = ABORT_TRIES;
        loop {
            match self.destroy_dataset(name) {
                Err(DatasetError::Refused {
                    why: Refusal::Busy, ..
                }) if tries > 0 => {
                    tries -= 1;
                    self.pool()?.sync()?;
                }
                outcome => return outcome,
            }
        }
    }
}
