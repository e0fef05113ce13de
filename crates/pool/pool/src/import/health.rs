//! Vdev states as determined by an import.

/// The state of a vdev, with the numbers that pools and commands use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VdevState {
    /// Taken out of service by an administrator.
    Offline = 2,
    /// Physically removed, and known to be.
    Removed = 3,
    /// Could not be opened.
    CannotOpen = 4,
    /// Out of service because of errors.
    Faulted = 5,
    /// Works with reduced redundancy.
    Degraded = 6,
    /// Works normally.
    Healthy = 7,
}

impl VdevState {
    /// Whether data can be read from it.
    #[must_use]
    pub fn is_usable(self) -> bool {
        self >= Self::Degraded
    }
}

/// The reason for a vdev's state, with the numbers that pools and commands use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VdevAux {
    /// No reason.
    None = 0,
    /// No device with its guid was found, or it could not be opened.
    OpenFailed = 1,
    /// The data on it is damaged.
    CorruptData = 2,
    /// Too few of its children are usable.
    NoReplicas = 3,
    /// The sum of all guids differs from the uberblock: devices are missing that no label names.
    BadGuidSum = 4,
    /// The device is smaller than a leaf may be.
    TooSmall = 5,
    /// The device has labels of another leaf, or no readable label.
    BadLabel = 6,
    /// The pool has a version that this software does not support.
    VersionNewer = 7,
    /// The pool uses features that this software does not support.
    UnsupportedFeature = 9,
    /// Taken out of service after too many errors.
    ErrorsExceeded = 11,
    /// Taken out of service by an administrator.
    External = 14,
    /// It moved to another pool when this pool was split.
    SplitPool = 15,
    /// The device's sectors are larger than the vdev's smallest allocation (ashift).
    BadAshift = 16,
    /// Its children are all offline.
    ChildrenOffline = 19,
    /// It was used without the other devices while they were used too, so it has changes of its own.
    ///
    /// OpenZFS has no such number. It is never written to disk.
    Diverged = 1000,
}
