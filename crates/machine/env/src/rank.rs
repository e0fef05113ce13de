//! The order of all locks: the one table from which [`lock`](crate::lock) checks and
//! `docs/internals/locks.md` is written.

#[cfg(debug_assertions)]
use std::cell::RefCell;

/// A row of the table. The order of ranks is the order in which a thread may take locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// The position in the table.
    pub order: usize,
    /// The name in the table.
    pub name: &'static str,
    /// The crates that have locks of this rank.
    pub crates: &'static str,
    /// What a thread does while it holds one.
    pub held: &'static str,
    /// Whether it may be held across device I/O.
    pub io: bool,
    /// Whether a thread may hold several, in an order that the crate defines.
    pub several: bool,
}

/// The rank of a type of lock.
pub trait LockRank {
    /// `None` for a lock that is not checked.
    const RANK: Option<Rank>;
}

/// The rank of locks outside the engine: tests and small programs. They are not checked.
#[derive(Debug)]
pub struct Unranked;

impl LockRank for Unranked {
    const RANK: Option<Rank> = None;
}

macro_rules! ranks {
    ($($kind:ident $rank:ident, $name:literal, $crates:literal, $held:literal;)*) => {
        enum Order { $($rank,)* }
        $(
            #[doc = concat!("The rank of: ", $name, ".")]
            #[derive(Debug)]
            pub struct $rank;
            impl LockRank for $rank {
                const RANK: Option<Rank> = Some(Rank {
                    order: Order::$rank as usize,
                    name: $name,
                    crates: $crates,
                    held: $held,
                    io: kind!($kind io),
                    several: kind!($kind several),
                });
            }
        )*
        /// All ranks, outer before inner.
        pub const RANKS: &[Option<Rank>] = &[$($rank::RANK,)*];
    };
}

/// `brief`: never across device I/O. `io`: also across I/O. `many`: as `io`, and a thread may hold several.
macro_rules! kind {
    (brief io) => {
        false
    };
    (io io) => {
        true
    };
    (many io) => {
        true
    };
    (many several) => {
        true
    };
    ($other:ident several) => {
        false
    };
}

ranks! {
    // Daemon and administration.
    io Health, "health monitor", "millpondd", "Looking at all pools and devices.";
    io MountChange, "change of mounts", "millpondd", "Mounting or unmounting: one at a time.";
    io VolumeDevices, "block devices of volumes", "millpondd", "Attaching and detaching them, one change at a time. The threads that serve them take no lock of this rank.";
    io ImportChange, "change of pools", "service", "Creating, importing, exporting or destroying a pool: one at a time.";
    io CacheFiles, "cache files", "millpondd", "Writing the cache files of all pools.";
    brief MountTable, "table of mounts", "millpondd", "A lookup or insertion, and asking the mounts for failures.";
    io AuxiliaryDevices, "spares and cache devices", "service", "Opening or closing some, across reads of their labels.";
    io OpenedPools, "opened pools", "service", "Looking one up, or closing all.";
    io LogReplays, "replay of a waiting log", "engine", "Replaying the log of a dataset whose key was loaded later: one at a time.";
    io OpenFiles, "open file systems and volumes of a pool", "engine", "Looking one up, or opening it.";

    // Files.
    io Moves, "moves", "posix", "Moving a directory to another parent: the chain of its parents must not change meanwhile. One per file system. With the drain and the unlinked set, the only lock that operations on different files share.";
    io VolumeSize, "size of a volume", "volume", "Changing the size.";
    many FileRanges, "ranges of a file or volume", "posix, volume", "A read or write of these bytes, or a change of length. A writer's range is rounded to blocks; it is the whole file while its only block may grow. First come, first served.";
    many FileChanges, "changes of a file", "posix", "Changing attributes or entries, from before the transaction until the change is made. Several files are locked in the order of their object numbers, and then looked up again.";
    io UnlinkedSet, "unlinked set", "posix", "An operation that may remove a last link, from before its transaction. One per file system.";
    io MasterNode, "master node", "posix", "Setting a quota and raising the version, from before the transaction. One per file system.";
    io OpenTransaction, "transaction", "txg", "Changing objects in one txg.";
    io FileEntries, "entries of a file", "posix", "Shared: a lookup in a directory. Exclusive: a change.";
    io FileXattrs, "extended attributes of a file", "posix", "Shared: a lookup. Exclusive: a change.";
    io Quotas, "quotas of a file system", "posix", "Reading a limit, or opening the tables of quotas.";

    // A pool and its datasets.
    io LeafOrders, "orders about leaves", "pool", "One order of an administrator, across reads of a device's labels; never across a txg.";
    io DrivenTxg, "txg of a caller", "pool", "Closing and writing a txg in the thread of a caller, of a pool without a sync thread.";
    io SyncedTxg, "txg under sync", "pool", "Writing a whole txg: one at a time. A view takes it while it reads labels, if the states of the vdevs are not known yet.";
    io Heartbeat, "heartbeat", "pool", "Writing one to a device. A commit waits for it, and an expansion prevents it while it writes an uberblock.";
    io SpareLabels, "labels of spares", "pool", "Taking a spare: reading its labels and writing those of the pool. One per process, so that no two pools take the same spare.";
    io DatasetNames, "dataset names", "dataset", "Exclusive: an operation's changes of the MOS, in its sync task. Shared: looking up a name to open its dataset.";
    io OpenHeads, "open heads", "dataset", "Looking a head up, or opening one.";
    io AttributeTables, "tables of attribute layouts", "sa", "Adding a layout, some thirty times in a file system's life.";
    brief IntentQueue, "queue of an intent log", "intent", "A few entries.";
    brief IntentChain, "chain of an intent log", "intent", "A few entries. The writer of log blocks holds a transaction and not this lock.";

    // Objects.
    io AllocatorSync, "sync of the allocator", "alloc", "Writing space maps in a sync pass.";
    io ObjectSetSync, "sync of an object set", "object", "The sync of that set. Readers take it only to learn whether a failed read was due to a sync.";
    io MetaslabMap, "space map of a metaslab", "alloc", "Loading or writing the map.";
    io SpaceMapTables, "objects of space maps", "pool", "Looking one up, or opening it.";
    io PinnedViews, "pinned views", "pool", "Adding, dropping or listing a few; ending one, after the repairs that it makes.";
    brief PoolState, "pool state", "pool", "A few fields: configuration, features, uberblock.";
    brief ObjectNumbers, "object numbers of an object set", "object", "A search among known blocks of dnodes.";
    brief ObjectState, "object", "object", "One change or lookup. A block that a partial write needs is read without it, and the change is retried.";
    brief ObjectTable, "table of an object set", "object", "A lookup, or the switch to a synced state.";

    brief HeadSink, "sync of a dataset", "dataset", "Adding to its sums, and noting freed blocks.";

    // Space.
    brief MetaslabList, "changed metaslabs", "alloc", "A lookup or insertion.";
    brief MetaslabState, "metaslab", "alloc", "An allocation or free in memory.";

    // Blocks and devices.
    io ViewRepairs, "repairs of a view or of the pool", "block", "Shared: writing a repair. Exclusive: ending the view, or making freed space available.";
    io StoreFlush, "flush of a store", "block", "A flush of all leaves that were written to, and noting what it lost.";
    io LeafWrites, "order of a leaf's writes", "block", "Shared: a write to the leaf. Exclusive: writing unflushed contents again.";
    io CacheDeviceHand, "hand of a cache device", "l2arc", "Writing a batch of buffers, or reading the log blocks after an import. Readers of buffers do not take it.";
    brief PoolSpares, "spares of a pool", "pool", "A lookup, or noting which leaves are out of use.";
    brief LeafMonitor, "leaf monitor", "pool", "A look. Its thread waits on the condition variable.";
    brief LeafFailures, "failures of leaves", "pool", "Counting, and changing a state; not while a leaf is probed.";
    brief LeafStates, "changes of leaf states", "block", "Deciding whether a leaf is required, and storing its status. Reading a status takes no lock.";
    brief ViewFollowers, "views that follow the leaves", "block", "Giving them a new topology, or adding one.";
    brief Topology, "topology", "block", "A clone of the pointer. A change copies the topology under it.";
    brief LeafUnflushed, "unflushed writes of a leaf", "block", "Insertions and lookups.";
    brief LeafRequests, "requests of a leaf", "block", "A lookup or insertion. Outcomes are waited for on the request's condition variable.";
    brief TxgGroups, "txg groups", "txg", "A few instructions. Waiting happens on its condition variable.";
    brief CheckSums, "sums of a check", "check", "One claim, one addition, or reporting what differs.";
    brief Leaf, "all others", "all", "A few instructions: a lookup, an insertion, a count. No lock is taken under it.";
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
}

/// The note that this thread holds a lock of some rank. It must be dropped on the same thread.
#[derive(Debug)]
pub struct Held {
    #[cfg(debug_assertions)]
    rank: Option<Rank>,
}

impl Held {
    /// Notes a lock that is about to be waited for.
    ///
    /// For things that are waited for like a lock but are none of [`sync`](crate::sync), such as a
    /// transaction or a range of a file.
    ///
    /// # Panics
    /// In debug builds, if the thread holds a lock that must be taken later.
    #[must_use]
    #[track_caller]
    pub fn waiting(rank: Option<Rank>) -> Self {
        #[cfg(debug_assertions)]
        check(rank);
        Self::taken(rank)
    }
    /// Notes a lock that was taken without waiting.
    #[must_use]
    pub fn taken(rank: Option<Rank>) -> Self {
        #[cfg(debug_assertions)]
        if let Some(rank) = rank {
            let _ = HELD.try_with(|held| held.borrow_mut().push(rank));
        }
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Self {
            #[cfg(debug_assertions)]
            rank,
        }
    }
    /// Checks that a wait for a condition takes the lock again in the right order.
    #[track_caller]
    pub(crate) fn check_again(&self) {
        #[cfg(debug_assertions)]
        if let Some(rank) = self.rank {
            let later = held_where(|other| other.order > rank.order);
            assert!(
                later.is_none(),
                "waiting on {:?} while holding {:?}, which is taken later (docs/internals/locks.md)",
                rank.name,
                later.map_or("", |other| other.name),
            );
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        if let Some(rank) = self.rank {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|other| *other == rank) {
                    held.remove(at);
                }
            });
        }
    }
}

/// Checks that this thread holds no lock that must not be held across device I/O.
///
/// # Panics
/// In debug builds, if it does.
#[track_caller]
pub fn check_io() {
    #[cfg(debug_assertions)]
    {
        let brief = held_where(|rank| !rank.io);
        assert!(
            brief.is_none(),
            "device I/O while holding {:?} (docs/internals/locks.md)",
            brief.map_or("", |rank| rank.name),
        );
    }
}

#[cfg(debug_assertions)]
#[track_caller]
fn check(rank: Option<Rank>) {
    let Some(rank) = rank else { return };
    let is_later = |other: &Rank| match other.order == rank.order {
        true => !rank.several,
        false => other.order > rank.order,
    };
    let later = held_where(is_later);
    assert!(
        later.is_none(),
        "taking {:?} while holding {:?}, which is taken later (docs/internals/locks.md)",
        rank.name,
        later.map_or("", |other| other.name),
    );
}

#[cfg(debug_assertions)]
fn held_where(condition: impl Fn(&Rank) -> bool) -> Option<Rank> {
    let find = |held: &RefCell<Vec<Rank>>| {
        let held = held.borrow();
        held.iter().copied().find(|other| condition(other))
    };
    // A destructor that runs during a panic does not fail again.
    match std::thread::panicking() {
        true => None,
        false => HELD.try_with(find).ok().flatten(),
    }
}
