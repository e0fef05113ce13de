//! What properties there are: names, types, defaults and how their values are written.
//!
//! Tables first: who computes values (`values`, for pools) and who prints them read the same rows,
//! so that they cannot disagree. The rows follow OpenZFS
//! 2.3.2; what 2.4 adds is marked. Page: `docs/cli.md`.

pub mod compatibility;
mod of_vdevs;
mod shape;
pub mod table;
mod value;
mod values;
pub mod vdev_table;

pub use of_vdevs::vdev_property_zap;
pub use shape::{Edit, Form, NumberForm, Preset, Release, Shape, WordTable};
pub use value::{Property, PropertySource, PropertyValue};
pub use values::{literal_pool_properties, preset_value};
