//! Tracks which files the kernel knows.

use foldhash::quality::RandomState;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_posix::vfs::{InodeNumber, Vfs, VfsNode};
use millpond_posix::{FileError, FileKind};
use std::collections::{HashMap, VecDeque};

const SHARDS: usize = 16;
/// The most files of one shard that are held open at once. Other files that the kernel knows are opened again
/// when a request needs them.
const HELD_MAX: usize = 2048;

/// Every file that the kernel knows, with its lookup count.
///
/// A file that is not held costs a few hundred bytes, less than what the kernel itself keeps for it. The
/// kernel's memory therefore bounds this table.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    shards: [Mutex<Shard, rank::Leaf>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    known: HashMap<InodeNumber, Known, RandomState>,
    /// The held files, oldest first. It may still contain the numbers of forgotten files.
    held: VecDeque<InodeNumber>,
}

#[derive(Debug)]
struct Known {
    lookups: u64,
    generation: u64,
    is_directory: bool,
    /// Whether the kernel was told attributes whose space usage changes with the next txg.
    is_unsettled: bool,
    node: Option<VfsNode>,
    /// Whether the file has capabilities that a write must remove; `None` if not looked up yet.
    has_capabilities: Option<bool>,
}

/// A file that the kernel knows.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownFile {
    pub number: InodeNumber,
    pub generation: u64,
    pub is_directory: bool,
}

fn is_directory(node: &VfsNode) -> bool {
    node.kind() == FileKind::Directory
}

impl Shard {
    /// Holds a node. Returns the one that was held before, which must be dropped without the lock, and one that should be
    /// closed instead.
    fn hold(&mut self, number: InodeNumber, node: VfsNode) -> Displaced {
        let mut displaced = Displaced::default();
        let Some(known) = self.known.get_mut(&number) else {
            return displaced;
        };
        displaced.before = known.node.replace(node);
        if displaced.before.is_some() {
            return displaced;
        }
        self.held.push_back(number);
        if self.held.len() > HELD_MAX
            && let Some(oldest) = self.held.pop_front()
        {
            let known = self.known.get(&oldest);
            displaced.oldest = known.and_then(|known| Some((oldest, known.node.clone()?)));
        }
        displaced
    }
}

#[derive(Default)]
struct Displaced {
    before: Option<VfsNode>,
    oldest: Option<(InodeNumber, VfsNode)>,
}

impl Inodes {
    fn hold(&self, number: InodeNumber, node: VfsNode) {
        let displaced = self.shard(number).lock().hold(number, node);
        self.close(displaced);
    }

    /// Closes displaced files. A file without a name lives only as long as it is held, so it stays.
    fn close(&self, displaced: Displaced) {
        let Displaced { before, oldest } = displaced;
        drop(before);
        if let Some((number, node)) = oldest
            && !node.is_unlinked()
        {
            let mut shard = self.shard(number).lock();
            let closed = (shard.known.get_mut(&number)).and_then(|known| known.node.take());
            drop(shard);
            // It may have lost its last name meanwhile, and this may be what keeps it.
            if let Some(node) = closed.filter(VfsNode::is_unlinked) {
                self.hold(number, node);
            }
        }
    }

    fn shard(&self, number: InodeNumber) -> &Mutex<Shard, rank::Leaf> {
        &self.shards[(number.0 % SHARDS as u64) as usize]
    }

    /// Counts one more lookup by the kernel.
    pub fn add(&self, node: &VfsNode) {
        let (number, is_unsettled) = (node.number(), !node.is_settled());
        let mut shard = self.shard(number).lock();
        let known = shard.known.entry(number).or_insert(Known {
            lookups: 0,
            generation: node.generation(),
            is_directory: is_directory(node),
            is_unsettled: false,
            node: None,
            has_capabilities: None,
        });
        known.lookups += 1;
        let is_other = known.generation != node.generation();
        known.generation = node.generation();
        known.is_directory = is_directory(node);
        known.is_unsettled |= is_unsettled;
        let displaced = match known.node.is_none() || is_other {
            true => shard.hold(number, node.clone()),
            false => Displaced::default(),
        };
        drop(shard);
        self.close(displaced);
    }

    /// Returns the file with a number that the kernel knows.
    pub fn get(&self, vfs: &dyn Vfs, number: InodeNumber) -> Result<VfsNode, FileError> {
        let shard = self.shard(number).lock();
        let generation = match shard.known.get(&number) {
            Some(known) => match &known.node {
                Some(node) => return Ok(node.clone()),
                None => known.generation,
            },
            None => return Err(FileError::Stale),
        };
        drop(shard);
        let node = vfs.node(number, generation)?;
        self.hold(number, node.clone());
        Ok(node)
    }

    /// Holds a file whose last name was removed, as long as the kernel knows it.
    pub fn keep_unlinked(&self, node: &VfsNode) {
        if node.is_unlinked() {
            self.hold(node.number(), node.clone());
        }
    }

    /// Subtracts `lookups` from a file's lookup count. Returns the held file if the count drops to 0.
    pub fn forget(&self, number: InodeNumber, lookups: u64) -> Option<VfsNode> {
        let mut shard = self.shard(number).lock();
        let known = shard.known.get_mut(&number)?;
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return None;
        }
        let gone = shard.known.remove(&number)?;
        // Remove the numbers of forgotten files when there are too many of them.
        let shard = &mut *shard;
        if shard.held.len() > HELD_MAX / 2 && shard.held.len() > 2 * shard.known.len() {
            shard.held.retain(|number| shard.known.contains_key(number));
        }
        gone.node
    }

    /// Whether the file has capabilities; `None` if that is unknown.
    pub fn capabilities(&self, number: InodeNumber) -> Option<bool> {
        let shard = self.shard(number).lock();
        shard.known.get(&number)?.has_capabilities
    }
    /// Records whether the file has capabilities; `None` means that it must be looked up again.
    pub fn note_capabilities(&self, number: InodeNumber, has_some: Option<bool>) {
        let mut shard = self.shard(number).lock();
        if let Some(known) = shard.known.get_mut(&number) {
            known.has_capabilities = has_some;
        }
    }

    /// Closes all held files.
    pub fn release_all(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.held.clear();
            let nodes = shard.known.values_mut();
            let nodes: Vec<_> = nodes
                .filter_map(|known| {
                    known.has_capabilities = None;
                    known.node.take()
                })
                .collect();
            drop(shard);
            drop(nodes);
        }
    }

    /// Takes another file as the one that the kernel knows under this number, with as many lookups.
    pub fn replace(&self, node: &VfsNode) {
        let number = node.number();
        let mut shard = self.shard(number).lock();
        let known = shard.known.entry(number).or_insert(Known {
            lookups: 1,
            generation: node.generation(),
            is_directory: is_directory(node),
            is_unsettled: false,
            node: None,
            has_capabilities: None,
        });
        known.generation = node.generation();
        known.is_directory = is_directory(node);
    }

    /// All files that the kernel knows.
    pub fn known(&self) -> Vec<KnownFile> {
        let shards = self.shards.iter();
        let of_shard = |shard: &Mutex<Shard, rank::Leaf>| {
            let shard = shard.lock();
            let files = shard.known.iter().map(|(number, known)| KnownFile {
                number: *number,
                generation: known.generation,
                is_directory: known.is_directory,
            });
            files.collect::<Vec<_>>()
        };
        shards.flat_map(of_shard).collect()
    }
    /// The numbers of all files that the kernel knows.
    pub fn numbers(&self) -> Vec<InodeNumber> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| shard.lock().known.keys().copied().collect::<Vec<_>>())
            .collect()
    }
    /// Notes that the kernel is told attributes of a file whose space usage changes with the next txg.
    pub fn note_unsettled(&self, number: InodeNumber) {
        if let Some(known) = self.shard(number).lock().known.get_mut(&number) {
            known.is_unsettled = true;
        }
    }
    /// The files that were noted as unsettled, each once.
    pub fn take_unsettled(&self) -> Vec<InodeNumber> {
        let mut taken = vec![];
        for shard in &self.shards {
            let mut shard = shard.lock();
            let unsettled = shard.known.iter_mut().filter(|(_, k)| k.is_unsettled);
            taken.extend(unsettled.map(|(number, known)| {
                known.is_unsettled = false;
                *number
            }));
        }
        taken
    }
    /// The number of files that the kernel knows.
    pub fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().known.len())
            .sum()
    }
    /// Forgets all files.
    pub fn clear(&self) {
        for shard in &self.shards {
            let gone = std::mem::take(&mut *shard.lock());
            drop(gone);
        }
    }
}
