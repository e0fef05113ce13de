//! Checks the files and names of a dataset: every entry must refer to a file, and every file must have its
//! names.
//!
//! Takes about 90 bytes per file of the file system.

use super::dsl::{DatasetNode, Dsl};
use super::finding::{Finding, FindingKind};
use super::owner_space::OwnerSums;
use super::report::Findings;
use super::run::Scene;
use super::{Progress, tables};
use millpond_dataset::KeyRing;
use millpond_env::sync::Arc;
use millpond_object::{Accounting, ObjectSetView, ObjectView};
use millpond_ondisk::dsl::{hex_key_number, keys::master_node};
use millpond_ondisk::{BlockId, DslDatasetFlags, ObjectId, ObjectSetKind, ObjectType};
use millpond_posix::{FileFlags, FileKind};
use millpond_sa::{Attributes, SaError, SaRegistry};
use millpond_zap::Zap;

const MASTER_NODE: ObjectId = ObjectId(1);
const VOLUME_DATA: ObjectId = ObjectId(1);
const VOLUME_PROPERTIES: ObjectId = ObjectId(2);

/// The check of a dataset's content.
pub(super) struct FilesJob<'a> {
    keys: &'a KeyRing,
    node: &'a DatasetNode,
    dsl: &'a Dsl,
    progress: &'a Progress,
    findings: &'a Findings<'a>,
}

/// The state of a file.
struct Record {
    id: u64,
    kind: FileKind,
    is_xattr: bool,
    is_waiting: bool,
    /// Whether its parent has an entry for it.
    parent_has_it: bool,
    links: u64,
    parent: u64,
    xattr: u64,
    size: u64,
    /// Count of entries that refer to it.
    names: u64,
    /// For a directory: count of its entries, and of those that are directories.
    entries: u64,
    subdirectories: u64,
    /// Count of files that have it as their extended attribute directory.
    xattr_owners: u64,
}

impl<'a> FilesJob<'a> {
    /// Creates a job per dataset whose content is to be checked, the largest last.
    pub(super) fn of(scene: &Scene<'a>, findings: &'a Findings<'a>) -> Vec<Self> {
        let (dsl, options) = (scene.dsl, scene.options);
        let is_wanted = |node: &&DatasetNode| {
            let next = node.next.map(|next| &dsl.datasets[next].phys);
            let is_same = next.is_some_and(|next| next.block_pointer == node.phys.block_pointer);
            let is_snapshot = node.phys.is_snapshot();
            !node.phys.block_pointer.is_hole()
                && !(is_snapshot && (is_same || !options.with_snapshots_files))
        };
        let mut nodes: Vec<&DatasetNode> = dsl.datasets.iter().filter(is_wanted).collect();
        nodes.sort_by_key(|node| node.phys.referenced_bytes);
        nodes
            .into_iter()
            .map(|node| Self {
                keys: scene.keys,
                node,
                dsl,
                progress: scene.progress,
                findings,
            })
            .collect()
    }

    fn tell(&self, kind: FindingKind, object: u64, detail: impl Into<String>) {
        let finding = Finding::new(kind, detail);
        self.findings
            .add(finding.of(&self.node.name).object(object));
    }

    pub(super) fn run(&self) {
        let name = &self.node.name;
        if self.node.phys.flags.contains(DslDatasetFlags::INCONSISTENT) {
            let reason = format!("{name}: its files, as it is only partly received or destroyed");
            return self.findings.not_judged(reason);
        }
        let directory = &self.dsl.directories[self.node.directory].directory;
        let key = match self.keys.key_of(directory) {
            Ok(key) => key,
            Err(error) => return self.tell(FindingKind::Unreadable, 0, error.to_string()),
        };
        let is_locked = key.is_none() && self.node.dataset.is_encrypted().unwrap_or(false);
        let set = match self.node.dataset.object_set(key) {
            Ok(set) => set,
            Err(error) => return self.tell(FindingKind::Unreadable, 0, error.to_string()),
        };
        if is_locked {
            let reason = format!(
                "{name}: names, attributes, tables and owners, as it is encrypted and its key was not given"
            );
            return self.findings.not_judged(reason);
        }
        match set.kind() {
            ObjectSetKind::FileSystem => self.file_system(&set),
            ObjectSetKind::Volume => self.volume(&set),
            ObjectSetKind::Meta | ObjectSetKind::Other => {
                self.each_object(&set, &mut |_| {});
            }
        }
    }

    /// Calls `each` for every object, and checks tables.
    fn each_object(&self, set: &Arc<ObjectSetView>, each: &mut dyn FnMut(&ObjectView)) {
        let mut count = 0u64;
        for object in set.objects() {
            let object = match object {
                Ok(object) => object,
                // The pass over blocks reports this.
                Err(_) => continue,
            };
            count += 1;
            self.progress.add_object();
            if tables::is_table(&object) {
                tables::judge(&object, &self.node.name, self.findings);
            }
            each(&object);
        }
        for which in [Accounting::User, Accounting::Group, Accounting::Project] {
            if let Some(object) = set.accounting(which).filter(tables::is_table) {
                tables::judge(&object, &self.node.name, self.findings);
            }
        }
        if count != set.object_count() {
            let detail = format!("{} objects counted, {count} there", set.object_count());
            self.tell(FindingKind::FillCount, 0, detail);
        }
    }

    fn volume(&self, set: &Arc<ObjectSetView>) {
        self.each_object(set, &mut |_| {});
        let size = set
            .object(VOLUME_PROPERTIES)
            .map_err(|error| error.to_string())
            .and_then(|object| Zap::open(object).map_err(|error| error.to_string()))
            .and_then(|zap| {
                zap.lookup_u64(master_node::VOLUME_SIZE.as_bytes())
                    .map_err(|error| error.to_string())
            });
        let size = match size {
            Ok(Some(size)) => size,
            Ok(None) => {
                return self.tell(FindingKind::MissingObject, 2, "the volume has no size");
            }
            Err(error) => return self.tell(FindingKind::MissingObject, 2, error),
        };
        match set.object(VOLUME_DATA) {
            Ok(data) => self.judge_length(FindingKind::VolumeTail, &data, size),
            Err(error) => self.tell(FindingKind::MissingObject, 1, error.to_string()),
        }
    }

    /// Checks that no block is stored beyond the end.
    fn judge_length(&self, kind: FindingKind, object: &ObjectView, size: u64) {
        let block = object.block_bytes().max(1);
        let end = BlockId(size.div_ceil(block));
        if let Ok(Some(block)) = object.next_data_block(end) {
            let detail = format!("block {block} is stored, behind its end at {size} bytes");
            self.tell(kind, object.id().0, detail);
        }
    }

    fn file_system(&self, set: &Arc<ObjectSetView>) {
        let master = set
            .object(MASTER_NODE)
            .map_err(|error| error.to_string())
            .and_then(|object| Zap::open(object).map_err(|error| error.to_string()));
        let master = match master {
            Ok(master) => master,
            Err(error) => return self.tell(FindingKind::MissingObject, 1, error),
        };
        let registry = match SaRegistry::open(set) {
            Ok(registry) => registry,
            Err(error) => return self.tell(FindingKind::Attributes, 1, error.to_string()),
        };
        let number = |key: &str| master.lookup_u64(key.as_bytes()).ok().flatten();
        let mut records: Vec<Record> = vec![];
        let mut owners = OwnerSums::default();
        let has_domains = number(master_node::FUID_TABLE).is_some_and(|id| id != 0);
        self.each_object(set, &mut |object| {
            match registry.attributes(object) {
                Ok(attributes) => match self.record(object, &attributes) {
                    Ok(record) => {
                        self.judge_owner(object, &attributes, has_domains);
                        records.push(record);
                    }
                    Err(error) => {
                        self.tell(FindingKind::Attributes, object.id().0, error);
                    }
                },
                Err(SaError::NotAFile { .. }) => {}
                Err(error) => {
                    self.tell(FindingKind::Attributes, object.id().0, error.to_string());
                }
            }
            owners.add(object);
        });
        owners.judge(set, &self.node.name, self.findings);
        let unlinked = number(master_node::DELETE_QUEUE).and_then(|id| ObjectId(id).some());
        self.judge_unlinked(set, unlinked, &mut records);
        for at in 0..records.len() {
            if records[at].kind == FileKind::Directory {
                self.directory(set, at, &mut records);
            }
            let xattr = records[at].xattr;
            if xattr != 0 {
                self.xattr_directory(at, xattr, &mut records);
            }
        }
        let root = number(master_node::ROOT).unwrap_or(0);
        if find(&records, root).is_none_or(|at| records[at].kind != FileKind::Directory) {
            self.tell(
                FindingKind::MissingObject,
                root,
                "the root directory is not there",
            );
        }
        for record in &records {
            self.judge(record, root);
        }
        for key in master_node::QUOTAS
            .iter()
            .chain(&master_node::OBJECT_QUOTAS)
        {
            if let Some(id) = number(key).and_then(|id| ObjectId(id).some()) {
                self.judge_quotas(set, id);
            }
        }
    }

    fn record(&self, object: &ObjectView, attributes: &Attributes) -> Result<Record, String> {
        let words = |error: SaError| error.to_string();
        let mode = attributes.mode().map_err(words)?;
        let kind = FileKind::from_mode(mode)
            .ok_or_else(|| format!("the mode {mode:o} is of no kind of file"))?;
        let size = attributes.size().map_err(words)?;
        if attributes.generation().map_err(words)? == 0 {
            return Err("generation 0".into());
        }
        let flags = attributes.flags().map_err(words)?;
        if flags.contains(FileFlags::PROJECT_ID)
            != attributes.project_id().map_err(words)?.is_some()
        {
            return Err("its flags and its project contradict each other".into());
        }
        attributes.acl().map_err(words)?;
        attributes.crtime().map_err(words)?;
        match kind {
            FileKind::Regular => self.judge_length(FindingKind::FileSize, object, size),
            FileKind::Symlink => {
                let target = attributes.symlink_target().map_err(words)?;
                let length = target.map_or(0, |target| target.len() as u64);
                if length != size {
                    let detail = format!("a link of {size} bytes, whose target has {length}");
                    self.tell(FindingKind::FileSize, object.id().0, detail);
                }
            }
            _ => {}
        }
        Ok(Record {
            id: object.id().0,
            kind,
            is_xattr: flags.contains(FileFlags::XATTR),
            is_waiting: false,
            parent_has_it: false,
            links: attributes.links().map_err(words)?,
            parent: attributes.parent().map_err(words)?.0,
            xattr: ObjectId::number(attributes.xattr_directory().map_err(words)?),
            size,
            names: 0,
            entries: 0,
            subdirectories: 0,
            xattr_owners: 0,
        })
    }

    fn judge_owner(&self, object: &ObjectView, attributes: &Attributes, has_domains: bool) {
        let owners = [attributes.uid(), attributes.gid()];
        let is_foreign = owners
            .iter()
            .any(|owner| owner.as_ref().is_ok_and(|owner| owner.posix().is_none()));
        if is_foreign && !has_domains {
            let detail = "its owner is of a domain, and there is no table of domains";
            self.tell(FindingKind::ForeignOwner, object.id().0, detail);
        }
    }

    fn judge_unlinked(
        &self,
        set: &Arc<ObjectSetView>,
        unlinked: Option<ObjectId>,
        records: &mut [Record],
    ) {
        let Some(id) = unlinked else { return };
        let zap = set
            .object(id)
            .map_err(|error| error.to_string())
            .and_then(|object| Zap::open(object).map_err(|error| error.to_string()));
        let zap = match zap {
            Ok(zap) => zap,
            Err(error) => return self.tell(FindingKind::MissingObject, id.0, error),
        };
        for entry in zap.iter().flatten() {
            let object = entry.value.first().unwrap_or(0);
            if hex_key_number(&entry.name) != Some(object) {
                let detail = format!("file {object} waits under another number");
                self.tell(FindingKind::UnlinkedSet, id.0, detail);
            }
            // An entry for a file that no longer exists is harmless: draining the set skips it.
            if let Some(at) = find(records, object) {
                records[at].is_waiting = true;
            }
        }
    }

    /// Checks the entries of a directory.
    fn directory(&self, set: &Arc<ObjectSetView>, at: usize, records: &mut [Record]) {
        let id = records[at].id;
        let Ok(zap) = set
            .object(ObjectId(id))
            .map_err(drop)
            .and_then(|object| Zap::open(object).map_err(drop))
        else {
            // The check of tables has already reported this, except for a directory without any block.
            return;
        };
        let is_xattr = records[at].is_xattr;
        let (mut entries, mut subdirectories) = (0u64, 0u64);
        for entry in zap.iter().flatten() {
            entries += 1;
            let value = entry.value.first().unwrap_or(0);
            let (object, number) = (value & 0xffff_ffff_ffff, value >> 60);
            let name = || entry.name.escape_ascii().to_string();
            let Some(target) = find(records, object) else {
                let detail = format!(
                    "its entry '{}' leads to object {object}, which is no file",
                    name()
                );
                self.tell(FindingKind::DanglingEntry, id, detail);
                continue;
            };
            let target = &mut records[target];
            if number != 0 && number != target.kind.entry_type() {
                let detail = format!(
                    "its entry '{}' says kind {number}, object {object} is of kind {}",
                    name(),
                    target.kind.entry_type()
                );
                self.tell(FindingKind::EntryKind, id, detail);
            }
            target.names += 1;
            if target.parent == id {
                target.parent_has_it = true;
            }
            if target.kind == FileKind::Directory {
                subdirectories += 1;
                if is_xattr {
                    let detail = format!("its entry '{}' is a directory", name());
                    self.tell(FindingKind::XattrDirectory, id, detail);
                }
            }
        }
        records[at].entries = entries;
        records[at].subdirectories = subdirectories;
    }

    fn xattr_directory(&self, at: usize, xattr: u64, records: &mut [Record]) {
        let owner = records[at].id;
        let Some(directory) = find(records, xattr) else {
            let detail = format!("its extended attributes are object {xattr}, which is no file");
            return self.tell(FindingKind::XattrDirectory, owner, detail);
        };
        let directory = &mut records[directory];
        directory.xattr_owners += 1;
        if directory.kind != FileKind::Directory || !directory.is_xattr {
            let detail = format!("object {xattr} is no directory of extended attributes");
            self.tell(FindingKind::XattrDirectory, owner, detail);
        } else if directory.parent != owner {
            let detail = format!(
                "its directory of extended attributes, object {xattr}, belongs to object {}",
                directory.parent
            );
            self.tell(FindingKind::XattrDirectory, owner, detail);
        }
    }

    fn judge(&self, record: &Record, root: u64) {
        let id = record.id;
        let tell = |kind, detail: String| self.tell(kind, id, detail);
        let is_root = id == root;
        let is_directory = record.kind == FileKind::Directory;
        let is_xattr_directory = is_directory && record.is_xattr;
        if record.is_waiting {
            if record.names > 0 || is_root {
                let detail = format!("it waits to be deleted and has {} names", record.names);
                tell(FindingKind::UnlinkedSet, detail);
            } else if record.links > 0 {
                let detail = format!("it waits to be deleted with {} links", record.links);
                tell(FindingKind::UnlinkedSet, detail);
            }
            return;
        }
        if is_directory {
            if record.size != record.entries + 2 {
                let detail = format!("size {}, it has {} entries", record.size, record.entries);
                tell(FindingKind::DirectorySize, detail);
            }
            if record.links != record.subdirectories + 2 {
                let detail = format!(
                    "{} links, it has {} directories",
                    record.links, record.subdirectories
                );
                tell(FindingKind::DirectorySize, detail);
            }
        } else if record.links != record.names && record.names > 0 {
            let detail = format!("{} links, {} names", record.links, record.names);
            tell(FindingKind::LinkCount, detail);
        }
        if is_root {
            if record.parent != id || record.names > 0 {
                let detail = format!("the root directory's parent is object {}", record.parent);
                tell(FindingKind::ParentLink, detail);
            }
        } else if is_xattr_directory {
            if record.xattr_owners != 1 {
                let detail = format!("{} files have it as their attributes", record.xattr_owners);
                tell(FindingKind::XattrDirectory, detail);
            }
        } else if record.names == 0 {
            let detail = format!("nothing names it, and it has {} links", record.links);
            tell(FindingKind::Orphan, detail);
        } else if is_directory && record.names > 1 {
            tell(
                FindingKind::LinkCount,
                format!("a directory with {} names", record.names),
            );
        } else if is_directory && !record.parent_has_it {
            let detail = format!(
                "its parent is said to be object {}, which does not have it",
                record.parent
            );
            tell(FindingKind::ParentLink, detail);
        }
    }

    fn judge_quotas(&self, set: &Arc<ObjectSetView>, id: ObjectId) {
        let object = match set.object(id) {
            Ok(object) if object.dnode().object_type == ObjectType::USER_GROUP_QUOTA => object,
            Ok(_) => {
                return self.tell(FindingKind::Quota, id.0, "the object is no table of quotas");
            }
            Err(error) => return self.tell(FindingKind::Quota, id.0, error.to_string()),
        };
        let Ok(zap) = Zap::open(object) else { return };
        for entry in zap.iter().flatten() {
            if hex_key_number(&entry.name).is_none() {
                let detail = format!("'{}' is no owner", entry.name.escape_ascii());
                self.tell(FindingKind::Quota, id.0, detail);
            }
        }
    }
}

/// The index of a file in the records, which are ordered by id.
fn find(records: &[Record], id: u64) -> Option<usize> {
    records.binary_search_by_key(&id, |record| record.id).ok()
}
