//! Properties of datasets and their values.

mod content;
mod kind;
mod names;
mod owners;
mod share;
mod special;
mod statistics;
mod stored;
pub mod table;
mod token;
pub use token::ResumeToken;
mod values;
mod written;

pub use kind::{DatasetKind, Kinds};
pub use millpond_pool::properties::{Property, PropertySource, PropertyValue};
pub use owners::OwnerSpace;
pub(crate) use share::is_share_value;
pub use special::{OwnerKind, PropertyName, QuotaSubject, by_name};
pub use stored::StoredProperties;
pub use table::{DATASET_PROPERTIES, DatasetProperty};
pub use values::{PropertyReader, Wanted};

/// Why a property is refused that the pool's features or the file system's version do not have.
pub const NEEDS_UPGRADE: &str =
    "pool and or dataset must be upgraded to set this property or value";
