//! The tables of properties: names, aliases, types, words, defaults, forms.
//!
//! Those of datasets, of pools ([`table`]) and of vdevs ([`vdev_table`]).

pub use millpond_dataset::properties::{
    DATASET_PROPERTIES, DatasetKind, DatasetProperty, Kinds, PropertyName, PropertyValue,
    QuotaSubject, by_name,
};
pub use millpond_pool::properties::{Edit, Form, NumberForm, Release, Shape, table, vdev_table};
