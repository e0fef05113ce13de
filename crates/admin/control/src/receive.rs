//! Receiving streams.

use crate::{Note, Secret, Values};
pub use millpond_receive::{IncomingKind, ReceiveFailure, ReceiveProblem, ReceiveStep};

/// Where a stream is received, and how. The stream comes from the descriptor that comes with the request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReceiveStream {
    /// The full name of a file system, volume or snapshot.
    pub name: String,
    /// How the names of what is received are made from it.
    pub naming: ReceiveNaming,
    /// The full name of the snapshot that the new dataset begins with.
    pub origin: Option<String>,
    /// Whether changes and snapshots after the older snapshot are given up, and whether a full stream replaces what is
    /// there.
    pub is_forced: bool,
    /// Whether nothing is changed: the streams are only read.
    pub is_dry: bool,
    /// Whether an interruption leaves a state that another stream can resume.
    pub is_resumable: bool,
    /// Whether existing snapshots are repaired, and nothing else is changed.
    pub is_corrective: bool,
    /// Whether new file systems are mounted.
    pub mount: bool,
    /// Whether file systems in use are unmounted.
    pub force_unmount: bool,
    /// Whether the holds in a package are left out.
    pub without_holds: bool,
    /// Properties to set on the dataset.
    pub properties: Values,
    /// The user's key, if the properties make the dataset an encryption root.
    pub key: Option<Secret>,
    /// Properties whose received values do not take effect.
    pub excluded: Vec<String>,
}

/// How the names of what is received are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReceiveNaming {
    /// The given name stands for the dataset that was sent.
    #[default]
    Given,
    /// The name at the sender without its pool comes below the given one.
    WithoutPool,
    /// The last component of the name at the sender comes below the given one.
    LastComponent,
}

/// What was received, and why not more.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Received {
    /// What was done, in order.
    pub steps: Vec<ReceiveStep>,
    /// Why it went no further.
    pub failure: Option<ReceiveFailure>,
    /// File systems that were received but not mounted.
    pub notes: Vec<Note>,
}
