//! Property tables: names, types, defaults and value formats.
//!
//! The code that computes values (`values`, for pools) and the code that prints them use the same rows, so
//! they cannot disagree. The rows follow OpenZFS 2.3.2; additions of 2.4 are marked. Page: `docs/cli.md`.

pub mod compatibility;
mod of_vdevs;
pub(crate) mod set;
pub(crate) mod set_vdev;
mod shape;
pub mod table;
mod value;
mod values;
pub mod vdev_table;

pub use of_vdevs::vdev_property_zap;
pub use shape::{Edit, Form, NumberForm, Preset, Release, Shape, WordTable};
pub use value::{Property, PropertySource, PropertyValue};
pub use values::{literal_pool_properties, preset_value};
