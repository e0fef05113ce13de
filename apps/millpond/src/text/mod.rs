//! How values look: numbers, dates, tables, JSON. Nothing here knows a pool.

pub mod columns;
pub mod date;
pub mod json;
pub mod number;
pub mod size;
pub mod terminal;
