//! Quotas of users, groups and projects. Page `docs/format/file-system.md`.

use crate::FileSystem;
use crate::accounting::{OBJECT_COUNTS, PROJECTS, USERS};
use crate::error::FileError;
use crate::file_system::MASTER_NODE;
use crate::state::NodeState;
use crate::version::OWNER_QUOTAS;
use crate::writing::{ENTRY_BYTES, NODE_BYTES};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_object::{Accounting, Object, ObjectSet};
use millpond_ondisk::dsl::keys::master_node as key;
use millpond_ondisk::{BlockPointer, ObjectId, ObjectType};
use millpond_sa::Fuid;
use millpond_zap::{NewZap, Zap, new_salt};

/// The kind of owner that a quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaOwner {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

/// What a quota counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaMeasure {
    /// Bytes.
    Bytes,
    /// Files.
    Objects,
}

const OWNERS: [QuotaOwner; 3] = [QuotaOwner::User, QuotaOwner::Group, QuotaOwner::Project];
const MEASURES: [QuotaMeasure; 2] = [QuotaMeasure::Bytes, QuotaMeasure::Objects];

impl QuotaOwner {
    fn accounting(self) -> Accounting {
        match self {
            Self::User => Accounting::User,
            Self::Group => Accounting::Group,
            Self::Project => Accounting::Project,
        }
    }
}

fn table_key(owner: QuotaOwner, measure: QuotaMeasure) -> &'static str {
    match measure {
        QuotaMeasure::Bytes => key::QUOTAS[owner as usize],
        QuotaMeasure::Objects => key::OBJECT_QUOTAS[owner as usize],
    }
}
fn default_key(owner: QuotaOwner, measure: QuotaMeasure) -> &'static str {
    match measure {
        QuotaMeasure::Bytes => key::DEFAULT_QUOTAS[owner as usize],
        QuotaMeasure::Objects => key::DEFAULT_OBJECT_QUOTAS[owner as usize],
    }
}
fn slot(owner: QuotaOwner, measure: QuotaMeasure) -> usize {
    owner as usize * 2 + measure as usize
}

/// The quotas of one file system: their tables and the defaults.
#[derive(Debug)]
pub(crate) struct Quotas {
    limits: RwLock<[Limits; 6], rank::Quotas>,
    used: Mutex<Option<Used>, rank::Leaf>,
}

#[derive(Debug, Clone, Default)]
struct Limits {
    table: Option<Arc<Object>>,
    default: u64,
}

/// The usage counters as of the last synced txg.
#[derive(Debug, Clone)]
struct Used {
    root: BlockPointer,
    tables: [Option<Zap>; 3],
}

impl Quotas {
    pub(crate) fn read(set: &Arc<ObjectSet>, master: &Zap) -> Result<Self, FileError> {
        let mut limits: [Limits; 6] = Default::default();
        for owner in OWNERS {
            for measure in MEASURES {
                let number = |key: &str| master.lookup_u64(key.as_bytes());
                let table = number(table_key(owner, measure))?.filter(|id| *id != 0);
                limits[slot(owner, measure)] = Limits {
                    table: table.map(|id| set.object(ObjectId(id))).transpose()?,
                    default: number(default_key(owner, measure))?.unwrap_or(0),
                };
            }
        }
        Ok(Self {
            limits: RwLock::new(limits),
            used: Mutex::new(None),
        })
    }

    /// The limit of one owner id; 0 for none.
    fn limit(&self, owner: QuotaOwner, measure: QuotaMeasure, id: u64) -> Result<u64, FileError> {
        let limits = self.limits.read();
        let limits = &limits[slot(owner, measure)];
        let own = match &limits.table {
            None => None,
            Some(table) => Zap::from_source(Arc::clone(table) as _)?.lookup_number(id)?,
        };
        Ok(own.unwrap_or(limits.default))
    }
    fn is_limited(&self, owner: QuotaOwner, measure: QuotaMeasure) -> bool {
        let limits = &self.limits.read()[slot(owner, measure)];
        limits.table.is_some() || limits.default != 0
    }
}

impl FileSystem {
    /// The usage of an owner, as of the last synced txg.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn used(
        &self,
        owner: QuotaOwner,
        measure: QuotaMeasure,
        id: u64,
    ) -> Result<u64, FileError> {
        let writing = self.writing()?;
        let root = writing.set().root();
        if root.is_hole() {
            return Ok(0);
        }
        let known = writing.quotas().used.lock().clone();
        let used = match known.filter(|used| used.root == root) {
            Some(used) => used,
            None => {
                let committed = writing.set().committed()?;
                let table = |owner: QuotaOwner| {
                    let object = committed.accounting(owner.accounting());
                    object.map(Zap::open).transpose()
                };
                let used = Used {
                    root,
                    tables: [
                        table(QuotaOwner::User)?,
                        table(QuotaOwner::Group)?,
                        table(QuotaOwner::Project)?,
                    ],
                };
                *writing.quotas().used.lock() = Some(used.clone());
                used
            }
        };
        let Some(table) = &used.tables[owner as usize] else {
            return Ok(0);
        };
        let key = match measure {
            QuotaMeasure::Bytes => format!("{id:x}"),
            QuotaMeasure::Objects => format!("obj-{id:x}"),
        };
        Ok(table.lookup_u64(key.as_bytes())?.unwrap_or(0))
    }

    /// The limit of an owner: its own, otherwise the default; `None` if there is neither.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn quota(
        &self,
        owner: QuotaOwner,
        measure: QuotaMeasure,
        id: u64,
    ) -> Result<Option<u64>, FileError> {
        let writing = self.writing()?;
        let limit = writing.quotas().limit(owner, measure, id)?;
        Ok(Some(limit).filter(|limit| *limit != 0))
    }

    /// Whether the counters are complete.
    fn is_counted(&self, owner: QuotaOwner, measure: QuotaMeasure) -> bool {
        let missing = self.incomplete_accounting();
        let needed = match (owner, measure) {
            (QuotaOwner::Project, QuotaMeasure::Bytes) => PROJECTS,
            (QuotaOwner::Project, QuotaMeasure::Objects) => PROJECTS | OBJECT_COUNTS,
            (_, QuotaMeasure::Bytes) => USERS,
            (_, QuotaMeasure::Objects) => USERS | OBJECT_COUNTS,
        };
        missing & needed == 0
    }

    fn check_quota(
        &self,
        owner: QuotaOwner,
        measure: QuotaMeasure,
        id: u64,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let is_exempt = owner == QuotaOwner::Project && (id == 0 || id == u64::from(u32::MAX));
        if is_exempt || !writing.quotas().is_limited(owner, measure) {
            return Ok(());
        }
        if !self.is_counted(owner, measure) {
            // An incomplete counter cannot be compared with the limit: writes are allowed until it is
            // complete.
            self.complete_accounting_in_background();
            return Ok(());
        }
        let limit = writing.quotas().limit(owner, measure, id)?;
        if limit != 0 && self.used(owner, measure, id)? >= limit {
            return Err(FileError::OwnerQuota);
        }
        Ok(())
    }

    /// Checks that these owners may own more bytes, and more files too if `with_objects`.
    pub(crate) fn check_owner_quotas(
        &self,
        uid: Fuid,
        gid: Fuid,
        project: u64,
        with_objects: bool,
    ) -> Result<(), FileError> {
        if self.is_replaying() {
            return Ok(());
        }
        if with_objects {
            // The first new file after the pool's upgrade is the start, as with OpenZFS.
            self.complete_accounting_in_background();
        }
        let ids = [uid.0, gid.0, project];
        for (owner, id) in OWNERS.into_iter().zip(ids) {
            self.check_quota(owner, QuotaMeasure::Bytes, id)?;
            if with_objects {
                self.check_quota(owner, QuotaMeasure::Objects, id)?;
            }
        }
        Ok(())
    }
    /// Checks that a file's owners may own more bytes.
    pub(crate) fn check_write_quotas(&self, state: &NodeState) -> Result<(), FileError> {
        if self.is_replaying() {
            return Ok(());
        }
        self.check_owner_quotas(state.uid, state.gid, state.project_or_zero(), false)
    }
    /// Checks that an owner may receive another file.
    pub(crate) fn check_new_owner(&self, owner: QuotaOwner, id: u64) -> Result<(), FileError> {
        if self.is_replaying() {
            return Ok(());
        }
        self.check_quota(owner, QuotaMeasure::Bytes, id)?;
        self.check_quota(owner, QuotaMeasure::Objects, id)
    }

    /// Sets the limit of one owner id; 0 removes it.
    ///
    /// # Errors
    /// If the tables cannot be read or written, or no transaction can begin.
    pub fn set_quota(
        &self,
        owner: QuotaOwner,
        measure: QuotaMeasure,
        id: u64,
        limit: u64,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        self.check_version(OWNER_QUOTAS)?;
        let _master = writing.lock_master();
        let tx = self.begin(2 * NODE_BYTES + 2 * ENTRY_BYTES)?;
        self.record_nothing(&tx, None);
        let mut limits = writing.quotas().limits.write();
        let limits = &mut limits[slot(owner, measure)];
        let table = match (&limits.table, limit) {
            (Some(table), _) => Arc::clone(table),
            (None, 0) => return Ok(()),
            (None, _) => {
                let set = writing.set();
                let kind = ObjectType::USER_GROUP_QUOTA;
                let new = NewZap::plain(new_salt(writing.env()));
                let master = set.object(MASTER_NODE)?;
                let made = crate::attributes::make_zap(set, &tx, kind, &new)?;
                let unfinished = tx.unfinished();
                let name = table_key(owner, measure).as_bytes();
                crate::attributes::zap(&master, &tx).update_u64(name, made.id().0)?;
                unfinished.done();
                limits.table = Some(Arc::clone(&made));
                made
            }
        };
        let table = crate::attributes::zap(&table, &tx);
        if limit == 0 {
            table.remove_number(id)?;
        } else {
            table.update_u64(format!("{id:x}").as_bytes(), limit)?;
        }
        Ok(())
    }

    /// Sets the default limit, for owners without their own; 0 removes it.
    ///
    /// # Errors
    /// As [`FileSystem::set_quota`].
    pub fn set_default_quota(
        &self,
        owner: QuotaOwner,
        measure: QuotaMeasure,
        limit: u64,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        self.check_version(OWNER_QUOTAS)?;
        let _master = writing.lock_master();
        let tx = self.begin(NODE_BYTES + ENTRY_BYTES)?;
        self.record_nothing(&tx, None);
        let master = writing.set().object(MASTER_NODE)?;
        let master = crate::attributes::zap(&master, &tx);
        let name = default_key(owner, measure).as_bytes();
        if limit == 0 {
            master.remove(name)?;
        } else {
            master.update_u64(name, limit)?;
        }
        writing.quotas().limits.write()[slot(owner, measure)].default = limit;
        Ok(())
    }
}
