//! Layer `object`: transaction groups: open, quiescing, syncing.
//!
//! Every change belongs to a transaction, every transaction to one group (txg), and a group becomes
//! durable as a whole. At most three groups are alive: the *open* one takes transactions, the
//! *quiescing* one waits for those it has, the *syncing* one is being written. [`TxgGroups`] is that
//! state machine and the throttle on dirty data; it starts no thread and knows nothing of objects.
//!
//! ```
//! use millpond_env::Env;
//! use millpond_ondisk::Txg;
//! use millpond_txg::{DirtyLimits, TxgGroups};
//! use std::time::Duration;
//!
//! let groups = TxgGroups::new(&Env::real(), Txg(4), DirtyLimits::default());
//! let transaction = groups.begin(4096).unwrap();
//! assert_eq!(transaction.txg(), Txg(4));
//! transaction.charge(4096);
//! drop(transaction);
//! groups.ask(Txg(4));
//! // What the thread that syncs does:
//! let syncing = groups.next_to_sync(Duration::ZERO).unwrap();
//! assert_eq!((syncing.txg(), groups.open_txg()), (Txg(4), Txg(5)));
//! groups.synced(syncing.txg());
//! groups.wait_synced(Txg(4)).unwrap();
//! ```
//!
//! Page: `docs/format/uberblock.md` (what a txg is on disk).
#![forbid(unsafe_code)]

mod error;
mod groups;
mod limits;
#[cfg(test)]
mod tests;
mod transaction;

pub use error::TxgError;
pub use groups::{BeginWait, Pause, SyncingTxg, TxgGroups, TxgRequest};
pub use limits::DirtyLimits;
pub use transaction::{Transaction, Unfinished};
