//! (room reserved; see ARCHITECTURE.md)
