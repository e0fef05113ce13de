//! The node cache: all nodes in use, and some recently loaded ones.

use crate::error::FileError;
use crate::open_node::NodeInner;
use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex, Weak};
use millpond_ondisk::ObjectId;
use std::collections::{HashMap, VecDeque};

const SHARDS: usize = 16;
/// The number of unused nodes that one shard keeps.
const RECENT_MAX: usize = 256;

/// Nodes by object id. There is at most one node in memory for each id. A shard's lock is never held while a
/// node is read or dropped.
#[derive(Debug, Default)]
pub(crate) struct NodeCache {
    shards: [Shard; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    slots: Mutex<Slots, rank::Leaf>,
    loaded: Condvar,
}

#[derive(Debug, Default)]
struct Slots {
    by_id: HashMap<ObjectId, Slot>,
    /// The most recently loaded nodes.
    recent: VecDeque<Arc<NodeInner>>,
}

#[derive(Debug)]
enum Slot {
    /// A thread is loading it.
    Loading,
    Known(Weak<NodeInner>),
}

/// The right to insert one node. Dropping it unused lets other threads try.
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

    /// Returns the node, or the right to load it. Waits while another thread loads it.
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

    /// Reserves the id of a newly created object.
    ///
    /// # Errors
    /// [`FileError::Stale`] if a node with that id is still in use. This cannot happen in correct operation,
    /// because ids are reused only after their object was freed.
    pub(crate) fn reserve(&self, id: ObjectId) -> Result<Reservation<'_>, FileError> {
        match self.get(id) {
            Err(reservation) => Ok(reservation),
            Ok(_) => Err(FileError::Stale),
        }
    }

    /// Stops keeping a node that is not in use.
    pub(crate) fn release(&self, id: ObjectId) {
        let mut slots = self.shard(id).slots.lock();
        let kept = slots.recent.iter().position(|node| node.id == id);
        let released = kept.and_then(|at| slots.recent.remove(at));
        drop(slots);
        drop(released);
    }

    /// Removes the entry of a dropped node.
    pub(crate) fn forget(&self, id: ObjectId) {
        let mut slots = self.shard(id).slots.lock();
        if let Some(Slot::Known(node)) = slots.by_id.get(&id)
            && node.strong_count() == 0
        {
            slots.by_id.remove(&id);
        }
    }

    /// Keeps only nodes that are in use.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let released = std::mem::take(&mut shard.slots.lock().recent);
            drop(released);
        }
    }
}

impl Reservation<'_> {
    /// Inserts the node and makes it visible to all threads.
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
