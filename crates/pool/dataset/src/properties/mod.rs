//! What properties datasets have. Only tables here; values are computed elsewhere.

mod kind;
mod special;
mod stored;
pub mod table;

pub use kind::{DatasetKind, Kinds};
pub use millpond_pool::properties::{Property, PropertySource, PropertyValue};
pub use special::{OwnerKind, PropertyName, QuotaSubject, by_name};
pub use stored::StoredProperties;
pub use table::{DATASET_PROPERTIES, DatasetProperty};
