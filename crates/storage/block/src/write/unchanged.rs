//! Blocks that are written with the content that they have (no-op writes): nothing is stored, and the pointer stays. So
//! snapshots keep sharing them.
//!
//! Page `docs/format/checksums.md`, "Writes without a change".

use super::prepare::Stored;
use super::{BlockWrite, Run};
use millpond_ondisk::{CompressionKind, Endian, Level};
use millpond_vdev::VdevKind;

impl Run<'_> {
    /// Whether the previous pointer refers to a block that has this content and was stored in the same way.
    pub(super) fn is_unchanged(&self, job: &BlockWrite, stored: &Stored) -> bool {
        let old = &job.previous;
        let may_stay = job.checksum.identifies_content()
            && job.compression != CompressionKind::Off
            && job.dedup.is_none()
            && job.key.is_none()
            && !job.is_raw
            && job.level == Level(0)
            && !job.object_type.is_metadata();
        let is_same = || {
            old.checksum_kind() == Some(job.checksum)
                && old.compression() == Some(stored.compression)
                && old.object_type() == job.object_type
                && old.endian() == Endian::Little
                && !old.is_dedup()
                && old.lsize_bytes() == job.content.len() as u64
                && old.psize_bytes() == stored.bytes.len() as u64
                && old.checksum_words() == stored.checksum_words
        };
        // On a removed vdev the block would move with the next write anyway.
        let is_in_place = || {
            let mut tops = old.dvas().map(|dva| self.topology.tree.top(dva.vdev));
            old.dvas().count() == usize::from(job.copies)
                && tops.all(|top| top.is_some_and(|top| !matches!(top.kind, VdevKind::Indirect)))
        };
        // A block that could not be read is mended by writing it.
        may_stay
            && !old.is_hole()
            && !old.is_embedded()
            && is_same()
            && is_in_place()
            && !self.store.is_damaged(&job.address)
    }
}
