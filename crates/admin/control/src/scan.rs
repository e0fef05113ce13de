//! Scrubs, resilvers and the other long-running operations that `zpool status` shows.

/// The function of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ScanFunction {
    /// No scan has run.
    #[default]
    None,
    /// Verifies all blocks.
    Scrub,
    /// Repairs the blocks that a device missed.
    Resilver,
}

/// The state of a long-running operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ProgressState {
    /// Never started.
    #[default]
    None,
    /// Running.
    Active,
    /// Done.
    Finished,
    /// Canceled.
    Canceled,
}

/// The last or running scan of a pool. All times are seconds since 1970, all sizes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ScanInfo {
    /// Its function.
    pub function: ScanFunction,
    /// Its state.
    pub state: ProgressState,
    /// When it started.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// Bytes to examine.
    pub to_examine_bytes: u64,
    /// Bytes examined.
    pub examined_bytes: u64,
    /// Bytes skipped, because they need no examination.
    pub skipped_bytes: u64,
    /// Bytes repaired.
    pub processed_bytes: u64,
    /// Blocks that could not be repaired.
    pub errors: u64,
    /// Bytes examined since `pass_start_s`.
    pub pass_examined_bytes: u64,
    /// When this pass started: at the last import or resume.
    pub pass_start_s: u64,
    /// When it was paused; 0 if it is running.
    pub paused_at_s: u64,
    /// Seconds for which it was paused in this pass.
    pub spent_paused_s: u64,
    /// Bytes read in this pass.
    pub pass_issued_bytes: u64,
    /// Bytes read.
    pub issued_bytes: u64,
    /// The last or running error scrub.
    pub error_scrub: Option<ErrorScrubInfo>,
}

/// A scrub of only the blocks with known errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ErrorScrubInfo {
    /// Its state.
    pub state: ProgressState,
    /// When it started.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// When it was paused; 0 if it is running.
    pub paused_at_s: u64,
    /// Blocks examined.
    pub examined: u64,
    /// Blocks left to examine.
    pub to_examine: u64,
}

/// A sequential rebuild of a top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RebuildInfo {
    /// The index of the top-level vdev.
    pub top_id: u64,
    /// Its state.
    pub state: ProgressState,
    /// When it started.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// For how long it has run, in milliseconds.
    pub scan_time_ms: u64,
    /// Duration of this pass in milliseconds.
    pub pass_time_ms: u64,
    /// Estimate of the bytes to scan.
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
    /// Bytes skipped, because they need no rebuild.
    pub skipped_bytes: u64,
    /// Errors.
    pub errors: u64,
}

/// The last or running removal of a top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemovalInfo {
    /// Its state.
    pub state: ProgressState,
    /// The index of the top-level vdev.
    pub top_id: u64,
    /// When it started.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// Bytes to copy.
    pub to_copy_bytes: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Memory for the mappings of all removed vdevs, in bytes.
    pub mapping_bytes: u64,
}

/// The pool's checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CheckpointInfo {
    /// Whether it is being discarded.
    pub is_discarding: bool,
    /// When it was taken.
    pub start_s: u64,
    /// Bytes referenced only by the checkpoint.
    pub space_bytes: u64,
}

/// The last or running RAID-Z expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExpansionInfo {
    /// Its state.
    pub state: ProgressState,
    /// The index of the top-level vdev.
    pub top_id: u64,
    /// When it started.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// Bytes to move.
    pub to_reflow_bytes: u64,
    /// Bytes moved.
    pub reflowed_bytes: u64,
    /// Whether it waits for a resilver, or for a sector that cannot be read.
    pub is_waiting_for_resilver: bool,
}
