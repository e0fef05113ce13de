//! States of vdevs and why they are in them.

/// The state of a vdev, with the number that the disk and `zpool get -p state` use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum VdevState {
    /// 0: nothing known.
    Unknown,
    /// 1: not open.
    Closed,
    /// 2: taken out of service by an administrator.
    Offline,
    /// 3: physically gone.
    Removed,
    /// 4: could not be opened.
    CannotOpen,
    /// 5: out of service after too many errors.
    Faulted,
    /// 6: works with less redundancy.
    Degraded,
    /// 7: fine.
    #[default]
    Healthy,
}

impl VdevState {
    /// The number.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// The word that people see, which for a vdev that cannot be opened depends on why.
    pub fn word(self, aux: VdevAux) -> &'static str {
        match self {
            VdevState::Unknown => "UNKNOWN",
            VdevState::Closed | VdevState::Offline => "OFFLINE",
            VdevState::Removed => "REMOVED",
            VdevState::CannotOpen => match aux {
                VdevAux::CorruptData | VdevAux::BadLog => "FAULTED",
                VdevAux::SplitPool => "SPLIT",
                _ => "UNAVAIL",
            },
            VdevState::Faulted => "FAULTED",
            VdevState::Degraded => "DEGRADED",
            VdevState::Healthy => "ONLINE",
        }
    }

    /// The word in JSON, which does not depend on the reason.
    pub fn raw_word(self) -> &'static str {
        match self {
            VdevState::Unknown => "UNKNOWN",
            VdevState::Closed => "CLOSED",
            VdevState::Offline => "OFFLINE",
            VdevState::Removed => "REMOVED",
            VdevState::CannotOpen => "CANT_OPEN",
            VdevState::Faulted => "FAULTED",
            VdevState::Degraded => "DEGRADED",
            VdevState::Healthy => "ONLINE",
        }
    }
}

/// Why a vdev is not simply fine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[allow(missing_docs)] // the names are the field's words; `json_word` and the notes explain them
pub enum VdevAux {
    #[default]
    None,
    OpenFailed,
    CorruptData,
    NoReplicas,
    BadGuidSum,
    TooSmall,
    BadLabel,
    VersionNewer,
    VersionOlder,
    UnsupportedFeature,
    Spared,
    ErrorsExceeded,
    IoFailure,
    BadLog,
    External,
    SplitPool,
    BadAshift,
    ExternalPersistent,
    Active,
    ChildrenOffline,
    AshiftTooBig,
    Diverged,
}

impl VdevAux {
    /// The word in JSON.
    pub fn json_word(self) -> &'static str {
        match self {
            VdevAux::None => "NONE",
            VdevAux::OpenFailed => "OPEN_FAILED",
            VdevAux::CorruptData => "CORRUPT_DATA",
            VdevAux::NoReplicas => "NO_REPLICAS",
            VdevAux::BadGuidSum => "BAD_GUID_SUM",
            VdevAux::TooSmall => "TOO_SMALL",
            VdevAux::BadLabel => "BAD_LABEL",
            VdevAux::VersionNewer => "VERSION_NEWER",
            VdevAux::VersionOlder => "VERSION_OLDER",
            VdevAux::UnsupportedFeature => "UNSUP_FEAT",
            VdevAux::Spared => "SPARED",
            VdevAux::ErrorsExceeded => "ERR_EXCEEDED",
            VdevAux::IoFailure => "IO_FAILURE",
            VdevAux::BadLog => "BAD_LOG",
            VdevAux::External => "EXTERNAL",
            VdevAux::SplitPool => "SPLIT_POOL",
            VdevAux::BadAshift => "BAD_ASHIFT",
            VdevAux::ExternalPersistent => "EXTERNAL_PERSIST",
            VdevAux::Active => "ACTIVE",
            VdevAux::ChildrenOffline => "CHILDREN_OFFLINE",
            VdevAux::AshiftTooBig => "ASHIFT_TOO_BIG",
            VdevAux::Diverged => "DIVERGED",
        }
    }
}

/// Why a pool does no I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SuspendReason {
    /// Devices failed; `failmode=wait`.
    IoWait,
    /// Devices failed; `failmode=continue`.
    IoContinue,
    /// Multihost writes failed.
    Multihost,
}
