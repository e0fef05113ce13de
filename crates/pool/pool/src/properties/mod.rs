//! What properties there are: names, types, defaults and how their values are written.
//!
//! These are tables and nothing else. Who knows a pool computes values; who talks to people
//! prints them; both read the same rows, so that they cannot disagree. The rows follow OpenZFS
//! 2.3.2; what 2.4 adds is marked. Page: `docs/cli.md`.

mod shape;
pub mod table;
pub mod vdev_table;

pub use shape::{Edit, Form, NumberForm, Preset, Release, Shape, WordTable};
