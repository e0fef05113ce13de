//! The process that answers.

/// What the process that answers says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct About {
    /// Its version.
    pub version: String,
    /// Its process id.
    pub process: u32,
    /// Its uid.
    pub user: u32,
}
