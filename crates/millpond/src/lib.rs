//! (room reserved; see ARCHITECTURE.md)

pub mod control;
