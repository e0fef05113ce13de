//! Properties stored in the dataset's own objects: a file system's master node, or the first two objects of
//! a volume.
//!
//! These objects are authenticated but not encrypted, so the properties of a locked dataset are readable
//! too.

use crate::error::Named;
use crate::{Dataset, DatasetError};
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::dsl::keys::master_node;
use millpond_ondisk::{ObjectId, ObjectSetKind};
use millpond_zap::Zap;
use std::collections::BTreeMap;

const MASTER_NODE: ObjectId = ObjectId(1);
const VOLUME_DATA: ObjectId = ObjectId(1);
const VOLUME_PROPERTIES: ObjectId = ObjectId(2);

impl Dataset {
    /// The version of a file system, which is readable without its key; `None` for a volume.
    ///
    /// # Errors
    /// If its objects cannot be read.
    pub fn file_system_version(&self) -> Result<Option<u64>, DatasetError> {
        Ok(match Content::read(self)? {
            Content::Files(numbers) => numbers.get(master_node::VERSION).copied(),
            _ => None,
        })
    }

    /// The size of a volume in bytes; `None` for a file system.
    ///
    /// # Errors
    /// If its objects cannot be read.
    pub fn volume_bytes(&self) -> Result<Option<u64>, DatasetError> {
        Ok(Content::read(self)?.volume_bytes())
    }
}

/// The property sources in a dataset's own objects.
#[derive(Debug)]
pub(super) enum Content {
    /// The numbers in a file system's master node.
    Files(BTreeMap<String, u64>),
    /// A volume.
    Volume {
        size_bytes: Option<u64>,
        block_bytes: u64,
    },
    /// Neither a file system nor a volume.
    Other,
}

impl Content {
    pub(super) fn read(dataset: &Dataset) -> Result<Self, DatasetError> {
        let set = dataset.object_set(None)?;
        match set.kind() {
            ObjectSetKind::FileSystem => Self::read_files(&set, dataset.name()),
            ObjectSetKind::Volume => Self::read_volume(&set, dataset.name()),
            _ => Ok(Self::Other),
        }
    }

    /// The size of a volume in bytes.
    pub(super) fn volume_bytes(&self) -> Option<u64> {
        match self {
            Self::Volume { size_bytes, .. } => *size_bytes,
            _ => None,
        }
    }

    fn read_files(set: &Arc<ObjectSetView>, name: &str) -> Result<Self, DatasetError> {
        let zap = Zap::open(set.object(MASTER_NODE).named(name)?).named(name)?;
        let mut numbers = BTreeMap::new();
        for entry in zap.iter() {
            let entry = entry.named(name)?;
            if let Some(number) = entry.value.first() {
                let key = String::from_utf8_lossy(&entry.name).into_owned();
                numbers.insert(key, number);
            }
        }
        Ok(Self::Files(numbers))
    }

    fn read_volume(set: &Arc<ObjectSetView>, name: &str) -> Result<Self, DatasetError> {
        let zap = Zap::open(set.object(VOLUME_PROPERTIES).named(name)?).named(name)?;
        Ok(Self::Volume {
            size_bytes: zap
                .lookup_u64(master_node::VOLUME_SIZE.as_bytes())
                .named(name)?,
            block_bytes: set.object(VOLUME_DATA).named(name)?.block_bytes(),
        })
    }

    /// A number in a file system's master node.
    ///
    /// Properties that old file systems lack are 0. Setting a default quota to 0 removes its key, so an
    /// absent key means 0. If all six default quotas are absent, the result is `None`: the writer may not
    /// know them.
    pub(super) fn file_system_number(&self, property: &str) -> Option<u64> {
        let Self::Files(numbers) = self else {
            return None;
        };
        match property {
            "version" => numbers.get(master_node::VERSION).copied(),
            "normalization" | "utf8only" | "casesensitivity" => {
                Some(numbers.get(property).copied().unwrap_or(0))
            }
            _ if master_node::default_quota(property).is_some() => {
                let knows_them = numbers
                    .keys()
                    .any(|key| master_node::default_quota(key).is_some());
                let number = numbers.get(property).copied();
                number.or(knows_them.then_some(0))
            }
            _ => numbers.get(property).copied(),
        }
    }
}
