//! Random work, applied to a pool and to a model of it in memory.
//!
//! A [`Life`] contains the expected content of every dataset, snapshot and volume of a pool. [`Life::step`]
//! applies one operation to both. [`Life::compare`] reads a pool (committed, reopened, or after a crash)
//! and finds differences. The same seed always gives the same operations.

mod act;
mod compare;
mod effect;
mod manifest;
mod model;
mod sent;

pub use crate::hostile::rng::SeededRng;
pub use act::{Act, Deed, Life, text};
pub use compare::{bytes_of, content_differences};
pub use effect::Effect;
pub use manifest::{manifest, space_by_owner, space_list};
pub use model::{Content, Head, Kind, Model, Named, Node, Snapshot, Synchrony, Tree};
pub use sent::{Sent, in_order};

/// The names of all encryption suites.
pub const SUITES: [&str; 6] = [
    "aes-128-ccm",
    "aes-192-ccm",
    "aes-256-ccm",
    "aes-128-gcm",
    "aes-192-gcm",
    "aes-256-gcm",
];
