//! Features used by the blocks and dnodes of a dataset.

use millpond_ondisk::{BlockPointer, ChecksumKind, CompressionKind};

/// A bit set of features that blocks can reveal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BlockFeatures(u16);

impl BlockFeatures {
    pub(super) const LARGE_BLOCKS: Self = Self(1);
    pub(super) const LARGE_DNODE: Self = Self(2);
    pub(super) const SHA512: Self = Self(4);
    pub(super) const SKEIN: Self = Self(8);
    pub(super) const EDONR: Self = Self(16);
    pub(super) const BLAKE3: Self = Self(32);
    pub(super) const ZSTD: Self = Self(64);
    pub(super) const REWRITTEN: Self = Self(128);

    /// Each feature with its name in the dataset's table of features.
    pub(super) const NAMED: [(Self, &'static str); 8] = [
        (Self::LARGE_BLOCKS, "org.open-zfs:large_blocks"),
        (Self::LARGE_DNODE, "org.zfsonlinux:large_dnode"),
        (Self::SHA512, "org.illumos:sha512"),
        (Self::SKEIN, "org.illumos:skein"),
        (Self::EDONR, "org.illumos:edonr"),
        (Self::BLAKE3, "org.openzfs:blake3"),
        (Self::ZSTD, "org.freebsd:zstd_compress"),
        (Self::REWRITTEN, "com.truenas:physical_rewrite"),
    ];

    pub(super) fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }
    pub(super) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The features that one block uses.
    pub(super) fn of(pointer: &BlockPointer) -> Self {
        let mut found = Self::default();
        if pointer.lsize_bytes() > 128 << 10 {
            found.insert(Self::LARGE_BLOCKS);
        }
        if pointer.is_rewritten() {
            found.insert(Self::REWRITTEN);
        }
        match pointer.checksum_kind() {
            Some(ChecksumKind::Sha512) => found.insert(Self::SHA512),
            Some(ChecksumKind::Skein) => found.insert(Self::SKEIN),
            Some(ChecksumKind::Edonr) => found.insert(Self::EDONR),
            Some(ChecksumKind::Blake3) => found.insert(Self::BLAKE3),
            _ => {}
        }
        if pointer.compression() == Some(CompressionKind::Zstd) {
            found.insert(Self::ZSTD);
        }
        found
    }
}
