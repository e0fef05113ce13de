//! Object sets open for change, on an in-memory sink that tracks live blocks.
#![forbid(unsafe_code)]

mod accounting;
mod caching;
mod cases;
mod damaged;
mod judge;
mod model;
mod objects;
mod prefetch;
mod sink;
mod threads;
mod txgs;

use judge::judge;
use millpond_block::BlockStore;
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_object::{NewObject, NewObjectSet, ObjectSet, ObjectSetView, SyncedSet, WritePolicy};
use millpond_ondisk::{ObjectSetKind, ObjectType, Txg};
use millpond_sim::noise;
use millpond_txg::{DirtyLimits, SyncingTxg, Transaction, TxgGroups};
use sink::TestSink;
use std::time::Duration;

/// A set, its transaction groups and its sink.
struct Bench {
    groups: Arc<TxgGroups>,
    sink: Arc<TestSink>,
    store: Arc<BlockStore>,
    set: Arc<ObjectSet>,
}

impl Bench {
    fn new(kind: ObjectSetKind, policy: WritePolicy) -> Self {
        Self::with_shape(kind, policy, NewObjectSet::default())
    }

    fn with_shape(kind: ObjectSetKind, policy: WritePolicy, shape: NewObjectSet) -> Self {
        let groups = TxgGroups::new(&Env::real(), Txg(4), DirtyLimits::default());
        let sink = Arc::new(TestSink::new());
        let store = sink.store();
        let tx = groups.begin(0).unwrap();
        let set = ObjectSet::create(Arc::clone(&store), 7, kind, shape, policy, &tx);
        drop(tx);
        Self {
            groups,
            sink,
            store,
            set,
        }
    }

    fn begin(&self) -> Transaction {
        self.groups.begin(0).unwrap()
    }

    /// Closes the open txg and returns it for syncing.
    fn close(&self) -> SyncingTxg {
        self.groups.ask(self.groups.open_txg());
        self.groups.next_to_sync(Duration::ZERO).unwrap()
    }

    /// Syncs everything, checks the tree and compares live blocks with the freed ones.
    fn sync(&self) -> (SyncedSet, Arc<ObjectSetView>) {
        let syncing = self.close();
        let synced = self.set.sync(syncing.txg(), 1, &*self.sink).unwrap();
        self.groups.synced(syncing.txg());
        (synced, self.judged())
    }

    fn judged(&self) -> Arc<ObjectSetView> {
        let committed = self.set.committed().unwrap();
        let alive = judge(&committed);
        assert_eq!(
            alive,
            self.sink.alive(),
            "what is referred to and what is alive"
        );
        committed
    }

    /// Discards all state in memory and reopens the last synced set.
    fn reopen(&mut self) {
        let (root, policy) = (self.set.root(), self.set.policy());
        self.set = ObjectSet::open(Arc::clone(&self.store), 7, root, policy, None).unwrap();
    }

    fn close_after(&self, tx: Transaction) -> SyncingTxg {
        drop(tx);
        self.close()
    }
}

fn file(block_bytes: u32) -> NewObject {
    let mut new = NewObject::new(ObjectType::OTHER_U8).with_block_bytes(block_bytes);
    new.indirect_shift = 12;
    new
}

fn dataset() -> Bench {
    Bench::new(ObjectSetKind::Other, WritePolicy::dataset())
}
