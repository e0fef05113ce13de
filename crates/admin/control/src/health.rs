//! States of vdevs and the reasons for them.

/// The state of a vdev. The discriminant is the number used on disk and by `zpool get -p state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum VdevState {
    /// 0: unknown.
    Unknown,
    /// 1: not open.
    Closed,
    /// 2: taken offline by an administrator.
    Offline,
    /// 3: physically removed.
    Removed,
    /// 4: could not be opened.
    CannotOpen,
    /// 5: taken out of service after too many errors.
    Faulted,
    /// 6: works with reduced redundancy.
    Degraded,
    /// 7: healthy.
    #[default]
    Healthy,
}

impl VdevState {
    /// The number on disk.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// The name shown to users. For a vdev that cannot be opened it depends on the reason.
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

    /// The name in JSON, which does not depend on the reason.
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

/// The reason for a vdev's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[allow(missing_docs)] // the names are the terms of ZFS; see `json_word`
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
    /// The name in JSON.
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

/// Why a pool's I/O is suspended.
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
