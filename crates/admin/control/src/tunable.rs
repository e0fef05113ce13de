//! Settings of a process.

/// A setting of the process that answers requests, under the name of OpenZFS's module parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TunableInfo {
    /// Its name.
    pub name: String,
    /// The value now.
    pub value: u64,
    /// The value at the start of the process.
    pub default: u64,
    /// The largest value.
    pub max: u64,
    /// What it does, in one line.
    pub help: String,
}
