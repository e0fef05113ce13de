//! What properties datasets have. Only tables here; values are computed elsewhere.

mod kind;
mod special;
mod stored;
pub mod table;

pub use kind::{DatasetKind, Kinds};
pub use special::{OwnerKind, PropertyName, QuotaSubject, by_name};
pub use stored::{PropertySource, PropertyValue, StoredProperties};
pub use table::{DATASET_PROPERTIES, DatasetProperty};
