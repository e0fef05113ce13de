//! The topology of a store and of its views, and how it is replaced.

use super::BlockStore;
use crate::LeafCounters;
use crate::topology::Topology;
use millpond_env::rank;
use millpond_env::sync::{Arc, RwLock, Weak};
use millpond_vdev::Reflow;
use std::collections::HashSet;

/// A topology that may be replaced.
pub(super) type TopologyCell = RwLock<Arc<Topology>, rank::Topology>;

/// Views that have the leaves of their store.
#[derive(Debug, Default)]
pub(super) struct Followers {
    cells: Vec<Weak<TopologyCell>>,
    /// A copy of the leaves since they were replaced: who waits until nothing writes by an old topology does not wait for it.
    present: Option<Arc<Topology>>,
}

impl BlockStore {
    /// The current leaves.
    #[must_use]
    pub fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.read())
    }
    /// Replaces the leaves, for example by those of the trusted configuration in place of those of the
    /// labels.
    pub fn set_topology(&self, topology: Topology) {
        let mut topology = topology;
        if self.is_single_threaded() {
            // No other thread could make the requests.
            topology.deadline = None;
        }
        self.replace_topology(|_| topology);
    }
    /// Changes the current leaves, for instance what each has missed. Counters are kept.
    pub fn change_topology(&self, change: impl FnOnce(&mut Topology)) {
        self.replace_topology(|present| {
            let mut topology = present.clone();
            change(&mut topology);
            topology
        });
    }

    fn replace_topology(&self, new: impl FnOnce(&Topology) -> Topology) {
        let mut present = self.topology.write();
        let new = new(&present);
        if !self.is_view {
            note_left(&present.counters, &new.counters);
        }
        let old = std::mem::replace(&mut *present, Arc::new(new));
        drop(present);
        self.note_former(&old);
        drop(old);
        self.tell_followers();
    }

    /// Makes a view have the leaves of the store from now on, as they change. For views that stay open for long: without
    /// it, a view reads the disks that it knows, also after they left the pool and were written by others.
    ///
    /// Only for views of what is in the pool as long as they are open, such as snapshots: a new disk does not get what was
    /// freed before it came.
    pub fn follow_leaves(&self) {
        debug_assert!(self.is_view, "the store has the leaves");
        let mut followers = self.followers.lock();
        followers.cells.retain(|cell| cell.strong_count() > 0);
        followers.cells.push(Arc::downgrade(&self.topology));
        // It may have been replaced since the view was made.
        if let Some(present) = followers.present.clone() {
            *self.topology.write() = Arc::new(Topology::clone(&present));
        }
    }

    /// Gives the present leaves to the views that follow them.
    fn tell_followers(&self) {
        if self.is_view {
            return;
        }
        let mut followers = self.followers.lock();
        // One that begins to follow later gets them, too.
        let present = self.topology();
        let cells = followers.cells.iter().filter_map(Weak::upgrade);
        for cell in cells {
            *cell.write() = Arc::new(Topology::clone(&present));
        }
        followers.present = Some(Arc::new(Topology::clone(&present)));
    }

    /// A topology for a view: a copy of its own, because who waits until nothing writes by an old topology does not wait
    /// for views. [`BlockStore::set_reflow`] replaces it.
    pub(super) fn topology_of_view(&self) -> Arc<TopologyCell> {
        let copied = self.topology();
        let cell = Arc::new(RwLock::new(Arc::new(Topology::clone(&copied))));
        {
            let mut views = self.views.lock();
            views.retain(|view| view.strong_count() > 0);
            views.push(Arc::downgrade(&cell));
        }
        // If it was replaced in between, this view may have been passed by.
        let present = self.topology();
        if !Arc::ptr_eq(&present, &copied) {
            *cell.write() = Arc::new(Topology::clone(&present));
        }
        cell
    }

    /// Sets the progress of an expansion. Views that are open get the leaves of this store: those of before the expansion
    /// began know neither its new child nor that it has ended. Requests under way may still use the places of before until
    /// [`BlockStore::uses_former_topology`] says that none does.
    pub fn set_reflow(&self, reflow: Reflow) {
        if self.topology().tree.reflow() == reflow {
            return;
        }
        // The store comes before its views, so that a new view has the new progress or is in the list.
        self.change_topology(|topology| topology.tree.set_reflow(reflow));
        let present = self.topology();
        let views = self.views.lock().clone();
        for view in views.iter().filter_map(Weak::upgrade) {
            let new = Arc::new(Topology::clone(&present));
            let old = std::mem::replace(&mut *view.write(), new);
            self.note_former(&old);
        }
    }

    fn note_former(&self, old: &Arc<Topology>) {
        let mut former = self.former.lock();
        former.retain(|topology| topology.strong_count() > 0);
        former.push(Arc::downgrade(old));
    }
    /// Whether a request of this store may still use a topology that was replaced; or of a view, if it was replaced by
    /// [`BlockStore::set_reflow`].
    #[must_use]
    pub fn uses_former_topology(&self) -> bool {
        let former = self.former.lock();
        former.iter().any(|topology| topology.strong_count() > 0)
    }
}

/// Notes which leaves have left with the old topology.
fn note_left(old: &[Arc<LeafCounters>], new: &[Arc<LeafCounters>]) {
    let kept: HashSet<_> = new.iter().map(Arc::as_ptr).collect();
    for counters in old {
        counters.set_left(!kept.contains(&Arc::as_ptr(counters)));
    }
    for counters in new {
        counters.set_left(false);
    }
}
