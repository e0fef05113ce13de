//! (room reserved; see ARCHITECTURE.md)

pub mod import;
pub mod properties;
