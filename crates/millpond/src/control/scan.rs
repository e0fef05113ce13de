//! Scrubs, resilvers and the other slow things that `zpool status` tells of.

/// What a scan does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ScanFunction {
    /// Nothing was ever scanned.
    #[default]
    None,
    /// Reads everything.
    Scrub,
    /// Rewrites what a device missed.
    Resilver,
}

/// How far a slow thing has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ProgressState {
    /// Never begun.
    #[default]
    None,
    /// Under way.
    Active,
    /// Done.
    Finished,
    /// Given up.
    Canceled,
}

/// The last or running scan of a pool. All times are seconds since 1970, all sizes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ScanInfo {
    /// What it does.
    pub function: ScanFunction,
    /// How far it is.
    pub state: ProgressState,
    /// When it began.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// Bytes to look at.
    pub to_examine_bytes: u64,
    /// Bytes looked at.
    pub examined_bytes: u64,
    /// Bytes that need not be looked at.
    pub skipped_bytes: u64,
    /// Bytes repaired.
    pub processed_bytes: u64,
    /// Blocks that could not be repaired.
    pub errors: u64,
    /// Bytes looked at since `pass_start_s`.
    pub pass_examined_bytes: u64,
    /// When this pass began: at the last import or resumption.
    pub pass_start_s: u64,
    /// When it was paused; 0 if it is not.
    pub paused_at_s: u64,
    /// Seconds it was paused in this pass.
    pub spent_paused_s: u64,
    /// Bytes read in this pass.
    pub pass_issued_bytes: u64,
    /// Bytes read.
    pub issued_bytes: u64,
    /// The last or running scrub of known errors only.
    pub error_scrub: Option<ErrorScrubInfo>,
}

/// A scrub of blocks that are known to be bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ErrorScrubInfo {
    /// How far it is.
    pub state: ProgressState,
    /// When it began.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// When it was paused; 0 if it is not.
    pub paused_at_s: u64,
    /// Blocks looked at.
    pub examined: u64,
    /// Blocks still to look at.
    pub to_examine: u64,
}

/// The sequential resilver of a top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RebuildInfo {
    /// The vdev's index among the top-level ones.
    pub top_id: u64,
    /// How far it is.
    pub state: ProgressState,
    /// When it began.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// Milliseconds of this pass.
    pub pass_time_ms: u64,
    /// Bytes to be scanned, as estimated.
    pub estimated_bytes: u64,
    /// Bytes scanned.
    pub scanned_bytes: u64,
    /// Bytes read.
    pub issued_bytes: u64,
    /// Bytes written.
    pub rebuilt_bytes: u64,
    /// Bytes scanned in this pass.
    pub pass_scanned_bytes: u64,
    /// Bytes read in this pass.
    pub pass_issued_bytes: u64,
    /// Bytes that need not be rebuilt.
    pub skipped_bytes: u64,
    /// Errors.
    pub errors: u64,
}

/// The last or running removal of a top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemovalInfo {
    /// How far it is.
    pub state: ProgressState,
    /// Index of the vdev among the top-level ones.
    pub top_id: u64,
    /// When it began.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// Bytes to copy.
    pub to_copy_bytes: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Bytes of memory that the mappings of all removed vdevs take.
    pub mapping_bytes: u64,
}

/// The pool's checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CheckpointInfo {
    /// Whether it is on its way out.
    pub is_discarding: bool,
    /// When it was taken.
    pub start_s: u64,
    /// Bytes that only it references.
    pub space_bytes: u64,
}

/// The last or running widening of a RAID-Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExpansionInfo {
    /// How far it is.
    pub state: ProgressState,
    /// Index of the vdev among the top-level ones.
    pub top_id: u64,
    /// When it began.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// Bytes to move.
    pub to_reflow_bytes: u64,
    /// Bytes moved.
    pub reflowed_bytes: u64,
    /// Whether it waits for a resilver.
    pub is_waiting_for_resilver: bool,
}
