//! Space totals of blocks, and marks that compare two sets of blocks without storing either.

use millpond_alloc::deflated_pointer_bytes;
use millpond_ondisk::{BlockPointer, EmbeddedKind, VdevId};
use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

/// Totals of a set of blocks. Arithmetic wraps, so that forged sizes cannot stop a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sums {
    /// Count of blocks, including embedded ones.
    pub(super) count: i64,
    /// Deflated bytes.
    pub(super) used: i64,
    /// Physical bytes.
    pub(super) compressed: i64,
    /// Logical bytes; for metadata, physical bytes.
    pub(super) uncompressed: i64,
    /// The sum of the blocks' marks. Two sets with equal marks are equal, except with a probability of
    /// 2^-128.
    pub(super) mark: Mark,
    /// The sum of the marks of the addresses, for stored blocks only.
    pub(super) places: Mark,
}

/// A sum of hashes in two 64-bit lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub(super) struct Mark(u64, u64);

impl Mark {
    pub(super) fn of(words: &[u64]) -> Self {
        let mut lanes = [0x9e37_79b9_7f4a_7c15u64, 0xc2b2_ae3d_27d4_eb4f];
        for word in words {
            for (lane, factor) in lanes
                .iter_mut()
                .zip([0xff51_afd7_ed55_8ccd, 0x94d0_49bb_1331_11eb])
            {
                *lane = (*lane ^ word).wrapping_mul(factor);
                *lane ^= *lane >> 29;
            }
        }
        Self(lanes[0], lanes[1])
    }
    pub(super) fn plus(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0), self.1.wrapping_add(other.1))
    }
    fn minus(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0), self.1.wrapping_sub(other.1))
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.count = self.count.wrapping_add(other.count);
        self.used = self.used.wrapping_add(other.used);
        self.compressed = self.compressed.wrapping_add(other.compressed);
        self.uncompressed = self.uncompressed.wrapping_add(other.uncompressed);
        self.mark = self.mark.plus(other.mark);
        self.places = self.places.plus(other.places);
    }
}

impl SubAssign for Sums {
    fn sub_assign(&mut self, other: Self) {
        self.count = self.count.wrapping_sub(other.count);
        self.used = self.used.wrapping_sub(other.used);
        self.compressed = self.compressed.wrapping_sub(other.compressed);
        self.uncompressed = self.uncompressed.wrapping_sub(other.uncompressed);
        self.mark = self.mark.minus(other.mark);
        self.places = self.places.minus(other.places);
    }
}

/// The deflate ratios of a pool's vdevs.
#[derive(Debug, Clone, Default)]
pub(super) struct Ratios(pub(super) BTreeMap<VdevId, u64>);

impl Ratios {
    /// Deflated bytes of a pointer.
    pub(super) fn used(&self, pointer: &BlockPointer) -> u64 {
        deflated_pointer_bytes(pointer, |vdev| self.0.get(&vdev).copied())
    }

    /// The totals of one block; zero for holes and redacted blocks.
    pub(super) fn sums(&self, pointer: &BlockPointer) -> Sums {
        if !is_block(pointer) {
            return Sums::default();
        }
        let is_data = pointer.level().0 == 0 && !pointer.object_type().is_metadata();
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let lsize = signed(pointer.lsize_bytes());
        let mark = block_mark(pointer);
        if pointer.is_embedded() {
            return Sums {
                count: 1,
                uncompressed: if is_data { lsize } else { 0 },
                mark,
                ..Sums::default()
            };
        }
        let psize = signed(pointer.psize_bytes());
        Sums {
            count: 1,
            used: signed(self.used(pointer)),
            compressed: psize,
            uncompressed: if is_data { lsize } else { psize },
            mark,
            places: place_mark(pointer),
        }
    }
}

/// The mark of a block's first address.
pub(super) fn place_mark(pointer: &BlockPointer) -> Mark {
    pointer.dvas().next().map_or(Mark::default(), |dva| {
        Mark::of(&[u64::from(dva.vdev.0), dva.offset_bytes])
    })
}

/// The mark of a block from the fields that block pointer lists preserve: addresses, properties and births.
/// Lists omit the content of embedded blocks.
fn block_mark(pointer: &BlockPointer) -> Mark {
    let [a0, a1, b0, b1, _, _, properties, _, _, physical, birth, ..] = pointer.words;
    if pointer.is_embedded() {
        return Mark::of(&[properties, birth]);
    }
    Mark::of(&[a0, a1, b0, b1, properties, physical, birth])
}

/// Whether a pointer refers to a block that is accounted: not a hole, not redacted.
pub(super) fn is_block(pointer: &BlockPointer) -> bool {
    !pointer.is_hole() && pointer.embedded_kind() != Some(EmbeddedKind::Redacted)
}
