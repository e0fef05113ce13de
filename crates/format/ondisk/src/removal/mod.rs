//! Removed top-level vdevs and the copies of their blocks.
//!
//! Page `docs/format/indirect-vdev.md`.

mod mapping;
mod state;

pub use mapping::{
    INDIRECT_BIRTH_ENTRY_BYTES, INDIRECT_MAPPING_ENTRY_BYTES, IndirectBirthEntry,
    IndirectBirthsPhys, IndirectMappingEntry, IndirectMappingPhys, obsolete_counts,
};
pub use state::{CondensingIndirectPhys, RemovalPhase, RemovalPhys};
