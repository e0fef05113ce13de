//! An open file system: its master node and its properties.

use crate::error::FileError;
use crate::node::Node;
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::dsl::keys::master_node as key;
use millpond_ondisk::{DecodeError, ObjectId, ObjectSetKind};
use millpond_sa::SaRegistry;
use millpond_zap::{NameMatch, Zap};

/// The newest file system version.
const VERSION_MAX: u64 = 5;
/// The object id of the master node in every file system.
const MASTER_NODE: ObjectId = ObjectId(1);

/// How names compare upper and lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Case {
    /// Case matters.
    Sensitive,
    /// Case is ignored.
    Insensitive,
    /// Case matters, unless a request asks otherwise.
    Mixed,
}

/// The files of one object set. All threads share it.
#[derive(Debug)]
pub struct FileSystem {
    set: Arc<ObjectSetView>,
    attributes: Arc<SaRegistry>,
    root: ObjectId,
    version: u64,
    normalisation: u64,
    is_utf8_only: bool,
    case: Case,
    unlinked: Option<ObjectId>,
}

impl FileSystem {
    /// Opens the file system of an object set. Writes nothing.
    ///
    /// # Errors
    /// If the set is not a file system, has an unsupported version, or is locked, or if its master node
    /// cannot be read.
    pub fn open(set: Arc<ObjectSetView>) -> Result<Arc<Self>, FileError> {
        let dataset = set.dataset();
        if set.kind() != ObjectSetKind::FileSystem {
            return Err(FileError::NotAFileSystem { dataset });
        }
        let master = Zap::open(set.object(MASTER_NODE)?)?;
        let number = |name: &str| master.lookup_u64(name.as_bytes());
        let missing = |reason| FileError::Corrupt {
            dataset,
            object: MASTER_NODE,
            error: DecodeError::new("master node", reason, 0),
        };
        let version = number(key::VERSION)?.ok_or_else(|| missing("no VERSION"))?;
        if version == 0 || version > VERSION_MAX {
            return Err(FileError::Version { dataset, version });
        }
        let root = number(key::ROOT)?.ok_or_else(|| missing("no ROOT"))?;
        let case = match number(key::CASE_SENSITIVITY)?.unwrap_or(0) {
            0 => Case::Sensitive,
            1 => Case::Insensitive,
            2 => Case::Mixed,
            _ => return Err(missing("casesensitivity has a value that does not exist")),
        };
        Ok(Arc::new(Self {
            root: ObjectId(root),
            version,
            normalisation: number(key::NORMALIZATION)?.unwrap_or(0),
            is_utf8_only: number(key::UTF8_ONLY)?.unwrap_or(0) != 0,
            case,
            unlinked: number(key::DELETE_QUEUE)?
                .filter(|id| *id != 0)
                .map(ObjectId),
            attributes: SaRegistry::open(&set)?,
            set,
        }))
    }

    /// The object set that holds the files.
    #[must_use]
    pub fn object_set(&self) -> &Arc<ObjectSetView> {
        &self.set
    }
    pub(crate) fn registry(&self) -> &Arc<SaRegistry> {
        &self.attributes
    }
    /// The file system version, 1 to 5.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }
    /// How names compare upper and lower case.
    #[must_use]
    pub fn case(&self) -> Case {
        self.case
    }
    /// The Unicode normalization form for comparing names: 0 none, 0x10 D, 0x20 KD, 0x50 C, 0x60 KC.
    #[must_use]
    pub fn normalisation(&self) -> u64 {
        self.normalisation
    }
    /// Whether names must be valid UTF-8.
    #[must_use]
    pub fn is_utf8_only(&self) -> bool {
        self.is_utf8_only
    }
    /// How a requested name is compared with stored names.
    pub(crate) fn name_match(&self) -> NameMatch {
        match (self.case, self.normalisation) {
            (Case::Insensitive, _) => NameMatch::Normalised,
            (Case::Mixed, _) => NameMatch::NormalisedKeepingCase,
            (Case::Sensitive, 0) => NameMatch::Exact,
            (Case::Sensitive, _) => NameMatch::Normalised,
        }
    }

    /// The root directory.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn root(self: &Arc<Self>) -> Result<Node, FileError> {
        self.node(self.root)
    }
    /// The object id of the root directory.
    #[must_use]
    pub fn root_id(&self) -> ObjectId {
        self.root
    }

    /// The file with this object id.
    ///
    /// # Errors
    /// If there is no such object, if it is not a file, or if its attributes cannot be read.
    pub fn node(self: &Arc<Self>, id: ObjectId) -> Result<Node, FileError> {
        Node::open(Arc::clone(self), self.set.object(id)?)
    }

    /// The object ids of files that were deleted while they were open and are not freed yet.
    ///
    /// # Errors
    /// If the unlinked set cannot be read.
    pub fn unlinked(&self) -> Result<Vec<ObjectId>, FileError> {
        let Some(id) = self.unlinked else {
            return Ok(vec![]);
        };
        let zap = Zap::open(self.set.object(id)?)?;
        let mut found = vec![];
        for entry in zap.iter() {
            found.extend(entry?.value.first().map(ObjectId));
        }
        Ok(found)
    }
}
