//! How far a change is that takes long.

/// A change of a pool that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ChangeProgress {
    /// What it does, as a person reads it.
    pub action: String,
    /// How much is done, in datasets.
    pub done: u64,
    /// How much there is to do.
    pub total: u64,
}
