//! States of vdevs as an import sees them.

/// The state of a vdev, by the numbers that pools and commands use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VdevState {
    /// Taken out of service by an administrator.
    Offline = 2,
    /// Physically gone, and known to be.
    Removed = 3,
    /// Could not be opened.
    CannotOpen = 4,
    /// Out of service after errors.
    Faulted = 5,
    /// Works, with less redundancy than it should have.
    Degraded = 6,
    /// Fine.
    Healthy = 7,
}

impl VdevState {
    /// Whether data can be read from it.
    #[must_use]
    pub fn is_usable(self) -> bool {
        self >= Self::Degraded
    }
}

/// Why a vdev is in its state, by the numbers that pools and commands use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VdevAux {
    /// Nothing to tell.
    None = 0,
    /// No device with its guid was found, or it could not be opened.
    OpenFailed = 1,
    /// What should be read there is damaged.
    CorruptData = 2,
    /// Too few of its children can be used.
    NoReplicas = 3,
    /// The sum of all guids differs from the uberblock's: devices are missing that no label names.
    BadGuidSum = 4,
    /// The device is smaller than a leaf may be.
    TooSmall = 5,
    /// The device's labels are not those of this leaf, or none can be read.
    BadLabel = 6,
    /// The pool is of a version that this software does not know.
    VersionNewer = 7,
    /// The pool uses features that this software does not know.
    UnsupportedFeature = 9,
    /// It was put out of service after too many errors.
    ErrorsExceeded = 11,
    /// It was put out of service by somebody.
    External = 14,
    /// It went into another pool when this one was split.
    SplitPool = 15,
    /// The device's sectors are larger than the vdev's smallest allocation.
    BadAshift = 16,
    /// Its children are all offline.
    ChildrenOffline = 19,
    /// It was used without the other devices, which were used meanwhile too: it has changes of its own. OpenZFS has no such
    /// number; it is written nowhere.
    Diverged = 1000,
}
