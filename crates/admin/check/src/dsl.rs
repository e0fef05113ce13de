//! The tree of directories with their chains of datasets. Reads it and checks its links.
//!
//! Takes about a kilobyte per dataset and snapshot.

use super::Findings;
use super::finding::{Finding, FindingKind};
use super::objects::References;
use super::trees::DatasetTree;
use millpond_dataset::{Dataset, DatasetError, Directory};
use millpond_env::sync::Arc;
use millpond_object::ObjectView;
use millpond_ondisk::dsl::{hex_key_number, keys};
use millpond_ondisk::{
    BlockPointer, DslDatasetFlags, DslDatasetPhys, ObjectId, ObjectType, PoolVersion, Txg,
};
use millpond_pool::PoolView;
use millpond_zap::Zap;
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub(super) struct DatasetNode {
    pub(super) id: ObjectId,
    pub(super) name: String,
    pub(super) phys: DslDatasetPhys,
    pub(super) dataset: Dataset,
    pub(super) directory: usize,
    /// The previous dataset, in its own chain or that of its origin.
    pub(super) previous: Option<usize>,
    /// The next dataset in its chain.
    pub(super) next: Option<usize>,
}

pub(super) struct DirectoryNode {
    pub(super) directory: Arc<Directory>,
    pub(super) component: String,
    pub(super) children: Vec<usize>,
    /// Oldest first, the head last; empty for directories without a head.
    pub(super) chain: Vec<usize>,
}

pub(super) struct Dsl {
    pub(super) directories: Vec<DirectoryNode>,
    pub(super) datasets: Vec<DatasetNode>,
    /// Something could not be read, so the statistics that include it cannot be checked.
    pub(super) is_partial: bool,
}

struct Gatherer<'a> {
    pool: &'a Arc<PoolView>,
    findings: &'a Findings<'a>,
    references: &'a References,
    dsl: Dsl,
}

impl Dsl {
    /// Reads all directories and datasets.
    ///
    /// # Errors
    /// If there is no root directory.
    pub(super) fn gather(
        pool: &Arc<PoolView>,
        findings: &Findings<'_>,
        references: &References,
    ) -> Result<Self, DatasetError> {
        let root = Directory::root(pool)?;
        let mut gatherer = Gatherer {
            pool,
            findings,
            references,
            dsl: Self {
                directories: vec![],
                datasets: vec![],
                is_partial: false,
            },
        };
        gatherer.directories(root);
        for at in 0..gatherer.dsl.directories.len() {
            gatherer.chain(at);
        }
        gatherer.link();
        gatherer.judge_origins();
        Ok(gatherer.dsl)
    }

    /// The tree to traverse for a dataset.
    pub(super) fn tree(&self, at: usize) -> DatasetTree {
        let node = &self.datasets[at];
        let previous = node.previous.map(|at| &self.datasets[at].phys);
        let origin = self.directories[node.directory].directory.phys().origin;
        let origin = origin.and_then(|id| self.datasets.iter().find(|other| other.id == id));
        DatasetTree {
            name: node.name.clone(),
            dataset: node.id.0,
            root: node.phys.block_pointer,
            previous_root: previous.map_or(BlockPointer::default(), |phys| phys.block_pointer),
            born_after: node.phys.previous_snapshot_txg,
            origin_txg: origin.map_or(Txg(0), |origin| origin.phys.creation_txg),
            unique_after: previous.map_or(Txg(0), |phys| phys.previous_snapshot_txg),
            has_log: node.next.is_none() && !node.phys.is_snapshot(),
        }
    }
}

fn phys_of(object: &ObjectView) -> Result<DslDatasetPhys, String> {
    if object.dnode().bonus_type != ObjectType::DSL_DATASET {
        return Err("the object is not a dataset".into());
    }
    let bonus = object.bonus().map_err(|error| error.to_string())?;
    DslDatasetPhys::decode(bonus, object.dnode().endian).map_err(|error| error.to_string())
}

impl Gatherer<'_> {
    fn tell(&self, kind: FindingKind, name: &str, detail: impl Into<String>) {
        self.findings.add(Finding::new(kind, detail).of(name));
    }

    fn directories(&mut self, root: Arc<Directory>) {
        let component = root.name().to_owned();
        let mut stack = vec![(None, component, root)];
        while let Some((parent, component, directory)) = stack.pop() {
            let at = self.dsl.directories.len();
            if let Some(parent) = parent {
                let parent: &mut DirectoryNode = &mut self.dsl.directories[parent];
                parent.children.push(at);
            }
            let (name, phys) = (directory.name().to_owned(), directory.phys().clone());
            self.references.note(directory.id(), "a directory");
            for (id, what) in [
                (phys.child_directories, "a table of directories"),
                (phys.properties, "a table of properties"),
                (phys.delegation, "a table of permissions"),
                (phys.clones, "a table of clones"),
            ] {
                self.references.note(ObjectId(ObjectId::number(id)), what);
            }
            if let Ok(Some(words)) = directory.extension(keys::CRYPTO_KEY_OBJECT)
                && let Some(id) = words.first()
            {
                self.references.note(ObjectId(*id), "an encryption key");
            }
            match directory.child_entries() {
                Ok(children) => {
                    for (component, id) in children.into_iter().rev() {
                        match directory.open_child(&component, id) {
                            Ok(child) => stack.push((Some(at), component, child)),
                            Err(error) => {
                                self.dsl.is_partial = true;
                                self.tell(
                                    FindingKind::DirectoryTree,
                                    &name,
                                    format!("its child '{component}': {error}"),
                                );
                            }
                        }
                    }
                }
                Err(error) => {
                    self.dsl.is_partial = true;
                    self.tell(FindingKind::DirectoryTree, &name, error.to_string());
                }
            }
            self.dsl.directories.push(DirectoryNode {
                directory,
                component,
                children: vec![],
                chain: vec![],
            });
        }
    }

    /// Follows the chain from a directory's head to its oldest snapshot.
    fn chain(&mut self, at: usize) {
        let directory = Arc::clone(&self.dsl.directories[at].directory);
        let name = directory.name().to_owned();
        let head = match directory.head() {
            Ok(None) => return,
            Ok(Some(head)) => head,
            Err(error) => {
                self.dsl.is_partial = true;
                return self.tell(FindingKind::MissingObject, &name, error.to_string());
            }
        };
        if head.phys().directory != directory.id() {
            let words = "its head belongs to another directory";
            self.tell(FindingKind::DirectoryTree, &name, words);
        }
        let mut names = self.snapshot_names(&head);
        let mut met = BTreeSet::from([head.id()]);
        let mut chain = vec![(head.clone(), head.phys().clone())];
        while let Some((last, phys)) = chain.last() {
            let (last_id, last_name) = (last.id(), last.name().to_owned());
            let (previous_txg, Some(previous)) =
                (phys.previous_snapshot_txg, phys.previous_snapshot)
            else {
                break;
            };
            let object = self.pool.mos().object(previous);
            let before = object
                .map_err(|error| error.to_string())
                .and_then(|object| phys_of(&object));
            let before = match before {
                Ok(before) => before,
                Err(error) => {
                    self.dsl.is_partial = true;
                    let words = format!("its previous snapshot, object {previous}: {error}");
                    self.tell(FindingKind::SnapshotChain, &last_name, words);
                    break;
                }
            };
            if before.creation_txg != previous_txg {
                let words = format!(
                    "the snapshot before is said to be of txg {previous_txg} and is of {}",
                    before.creation_txg
                );
                self.tell(FindingKind::SnapshotChain, &last_name, words);
            }
            if before.directory != directory.id() {
                break;
            }
            if before.next_snapshot != Some(last_id) {
                let words = format!(
                    "the snapshot before it (object {previous}) has another next one: {}",
                    ObjectId::number(before.next_snapshot)
                );
                self.tell(FindingKind::SnapshotChain, &last_name, words);
            }
            if !met.insert(previous) {
                let words = "its snapshots form a cycle";
                self.tell(FindingKind::SnapshotChain, &last_name, words);
                self.dsl.is_partial = true;
                break;
            }
            let known = names.remove(&previous);
            if known.is_none() {
                let words =
                    format!("its snapshot of txg {previous_txg} (object {previous}) has no name");
                self.tell(FindingKind::SnapshotName, head.name(), words);
            }
            let snapshot = known.unwrap_or_else(|| format!("%{previous}"));
            match head.open_snapshot(&snapshot, previous) {
                Ok(opened) => chain.push((opened, before)),
                Err(error) => {
                    self.dsl.is_partial = true;
                    self.tell(FindingKind::SnapshotChain, &name, error.to_string());
                    break;
                }
            }
        }
        for (id, snapshot) in names {
            let words = format!("'{snapshot}' names object {id}, which is no snapshot of it");
            self.tell(FindingKind::SnapshotName, &name, words);
        }
        chain.reverse();
        self.add_chain(at, chain);
    }

    /// The names of a head's snapshots, by object id.
    fn snapshot_names(&mut self, head: &Dataset) -> BTreeMap<ObjectId, String> {
        let mut names: BTreeMap<ObjectId, String> = BTreeMap::new();
        match head.snapshot_entries() {
            Ok(entries) => {
                for (name, id) in entries {
                    if let Some(twin) = names.insert(id, name.clone()) {
                        let words = format!("the names '{name}' and '{twin}' are one snapshot's");
                        self.tell(FindingKind::SnapshotName, head.name(), words);
                    }
                }
            }
            Err(error) => {
                self.dsl.is_partial = true;
                self.tell(FindingKind::SnapshotName, head.name(), error.to_string());
            }
        }
        names
    }

    /// Adds the datasets of a directory, oldest first.
    fn add_chain(&mut self, at: usize, chain: Vec<(Dataset, DslDatasetPhys)>) {
        for (dataset, phys) in chain {
            let index = self.dsl.datasets.len();
            self.note_dataset(&dataset, &phys);
            self.dsl.directories[at].chain.push(index);
            self.dsl.datasets.push(DatasetNode {
                id: dataset.id(),
                name: dataset.name().to_owned(),
                phys,
                dataset,
                directory: at,
                previous: None,
                next: None,
            });
        }
    }

    fn note_dataset(&self, dataset: &Dataset, phys: &DslDatasetPhys) {
        self.references.note(dataset.id(), "a dataset");
        for (id, what) in [
            (phys.snapshot_names, "a table of snapshots"),
            (phys.deadlist, "a deadlist"),
            (phys.next_clones, "a table of clones"),
            (phys.properties, "a table of properties"),
            (phys.user_references, "a table of holds"),
        ] {
            self.references.note(ObjectId(ObjectId::number(id)), what);
        }
        if let Ok(Some(words)) = dataset.extension(keys::BOOKMARKS)
            && let Some(id) = words.first()
        {
            self.references.note(ObjectId(*id), "a table of bookmarks");
        }
    }

    fn link(&mut self) {
        let by_id: HashMap<ObjectId, usize> = (0..)
            .zip(&self.dsl.datasets)
            .map(|(at, node)| (node.id, at))
            .collect();
        for at in 0..self.dsl.datasets.len() {
            let previous = self.dsl.datasets[at].phys.previous_snapshot;
            self.dsl.datasets[at].previous = previous.and_then(|id| by_id.get(&id).copied());
        }
        for directory in &self.dsl.directories {
            for pair in directory.chain.windows(2) {
                self.dsl.datasets[pair[0]].next = Some(pair[1]);
            }
        }
        // An older dataset always has a smaller txg. Otherwise a cycle could make later computations endless.
        for at in 0..self.dsl.datasets.len() {
            let node = &self.dsl.datasets[at];
            let Some(before) = node.previous.map(|at| &self.dsl.datasets[at]) else {
                continue;
            };
            if before.phys.creation_txg >= node.phys.creation_txg && node.next.is_some() {
                let words = format!(
                    "of txg {}, and the snapshot before of txg {}",
                    node.phys.creation_txg, before.phys.creation_txg
                );
                let name = node.name.clone();
                self.tell(FindingKind::SnapshotChain, &name, words);
            }
        }
    }

    /// Checks clones against the tables in their origins, and holds.
    fn judge_origins(&self) {
        let dsl = &self.dsl;
        let mut clones: BTreeMap<usize, Vec<(ObjectId, ObjectId)>> = BTreeMap::new();
        for directory in &dsl.directories {
            let (Some(oldest), Some(head)) = (directory.chain.first(), directory.chain.last())
            else {
                continue;
            };
            let (oldest, head) = (&dsl.datasets[*oldest], &dsl.datasets[*head]);
            let origin = directory.directory.phys().origin;
            if oldest.phys.previous_snapshot != origin
                && (origin.is_some() || oldest.previous.is_some())
            {
                let words = format!(
                    "its origin is object {}, and its oldest snapshot follows object {}",
                    ObjectId::number(origin),
                    ObjectId::number(oldest.phys.previous_snapshot)
                );
                self.tell(FindingKind::SnapshotChain, &head.name, words);
            }
            if let Some(origin) = oldest.previous {
                clones.entry(origin).or_default().push((oldest.id, head.id));
            }
        }
        let none = vec![];
        for (at, node) in dsl.datasets.iter().enumerate() {
            let own = clones.get(&at).unwrap_or(&none);
            let is_snapshot = node.phys.is_snapshot();
            let expected = if is_snapshot { own.len() as u64 + 1 } else { 0 };
            let is_internal = node.name.contains("/$ORIGIN");
            if node.phys.children_count != expected && !is_internal && !dsl.is_partial {
                let words = format!(
                    "{} successors counted, it has {expected}",
                    node.phys.children_count
                );
                self.tell(FindingKind::SnapshotChain, &node.name, words);
            }
            self.judge_clone_tables(node, own, is_internal);
            self.judge_holds(node, own.len());
        }
    }

    fn numbers(&self, name: &str, table: Option<ObjectId>) -> Option<BTreeSet<u64>> {
        let Some(table) = table else {
            return Some(BTreeSet::new());
        };
        let object = self.pool.mos().object(table);
        let zap = object
            .map_err(|error| error.to_string())
            .and_then(|object| Zap::open(object).map_err(|error| error.to_string()));
        let zap = match zap {
            Ok(zap) => zap,
            Err(error) => {
                self.tell(FindingKind::Unreadable, name, error);
                return None;
            }
        };
        let mut numbers = BTreeSet::new();
        for entry in zap.iter() {
            let entry = entry.ok()?;
            let value = entry.value.first().unwrap_or(0);
            if hex_key_number(&entry.name) != Some(value) {
                let words = format!("table {table} has {value} under another key");
                self.tell(FindingKind::SnapshotChain, name, words);
            }
            numbers.insert(value);
        }
        Some(numbers)
    }

    fn judge_clone_tables(
        &self,
        node: &DatasetNode,
        own: &[(ObjectId, ObjectId)],
        is_internal: bool,
    ) {
        // Before version 11 a snapshot does not know its clones.
        let has_tables = PoolVersion(self.pool.version()).has_origin();
        if !has_tables && node.phys.next_clones.is_none() {
            return;
        }
        let Some(next) = self.numbers(&node.name, node.phys.next_clones) else {
            return;
        };
        // Old software kept no table of clones in the empty origin snapshot.
        if is_internal && next.is_empty() {
            return;
        }
        let expected: BTreeSet<u64> = own.iter().map(|(oldest, _)| oldest.0).collect();
        if next != expected && !self.dsl.is_partial && node.phys.is_snapshot() {
            let words = format!("its table of clones has {next:?}, its clones are {expected:?}");
            self.tell(FindingKind::SnapshotChain, &node.name, words);
        }
        let directory = self.dsl.directories[node.directory].directory.phys();
        if own.is_empty() {
            return;
        }
        let Some(heads) = self.numbers(&node.name, directory.clones) else {
            return;
        };
        for (_, head) in own {
            if !heads.contains(&head.0) && directory.clones.is_some() {
                let words = format!("its directory does not know the clone {head}");
                self.tell(FindingKind::SnapshotChain, &node.name, words);
            }
        }
    }

    fn judge_holds(&self, node: &DatasetNode, clones: usize) {
        let holds = match node.dataset.holds() {
            Ok(holds) => holds,
            Err(error) => return self.tell(FindingKind::Holds, &node.name, error.to_string()),
        };
        let is_deferred = node.phys.flags.contains(DslDatasetFlags::DEFER_DESTROY);
        if is_deferred && holds.is_empty() && clones == 0 {
            let words = "it waits to be destroyed, and nothing holds it";
            self.tell(FindingKind::Holds, &node.name, words);
        }
        if !node.phys.is_snapshot() && !holds.is_empty() {
            self.tell(FindingKind::Holds, &node.name, "a head is held");
        }
    }
}
