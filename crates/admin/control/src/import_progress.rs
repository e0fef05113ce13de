//! What an import is doing.

/// An import that has not ended: a line of OpenZFS's kstat `import_progress`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ImportProgress {
    /// The pool's guid; 0 while its devices are searched for.
    pub pool_guid: u64,
    /// Seconds for which it is still watched, because another system may be using it.
    pub multihost_s: u64,
    /// The txg to which it is rewound; 0 without.
    pub max_txg: u64,
    /// Its name, or its guid while its devices are searched for.
    pub pool_name: String,
    /// The step.
    pub notes: String,
    /// How much of the step is done: records of an intent log, or file systems to mount.
    #[cfg_attr(feature = "serde", serde(default))]
    pub done: u64,
    /// How much there is to do in the step; 0 if that is not known.
    #[cfg_attr(feature = "serde", serde(default))]
    pub total: u64,
}
