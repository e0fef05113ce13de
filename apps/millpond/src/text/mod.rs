//! Formats values: numbers, dates, tables, JSON. This module is independent of pools.

pub mod columns;
pub mod date;
pub mod errors;
pub mod json;
pub mod number;
pub(crate) mod property_columns;
pub mod size;
pub mod terminal;
