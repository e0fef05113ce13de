use crate::{DATA_COLUMNS_MAX, PARITY_MAX};

/// Columns that do not form a parity group, or losses that cannot be recovered.
///
/// No column is changed when one of these errors is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParityError {
    /// Not 1 to 3 parity columns.
    #[error("{count} parity columns, not 1 to {PARITY_MAX}")]
    ParityCount {
        /// The number given.
        count: usize,
    },
    /// Not 1 to 255 data columns.
    #[error("{count} data columns, not 1 to {DATA_COLUMNS_MAX}")]
    DataCount {
        /// The number given.
        count: usize,
    },
    /// A parity column differs in length from the first one.
    #[error("parity column {column} has {length} bytes, the first has {expected}")]
    ParityLength {
        /// Its index among the parity columns.
        column: usize,
        /// Its length in bytes.
        length: usize,
        /// The first parity column's length in bytes.
        expected: usize,
    },
    /// A data column is longer than the parity that must cover it.
    #[error("data column {column} has {length} bytes, parity only {parity}")]
    DataTooLong {
        /// Its index among the data columns.
        column: usize,
        /// Its length in bytes.
        length: usize,
        /// The parity columns' length in bytes.
        parity: usize,
    },
    /// A missing column does not exist.
    #[error("column {column} of {count} is said to be missing")]
    NoSuchColumn {
        /// The index given.
        column: usize,
        /// The number of columns of its kind.
        count: usize,
    },
    /// More data columns are missing than parity columns are present.
    #[error("{missing} data columns are missing, {parity} parity columns are left")]
    TooManyMissing {
        /// The number of missing data columns.
        missing: usize,
        /// The number of parity columns present.
        parity: usize,
    },
    /// The equations have no unique solution. This cannot happen for shapes that pass the other checks.
    #[error("the equations for the missing columns have no single answer")]
    Singular,
    /// This processor lacks the instructions of the requested implementation.
    #[error("this processor cannot run the implementation asked for")]
    Unavailable,
}
