//! Layer `object`: transaction groups (txgs), from open through quiescing to syncing.
//!
//! Every change belongs to a transaction, and every transaction to one group (txg). A group becomes durable
//! as a whole. At most three groups exist at a time: the *open* one accepts transactions, the *quiescing* one
//! waits for its transactions to end, and the *syncing* one is being written. [`TxgGroups`] is this state
//! machine together with the throttle on dirty data. It starts no threads and is independent of objects.
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
pub use groups::{BeginWait, Estimate, Pause, SyncingTxg, TxgGroups, TxgRequest};
pub use limits::DirtyLimits;
pub use transaction::{Transaction, Unfinished};
