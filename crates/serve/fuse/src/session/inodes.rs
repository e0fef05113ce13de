//! Tracks which files the kernel knows.

use foldhash::quality::RandomState;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_posix::FileError;
use millpond_posix::vfs::{InodeNumber, Vfs, VfsNode};
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
    node: Option<VfsNode>,
    /// Whether the file has capabilities that a write must remove; `None` if not looked up yet.
    has_capabilities: Option<bool>,
}

impl Shard {
    /// Holds a node. Returns the node that it displaces, which must be dropped without the lock.
    fn hold(&mut self, number: InodeNumber, node: VfsNode) -> Option<VfsNode> {
        let known = self.known.get_mut(&number)?;
        let before = known.node.replace(node);
        if before.is_some() {
            return before;
        }
        self.held.push_back(number);
        if self.held.len() <= HELD_MAX {
            return None;
        }
        let oldest = self.held.pop_front()?;
        let oldest = self.known.get_mut(&oldest)?;
        // A file without a name lives only as long as it is held.
        match &oldest.node {
            Some(node) if node.is_unlinked() => None,
            _ => oldest.node.take(),
        }
    }
}

impl Inodes {
    fn shard(&self, number: InodeNumber) -> &Mutex<Shard, rank::Leaf> {
        &self.shards[(number.0 % SHARDS as u64) as usize]
    }

    /// Counts one more lookup by the kernel.
    pub fn add(&self, node: &VfsNode) {
        let number = node.number();
        let mut shard = self.shard(number).lock();
        let known = shard.known.entry(number).or_insert(Known {
            lookups: 0,
            generation: node.generation(),
            node: None,
            has_capabilities: None,
        });
        known.lookups += 1;
        let is_other = known.generation != node.generation();
        known.generation = node.generation();
        let dropped = match known.node.is_none() || is_other {
            true => shard.hold(number, node.clone()),
            false => None,
        };
        drop(shard);
        drop(dropped);
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
        let dropped = self.shard(number).lock().hold(number, node.clone());
        drop(dropped);
        Ok(node)
    }

    /// Holds a file whose last name was removed, as long as the kernel knows it.
    pub fn keep_unlinked(&self, node: &VfsNode) {
        if node.is_unlinked() {
            let number = node.number();
            let dropped = self.shard(number).lock().hold(number, node.clone());
            drop(dropped);
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

    /// The numbers of all files that the kernel knows.
    pub fn numbers(&self) -> Vec<InodeNumber> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| shard.lock().known.keys().copied().collect::<Vec<_>>())
            .collect()
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
