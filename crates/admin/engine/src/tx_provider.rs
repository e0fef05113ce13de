//! Connects files with their dataset: begins transactions, and converts properties into settings.

use millpond_dataset::{DatasetError, Refusal};
use millpond_dataset::{Datasets, HeadDataset, OtherLog, Settings as Numbers};
use millpond_env::sync::Arc;
use millpond_intent::LogWriter;
use millpond_object::LoggedBlock;
use millpond_ondisk::{ObjectId, Txg};
use millpond_pool::BLOCK_CLONING;
use millpond_posix::{
    AclInherit, AclKind, AclMode, Atime, ChangeLog, CloneOrigin, Estimate, Settings,
    SnapshotDirectory, Space, TransactionError, TransactionSource, XattrPlace,
};
use millpond_txg::Transaction;

/// The feature required for names longer than 255 bytes.
const LONGNAME: &str = "org.zfsonlinux:longname";
/// The features required for object accounting and project accounting.
const USEROBJ_ACCOUNTING: &str = "org.zfsonlinux:userobj_accounting";
const PROJECT_QUOTA: &str = "org.zfsonlinux:project_quota";
/// Slots of a dnode with `dnodesize=auto`: 1 KiB, as in OpenZFS.
const AUTO_DNODE_SLOTS: u8 = 2;

/// A dataset from the perspective of its files.
pub(super) struct DatasetTxProvider {
    datasets: Arc<Datasets>,
    dataset: Arc<HeadDataset>,
    log: Arc<LogWriter>,
    takes_xattrs: bool,
}

/// Values of the properties `sync` and `logbias`.
const SYNC_ALWAYS: u64 = 1;
const SYNC_DISABLED: u64 = 2;
const LOGBIAS_THROUGHPUT: u64 = 1;
/// The smallest block, in bytes, that is written separately from the log under `logbias=throughput`. For
/// smaller ones the record costs more than it saves.
const THROUGHPUT_BLOCK_BYTES: u64 = 4096;
/// The smallest write, in bytes, that goes to separate blocks if they are this large too, and the pool has no
/// log device.
const LARGE_WRITE_BYTES: u64 = 32 << 10;
/// The smallest write, in bytes, that goes to separate blocks even with a log device. Log devices are for
/// latency-sensitive writes.
const HUGE_WRITE_BYTES: u64 = 512 << 10;
/// The feature required for log records of extended attributes.
const ZILSAXATTR: &str = "org.openzfs:zilsaxattr";

impl DatasetTxProvider {
    pub(super) fn new(
        datasets: &Arc<Datasets>,
        dataset: Arc<HeadDataset>,
        is_enabled: impl Fn(&str) -> bool,
    ) -> Result<Self, OtherLog> {
        let log = LogWriter::of(&dataset)?;
        Ok(Self {
            datasets: Arc::clone(datasets),
            dataset,
            log,
            takes_xattrs: is_enabled(ZILSAXATTR),
        })
    }
    fn has_log_device(&self) -> bool {
        self.dataset
            .pool()
            .is_ok_and(|pool| pool.allocator().has_log_vdevs())
    }
    fn setting(&self, name: &str) -> u64 {
        self.dataset.settings().number(name)
    }
}

impl ChangeLog for DatasetTxProvider {
    fn is_wanted(&self) -> bool {
        self.setting("sync") != SYNC_DISABLED
    }
    fn commits_always(&self) -> bool {
        self.setting("sync") == SYNC_ALWAYS
    }
    fn separate_from(&self, write_bytes: u64) -> Option<u64> {
        if self.setting("logbias") == LOGBIAS_THROUGHPUT {
            return Some(THROUGHPUT_BLOCK_BYTES);
        }
        let is_large = write_bytes >= LARGE_WRITE_BYTES;
        let is_huge = write_bytes >= HUGE_WRITE_BYTES;
        (is_huge || is_large && !self.has_log_device()).then_some(LARGE_WRITE_BYTES)
    }
    fn takes_xattrs(&self) -> bool {
        self.takes_xattrs
    }
    fn append(&self, tx: &Transaction, object: Option<ObjectId>, record: Vec<u8>) {
        self.log.append(tx, object, record);
    }
    fn append_block(
        &self,
        tx: &Transaction,
        object: ObjectId,
        record: Vec<u8>,
        block: LoggedBlock,
    ) {
        self.log.append_block(tx, object, record, block);
    }
    fn append_unlogged(&self, tx: &Transaction, object: Option<ObjectId>) {
        self.log.append_unlogged(tx, object);
    }
    fn promote(&self, object: ObjectId) {
        self.log.promote(object);
    }
    fn forget(&self, object: ObjectId) {
        self.log.forget(object);
    }
    fn commit(&self, object: Option<ObjectId>) -> Result<(), TransactionError> {
        if !self.is_wanted() {
            return Ok(());
        }
        self.log.commit(&self.dataset, object).map_err(refusal)
    }
}

fn refusal(error: DatasetError) -> TransactionError {
    match &error {
        DatasetError::Refused { why, .. } => match why {
            Refusal::OverQuota => TransactionError::Quota,
            _ => TransactionError::NoSpace,
        },
        _ => TransactionError::Suspended {
            reason: error.to_string(),
        },
    }
}

impl TransactionSource for DatasetTxProvider {
    fn begin(&self, estimate: Estimate) -> Result<Transaction, TransactionError> {
        self.dataset.begin(estimate).map_err(refusal)
    }
    fn wait_open_synced(&self) -> Result<(), TransactionError> {
        self.dataset.sync().map_err(refusal)
    }
    fn space(&self) -> Space {
        // If the usage cannot be read, report a full file system rather than wrong numbers.
        let space = self.dataset.space().unwrap_or_default();
        Space {
            referenced_bytes: space.referenced_bytes,
            available_bytes: space.available_bytes,
        }
    }
    fn log(&self) -> Option<&dyn ChangeLog> {
        Some(self)
    }
    fn clonable_until(&self) -> Option<Txg> {
        let pool = self.dataset.pool().ok()?;
        let is_enabled = pool.feature_is_enabled(BLOCK_CLONING);
        is_enabled.then(|| pool.stable_txg())
    }
    fn borrow_from(&self, tx: &Transaction, origin: CloneOrigin<'_>) -> bool {
        let own = self.dataset.set();
        match origin {
            CloneOrigin::Open(set) if Arc::ptr_eq(set, &own) => true,
            CloneOrigin::Open(set) => {
                let is_same_pool = Arc::ptr_eq(set.store(), own.store());
                let head = self.datasets.head_if_open(ObjectId(set.dataset()));
                match head.filter(|head| is_same_pool && Arc::ptr_eq(&head.set(), set)) {
                    Some(head) => {
                        head.lend_to(tx);
                        true
                    }
                    None => false,
                }
            }
            CloneOrigin::Committed(view) => {
                let snapshot = ObjectId(view.dataset());
                let lent = self.datasets.lend_snapshot(tx, snapshot, view.root());
                lent.unwrap_or(false)
            }
        }
    }
    fn note_long_name(&self, tx: &Transaction) {
        self.dataset.use_feature(tx, LONGNAME);
    }
    fn note_accounting(&self, tx: &Transaction, counts_objects: bool, has_projects: bool) {
        if counts_objects {
            self.dataset.use_feature(tx, USEROBJ_ACCOUNTING);
        }
        if has_projects {
            self.dataset.use_feature(tx, PROJECT_QUOTA);
        }
    }
}

/// When access times are updated, by the properties `atime` and `relatime`.
pub(super) fn access_time_policy(atime: bool, relatime: bool) -> Atime {
    match (atime, relatime) {
        (false, _) => Atime::Off,
        (true, true) => Atime::Relative,
        (true, false) => Atime::Always,
    }
}

/// Converts the properties in effect into settings for files. `is_enabled` returns whether a feature of the
/// pool is enabled.
pub(super) fn file_settings(numbers: &Numbers, is_enabled: impl Fn(&str) -> bool) -> Settings {
    Settings {
        is_read_only: numbers.is_on("readonly"),
        record_bytes: u32::try_from(numbers.number("recordsize")).unwrap_or(128 << 10),
        dnode_slots: match numbers.number("dnodesize") {
            0 => 1,
            _ if !is_enabled("org.zfsonlinux:large_dnode") => 1,
            1 => AUTO_DNODE_SLOTS,
            bytes => u8::try_from(bytes / 512).unwrap_or(1).clamp(1, 32),
        },
        atime: access_time_policy(numbers.is_on("atime"), numbers.is_on("relatime")),
        xattr: match numbers.number("xattr") {
            0 => XattrPlace::Off,
            1 => XattrPlace::Directory,
            _ => XattrPlace::Attributes,
        },
        acl_kind: match numbers.number("acltype") {
            0 => AclKind::Off,
            1 => AclKind::Posix,
            _ => AclKind::Nfs4,
        },
        acl_mode: match numbers.number("aclmode") {
            0 => AclMode::Discard,
            2 => AclMode::GroupMask,
            3 => AclMode::Passthrough,
            _ => AclMode::Restricted,
        },
        acl_inherit: match numbers.number("aclinherit") {
            0 => AclInherit::Discard,
            1 => AclInherit::NoAllow,
            3 => AclInherit::Passthrough,
            5 => AclInherit::PassthroughExecute,
            _ => AclInherit::Restricted,
        },
        allows_long_names: numbers.is_on("longname") && is_enabled(LONGNAME),
        has_projects: is_enabled(PROJECT_QUOTA),
        snapshot_directory: match numbers.number("snapdir") {
            1 => SnapshotDirectory::Visible,
            2 => SnapshotDirectory::Disabled,
            _ => SnapshotDirectory::Hidden,
        },
        aligns_direct_io: numbers.number("direct") == 1,
    }
}
