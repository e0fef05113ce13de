//! Channel programs (`zfs program`).

pub use millpond_dataset::ProgramValue;

/// How a channel program is run. The script comes with the request, through its descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ProgramRequest {
    /// The pool. The program sees no other.
    pub pool: String,
    /// What the script gets as `...`.
    pub arguments: ProgramValue,
    /// How many instructions it may execute.
    pub instructions: u64,
    /// How much memory it may use, in bytes.
    pub memory_bytes: u64,
    /// It cannot change anything.
    pub is_read_only: bool,
}

impl ProgramRequest {
    /// The longest script, in bytes.
    pub const SCRIPT_BYTES_MAX: u64 = 10 << 20;
}

/// Why a program did not end, or returned nothing. What it changed before is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ProgramProblem {
    /// The caller may not do this.
    Denied,
    /// There is no such pool.
    NoPool,
    /// A limit is 0 or too high.
    Limits,
    /// The program used up its memory.
    Memory,
    /// Its value is too large.
    TooLarge,
    /// An error of the script.
    Script {
        /// The message, and a trace of the calls.
        text: String,
        /// The number of instructions after which it was stopped.
        instructions: Option<u64>,
    },
    /// The text says why.
    Failed(String),
}
