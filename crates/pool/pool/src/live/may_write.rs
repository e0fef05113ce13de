//! Whether a pool may be opened for writing, and if not, everything that stands against it.
//!
//! Page `docs/format/features.md`, "What keeps a pool from being written".

use crate::features::UnsupportedFeature;
use crate::live::features::POOL_VERSION_FEATURES;
use crate::{Pool, PoolError};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{ErrorScrubPhys, Guid, ScanFunction, ScanPhase, ScanPhys, VdevId};
use millpond_vdev::{VdevConfig, VdevType};

/// Why a pool can be opened for reading only: every reason there is, at least one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the pool cannot be written to: {}", list(reasons))]
pub struct WhyReadOnly {
    /// Features first, then states, then the layout.
    pub reasons: Vec<ReadOnlyReason>,
}

fn list(reasons: &[ReadOnlyReason]) -> String {
    let words: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    words.join("; ")
}

/// One thing that keeps a pool from being written to.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadOnlyReason {
    /// It is of a version before feature flags.
    #[error("it is of version {0}, and versions below 5000 are not written")]
    OldVersion(u64),
    /// A feature is in use that is only read, or not known.
    #[error("feature {} is in use", .0.guid)]
    Feature(UnsupportedFeature),
    /// It has a deduplication table of the kind before `fast_dedup`, which no feature tells of.
    #[error("it has a deduplication table ({table})")]
    DedupTable {
        /// The entry of the object directory.
        table: String,
    },
    /// A resilver has begun and not ended: devices lack data that they should have. Scrubs are cancelled
    /// instead.
    #[error("a {} is in progress", scan_word(*.0))]
    ScanInProgress(ScanFunction),
    /// A checkpoint is kept.
    #[error("it has a checkpoint")]
    Checkpoint,
    /// A device is being replaced, by command or by a hot spare.
    #[error("a device is being replaced ({})", kind.name())]
    ReplacementInProgress {
        /// `replacing` or `spare`.
        kind: VdevType,
        /// The vdev that holds both.
        guid: Guid,
    },
    /// A sequential reconstruction has begun and not ended on this leaf.
    #[error("a device is being rebuilt")]
    RebuildInProgress {
        /// The leaf.
        guid: Guid,
    },
    /// A vdev was removed, or is being removed.
    #[error("vdev {0} was removed, or is being removed")]
    RemovedVdev(VdevId),
    /// A RAID-Z vdev was widened, or is being widened.
    #[error("vdev {0} was widened, or is being widened")]
    ExpandedVdev(VdevId),
    /// A dRAID vdev.
    #[error("vdev {0} is of dRAID")]
    Draid(VdevId),
    /// A top-level vdev is not there.
    #[error("vdev {0} is not there")]
    MissingVdev(VdevId),
    /// A dataset's intent log holds what was promised and not yet written. Told by whoever knows
    /// datasets, never by [`may_write`].
    #[error("the intent log of {dataset} was not replayed")]
    IntentLog {
        /// The dataset.
        dataset: String,
    },
    /// Its hosts take turns, and tell one another by heartbeats.
    #[error("property multihost is on, and heartbeats are not written")]
    Multihost,
}

fn scan_word(function: ScanFunction) -> &'static str {
    match function {
        ScanFunction::Resilver => "resilver",
        ScanFunction::ErrorScrub => "scrub of known errors",
        _ => "scrub",
    }
}

/// What [`may_write`] could not find out, or found.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MayWriteError {
    /// The pool may only be read.
    #[error(transparent)]
    ReadOnly(#[from] WhyReadOnly),
    /// The pool's objects could not be read to find out.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Whether everything in a pool is of the kinds that the writing side keeps right.
///
/// Intent logs are not looked at: they belong to datasets, which are not known here.
///
/// # Errors
/// [`WhyReadOnly`] with every reason; [`PoolError`] if one of the objects looked at cannot be read.
pub fn may_write(pool: &Pool) -> Result<(), MayWriteError> {
    let mut reasons = Vec::new();
    if pool.version() < POOL_VERSION_FEATURES {
        reasons.push(ReadOnlyReason::OldVersion(pool.version()));
    }
    let features = pool.features().unwritable().into_iter();
    reasons.extend(features.map(ReadOnlyReason::Feature));
    for entry in pool.directory_names()? {
        let is_table = entry.starts_with("DDT-")
            && ["-ditto", "-duplicate", "-unique"]
                .iter()
                .any(|class| entry.ends_with(class));
        if is_table {
            reasons.push(ReadOnlyReason::DedupTable { table: entry });
        }
    }
    let (reason, _) = scans(pool)?;
    reasons.extend(reason);
    if pool.directory_value(key::CHECKPOINT)?.is_some() || pool.uberblock().checkpoint_txg.0 != 0 {
        reasons.push(ReadOnlyReason::Checkpoint);
    }
    for (id, top) in (0u32..).map(VdevId).zip(&pool.assembly().root.children) {
        match top.kind {
            VdevType::Draid => reasons.push(ReadOnlyReason::Draid(id)),
            VdevType::Indirect => reasons.push(ReadOnlyReason::RemovedVdev(id)),
            VdevType::Missing => reasons.push(ReadOnlyReason::MissingVdev(id)),
            _ if top.removing => reasons.push(ReadOnlyReason::RemovedVdev(id)),
            _ if top.raidz_expanding || !top.raidz_expand_txgs.is_empty() => {
                reasons.push(ReadOnlyReason::ExpandedVdev(id));
            }
            _ => {}
        }
        below(top, &mut reasons);
    }
    if let Some(property) = pool.property("multihost")?
        && property.value == Some(crate::properties::PropertyValue::Number(1))
    {
        reasons.push(ReadOnlyReason::Multihost);
    }
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(WhyReadOnly { reasons }.into())
    }
}

/// Whether a scrub has begun and neither ended nor been cancelled: it is cancelled when the pool is opened
/// for writing.
pub(crate) fn has_unfinished_scrub(pool: &Pool) -> Result<bool, PoolError> {
    Ok(scans(pool)?.1)
}

/// An unfinished resilver, which keeps a pool from being written, and whether there is an unfinished scrub.
fn scans(pool: &Pool) -> Result<(Option<ReadOnlyReason>, bool), PoolError> {
    use crate::error::Reading;
    let (mut reason, mut has_scrub) = (None, false);
    if let Some(value) = pool.directory_value(key::SCAN)? {
        let words: Vec<u64> = value.integers().collect();
        let scan = ScanPhys::from_words(&words).reading("scan state")?;
        match (scan.phase, scan.function) {
            (ScanPhase::Scanning, ScanFunction::Scrub) => has_scrub = true,
            (ScanPhase::Scanning, function) => {
                reason = Some(ReadOnlyReason::ScanInProgress(function));
            }
            _ => {}
        }
    }
    if let Some(value) = pool.directory_value(key::ERROR_SCRUB)? {
        let words: Vec<u64> = value.integers().collect();
        let scan = ErrorScrubPhys::from_words(&words).reading("scan state")?;
        has_scrub |= matches!(scan.phase, ScanPhase::Scanning | ScanPhase::ErrorScrubbing);
    }
    Ok((reason, has_scrub))
}

/// Replacements and rebuilds at or below a vdev. A checked tree nests at most
/// `millpond_vdev::DEPTH_MAX` deep.
fn below(vdev: &VdevConfig, reasons: &mut Vec<ReadOnlyReason>) {
    if matches!(vdev.kind, VdevType::Replacing | VdevType::Spare) {
        reasons.push(ReadOnlyReason::ReplacementInProgress {
            kind: vdev.kind,
            guid: vdev.guid,
        });
    }
    if vdev.rebuild_txg.is_some() {
        reasons.push(ReadOnlyReason::RebuildInProgress { guid: vdev.guid });
    }
    for child in &vdev.children {
        below(child, reasons);
    }
}
