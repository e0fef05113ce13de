//! Work in random order, done to a pool and to a model of it in memory at once.
//!
//! A [`Life`] knows what every dataset, snapshot and volume of a pool must hold. [`Life::step`] does one thing
//! to both; [`Life::compare`] walks a pool (committed, reopened, crashed) and says where it differs. The same
//! seed does the same things.

mod act;
mod compare;
mod effect;
mod manifest;
mod model;

pub use crate::hostile::dice::Dice;
pub use act::{Act, Deed, Life};
pub use compare::{bytes_of, content_differences};
pub use effect::Effect;
pub use manifest::{figures, manifest, space_by_owner};
pub use model::{Content, Head, Kind, Model, Named, Node, Snapshot, Synchrony, Tree};
