//! Which nodes are in memory: every one that somebody holds, and some that were used of late.

use super::error::FileError;
use super::node::NodeInner;
use millpond_env::sync::{Arc, Condvar, Mutex, Weak};
use millpond_ondisk::ObjectId;
use std::collections::{HashMap, VecDeque};

const SHARDS: usize = 16;
/// Nodes that one shard keeps although nobody holds them.
const RECENT_MAX: usize = 256;

/// Nodes by object number. For each number there is at most one node in memory. Nothing is read or
/// dropped under a shard's lock.
#[derive(Debug, Default)]
pub(crate) struct NodeCache {
    shards: [Shard; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    slots: Mutex<Slots>,
    loaded: Condvar,
}

#[derive(Debug, Default)]
struct Slots {
    by_id: HashMap<ObjectId, Slot>,
    /// The most recently loaded ones.
    recent: VecDeque<Arc<NodeInner>>,
}

#[derive(Debug)]
enum Slot {
    /// Somebody is reading it.
    Loading,
    Known(Weak<NodeInner>),
}

/// The right to put one node into the cache; dropped without one, others may try.
#[derive(Debug)]
pub(crate) struct Reservation<'c> {
    cache: &'c NodeCache,
    id: ObjectId,
    is_used: bool,
}

impl NodeCache {
    fn shard(&self, id: ObjectId) -> &Shard {
        &self.shards[(id.0 % SHARDS as u64) as usize]
    }

    /// The node, or the right to load it. Waits while somebody else loads it.
    pub(crate) fn get(&self, id: ObjectId) -> Result<Arc<NodeInner>, Reservation<'_>> {
        let shard = self.shard(id);
        let mut slots = shard.slots.lock();
        loop {
            match slots.by_id.get(&id) {
                Some(Slot::Loading) => shard.loaded.wait(&mut slots),
                Some(Slot::Known(node)) => match node.upgrade() {
                    Some(node) => return Ok(node),
                    None => break,
                },
                None => break,
            }
        }
        slots.by_id.insert(id, Slot::Loading);
        Err(Reservation {
            cache: self,
            id,
            is_used: false,
        })
    }

    /// The right to put in the node of an object that was just made.
    ///
    /// # Errors
    /// [`FileError::Stale`] if a node of that number is still held, which no right use can bring about:
    /// numbers are used again only after their object was freed.
    pub(crate) fn reserve(&self, id: ObjectId) -> Result<Reservation<'_>, FileError> {
        match self.get(id) {
            Err(reservation) => Ok(reservation),
            Ok(_) => Err(FileError::Stale),
        }
    }

    /// Stops keeping a node that nobody else holds.
    pub(crate) fn release(&self, id: ObjectId) {
        let mut slots = self.shard(id).slots.lock();
        let kept = slots.recent.iter().position(|node| node.id == id);
        let released = kept.and_then(|at| slots.recent.remove(at));
        drop(slots);
        drop(released);
    }

    /// Removes what a dropped node left behind.
    pub(crate) fn forget(&self, id: ObjectId) {
        let mut slots = self.shard(id).slots.lock();
        if let Some(Slot::Known(node)) = slots.by_id.get(&id)
            && node.strong_count() == 0
        {
            slots.by_id.remove(&id);
        }
    }

    /// Keeps only nodes that somebody holds.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let released = std::mem::take(&mut shard.slots.lock().recent);
            drop(released);
        }
    }
}

impl Reservation<'_> {
    /// Puts the node in, for everybody to find.
    pub(crate) fn fill(mut self, node: &Arc<NodeInner>) {
        let shard = self.cache.shard(self.id);
        let mut slots = shard.slots.lock();
        let known = Slot::Known(Arc::downgrade(node));
        slots.by_id.insert(self.id, known);
        slots.recent.push_back(Arc::clone(node));
        let evicted = if slots.recent.len() > RECENT_MAX {
            slots.recent.pop_front()
        } else {
            None
        };
        drop(slots);
        self.is_used = true;
        shard.loaded.notify_all();
        drop(evicted);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            let shard = self.cache.shard(self.id);
            shard.slots.lock().by_id.remove(&self.id);
            shard.loaded.notify_all();
        }
    }
}
