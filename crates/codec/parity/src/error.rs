use crate::{DATA_COLUMNS_MAX, PARITY_MAX};

/// Columns that cannot be a parity group, or losses that cannot be made good.
///
/// No column has been changed when one of these is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParityError {
    /// Not 1 to 3 parity columns.
    #[error("{count} parity columns, not 1 to {PARITY_MAX}")]
    ParityCount {
        /// How many were given.
        count: usize,
    },
    /// Not 1 to 255 data columns.
    #[error("{count} data columns, not 1 to {DATA_COLUMNS_MAX}")]
    DataCount {
        /// How many were given.
        count: usize,
    },
    /// A parity column differs in length from the first one.
    #[error("parity column {column} has {length} bytes, the first has {expected}")]
    ParityLength {
        /// Its index among the parity columns.
        column: usize,
        /// Its bytes.
        length: usize,
        /// The first parity column's bytes.
        expected: usize,
    },
    /// A data column is longer than the parity that should cover it.
    #[error("data column {column} has {length} bytes, parity only {parity}")]
    DataTooLong {
        /// Its index among the data columns.
        column: usize,
        /// Its bytes.
        length: usize,
        /// The parity columns' bytes.
        parity: usize,
    },
    /// A missing column is named that does not exist.
    #[error("column {column} of {count} is said to be missing")]
    NoSuchColumn {
        /// The index given.
        column: usize,
        /// How many columns of its kind there are.
        count: usize,
    },
    /// More data columns are missing than parity columns are left.
    #[error("{missing} data columns are missing, {parity} parity columns are left")]
    TooManyMissing {
        /// Missing data columns.
        missing: usize,
        /// Parity columns that are present.
        parity: usize,
    },
    /// The equations have no single answer. Cannot happen for shapes that pass the other checks.
    #[error("the equations for the missing columns have no single answer")]
    Singular,
    /// This processor lacks the instructions of the implementation asked for.
    #[error("this processor cannot run the implementation asked for")]
    Unavailable,
}
