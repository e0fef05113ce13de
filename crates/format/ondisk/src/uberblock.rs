//! The uberblock: the root of a committed transaction group, and the ring of the latest ones.
//!
//! Page `docs/format/uberblock.md`.

use crate::{
    Ashift, BLOCK_POINTER_BYTES, BlockPointer, DecodeError, Endian, PoolVersion, Reader, Txg,
    UBERBLOCK_RING_BYTES, UBERBLOCK_RING_OFFSET_BYTES, Writer, unsealed_label_region,
};

/// Size of an uberblock at the start of its slot, in bytes.
pub const UBERBLOCK_BYTES: usize = 216;

/// An uberblock in native form. Page `docs/format/uberblock.md`.
///
/// The fields after `root` were added over time; older writers left them zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uberblock {
    /// The byte order of the uberblock. Blocks carry their own.
    pub endian: Endian,
    /// Pool version: 1 to 28, or 5000.
    pub version: u64,
    /// The transaction group that this uberblock commits.
    pub txg: Txg,
    /// Sum, modulo 2^64, of the guids of all vdevs in the tree.
    pub guid_sum: u64,
    /// Time of the sync in seconds since 1970 (UTC); not monotonic.
    pub timestamp_s: u64,
    /// The meta object set.
    pub root: BlockPointer,
    /// The highest version that the writer supported.
    pub software_version: u64,
    /// [`Uberblock::MMP_MAGIC`] if the next two fields are valid.
    pub mmp_magic: u64,
    /// Nanoseconds since the last heartbeat (decaying average); 0 if multihost is off.
    pub mmp_delay_ns: u64,
    /// Valid bits, interval, sequence and fail intervals; see [`Uberblock::mmp`].
    pub mmp_config: u64,
    /// The txg of the checkpoint if this is the uberblock of a checkpoint, else 0.
    pub checkpoint_txg: Txg,
    /// Progress of RAID-Z expansion; see [`RaidzReflow`].
    pub raidz_reflow: RaidzReflow,
}

/// The parameters of the heartbeat, as far as the writer set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmpState {
    /// Nanoseconds since the last heartbeat (decaying average); 0 if multihost is off.
    pub delay_ns: u64,
    /// Milliseconds between heartbeats.
    pub interval_ms: Option<u32>,
    /// Sequence number of heartbeats with the same uberblock.
    pub sequence: Option<u16>,
    /// Number of intervals without success after which the writer suspends the pool; 0 for never.
    pub fail_intervals: Option<u16>,
}

/// Progress of RAID-Z expansion. Page `docs/format/uberblock.md`, "Reflow".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RaidzReflow(pub u64);

impl RaidzReflow {
    /// Bytes of the vdev that have been moved.
    #[must_use]
    pub fn offset_bytes(self) -> u64 {
        (self.0 & ((1 << 55) - 1)) << 9
    }
    /// State of the scratch area: 0 unused, 1 valid, 2 to 4 no longer needed.
    #[must_use]
    pub fn scratch_state(self) -> u16 {
        u16::try_from(self.0 >> 55).unwrap_or(u16::MAX)
    }
    /// Whether the scratch area holds data that must be copied back first.
    #[must_use]
    pub fn is_scratch_valid(self) -> bool {
        self.scratch_state() == 1
    }
}

/// The sort key of uberblocks by age: txg, then time, then heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UberblockRank {
    /// The txg; the larger one is newer.
    pub txg: Txg,
    /// The time, to compare equal txgs.
    pub timestamp_s: u64,
    /// The heartbeat, to compare equal times; 0 if not set.
    pub mmp_sequence: u16,
}

impl Uberblock {
    /// The magic number at the start of an uberblock.
    pub const MAGIC: u64 = 0x00ba_b10c;
    /// The magic number of valid heartbeat fields.
    pub const MMP_MAGIC: u64 = 0xa11c_ea11;

    /// Reads an uberblock of either byte order from the start of a slot.
    ///
    /// Does not verify the slot's checksum (`millpond_checksum::verify_label` does that).
    ///
    /// # Errors
    /// If there are fewer than 216 bytes, or the magic number matches neither byte order.
    pub fn decode(slot: &[u8]) -> Result<Self, DecodeError> {
        const NAME: &str = "uberblock";
        let magic = Reader::new(NAME, slot, Endian::Little).u64()?;
        let endian = match magic {
            Self::MAGIC => Endian::Little,
            magic if magic.swap_bytes() == Self::MAGIC => Endian::Big,
            _ => return Err(DecodeError::new(NAME, "no magic", 0)),
        };
        let mut reader = Reader::new(NAME, slot, endian);
        reader.skip(8)?;
        Ok(Self {
            endian,
            version: reader.u64()?,
            txg: Txg(reader.u64()?),
            guid_sum: reader.u64()?,
            timestamp_s: reader.u64()?,
            root: BlockPointer::decode(reader.take(BLOCK_POINTER_BYTES)?, endian)?,
            software_version: reader.u64()?,
            mmp_magic: reader.u64()?,
            mmp_delay_ns: reader.u64()?,
            mmp_config: reader.u64()?,
            checkpoint_txg: Txg(reader.u64()?),
            raidz_reflow: RaidzReflow(reader.u64()?),
        })
    }
    /// Encodes the uberblock as 216 little-endian bytes, regardless of `endian`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(UBERBLOCK_BYTES);
        writer.put_u64(Self::MAGIC);
        writer.put_u64(self.version);
        writer.put_u64(self.txg.0);
        writer.put_u64(self.guid_sum);
        writer.put_u64(self.timestamp_s);
        writer.put(&self.root.encode());
        writer.put_u64(self.software_version);
        writer.put_u64(self.mmp_magic);
        writer.put_u64(self.mmp_delay_ns);
        writer.put_u64(self.mmp_config);
        writer.put_u64(self.checkpoint_txg.0);
        writer.put_u64(self.raidz_reflow.0);
        writer.finish()
    }
    /// Encodes a whole ring slot with this uberblock, without the checksum ([`unsealed_label_region`]).
    #[must_use]
    pub fn encode_slot(&self, ring: UberblockRing) -> Option<Vec<u8>> {
        unsealed_label_region(&self.encode(), ring.slot_bytes())
    }
    /// The parameters of the heartbeat; `None` if the writer (before 0.7) did not support them.
    #[must_use]
    pub fn mmp(&self) -> Option<MmpState> {
        let bits =
            |low: u32, width: u32| (self.mmp_config >> low) & ((1u64 << width).wrapping_sub(1));
        let valid = |bit: u64| self.mmp_config & bit != 0;
        (self.mmp_magic == Self::MMP_MAGIC).then(|| MmpState {
            delay_ns: self.mmp_delay_ns,
            interval_ms: u32::try_from(bits(8, 24)).ok().filter(|_| valid(1)),
            sequence: u16::try_from(bits(32, 16)).ok().filter(|_| valid(2)),
            fail_intervals: u16::try_from(bits(48, 16)).ok().filter(|_| valid(4)),
        })
    }
    /// The same uberblock with these parameters of the heartbeat. Intervals above 24 bits count as the largest.
    #[must_use]
    pub fn with_mmp(self, mmp: MmpState) -> Self {
        let interval = mmp
            .interval_ms
            .map(|ms| (u64::from(ms.min(0xff_ffff)) << 8) | 1);
        let sequence = mmp.sequence.map(|number| (u64::from(number) << 32) | 2);
        let fails = mmp.fail_intervals.map(|count| (u64::from(count) << 48) | 4);
        let config = [interval, sequence, fails].into_iter().flatten();
        Self {
            mmp_magic: Self::MMP_MAGIC,
            mmp_delay_ns: mmp.delay_ns,
            mmp_config: config.fold(0, |all, field| all | field),
            ..self
        }
    }
    /// The sort key for finding the newest uberblock.
    #[must_use]
    pub fn rank(&self) -> UberblockRank {
        UberblockRank {
            txg: self.txg,
            timestamp_s: self.timestamp_s,
            mmp_sequence: self.mmp().and_then(|mmp| mmp.sequence).unwrap_or(0),
        }
    }
    /// Whether the pool version is supported: 1 to 28, or 5000.
    #[must_use]
    pub fn has_known_version(&self) -> bool {
        PoolVersion(self.version).is_known()
    }
}

/// The division of the 128 KiB ring into slots. Page `docs/format/uberblock.md`, "Ring".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UberblockRing {
    slot_shift: u32,
}

impl UberblockRing {
    /// The ring of a leaf whose **top-level** vdev has this ashift: slots of 1 KiB to 8 KiB.
    #[must_use]
    pub fn new(ashift: Ashift) -> Self {
        Self {
            slot_shift: u32::from(ashift.0).clamp(10, 13),
        }
    }
    /// The four possible rings, for a reader that does not know the ashift.
    #[must_use]
    pub fn all() -> [Self; 4] {
        [10, 11, 12, 13].map(|slot_shift| Self { slot_shift })
    }
    /// Bytes of a slot.
    #[must_use]
    pub fn slot_bytes(self) -> usize {
        1usize.checked_shl(self.slot_shift).unwrap_or(usize::MAX)
    }
    /// The number of slots in the ring: 128 to 16.
    #[must_use]
    pub fn slot_count(self) -> u64 {
        128u64
            .checked_shr(self.slot_shift.saturating_sub(10))
            .unwrap_or(1)
    }
    /// Byte offset of a slot in its label; `None` beyond the ring.
    #[must_use]
    pub fn slot_offset_bytes(self, slot: u64) -> Option<u64> {
        if slot >= self.slot_count() {
            return None;
        }
        UBERBLOCK_RING_OFFSET_BYTES.checked_add(slot.checked_shl(self.slot_shift)?)
    }
    /// The slot for a txg. With `multihost` the last slot is reserved for heartbeats.
    #[must_use]
    pub fn slot_of_txg(self, txg: Txg, multihost: bool) -> u64 {
        let usable = self.slot_count().saturating_sub(u64::from(multihost));
        txg.0.checked_rem(usable).unwrap_or(0)
    }
    /// The slot that is reserved for heartbeats while multihost is on.
    #[must_use]
    pub fn heartbeat_slot(self) -> u64 {
        self.slot_count().saturating_sub(1)
    }
    /// The slots in the 128 KiB of a ring: (byte offset in the label, bytes of the slot).
    pub fn slots(self, ring: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
        let ring = ring.get(..UBERBLOCK_RING_BYTES).unwrap_or(ring);
        (0..)
            .map_while(move |slot| self.slot_offset_bytes(slot))
            .zip(ring.chunks_exact(self.slot_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hex;
    use crate::{ChecksumKind, CompressionKind, VdevId};
    use proptest::prelude::*;

    /// The first 216 bytes of a slot that OpenZFS wrote.
    const REAL: &str = "
        0cb1ba0000000000 8813000000000000 0f01000000000000 ffa73cedf99189d5
        3f61016b00000000 1000000000000000 50040e0000000000 1000000000000000
        a004000000000000 1000000000000000 a004010000000000 0700070002070b80
        0000000000000000 0000000000000000 0000000000000000 0f01000000000000
        5900000000000000 bbe0d1d902000000 9dba6844f50a0000 1842d4ad1c151500
        337ef2337bb8111b 8813000000000000 11ea1ca100000000 0000000000000000
        0000000000000000 0000000000000000 0000000000000000";

    fn real() -> Vec<u8> {
        hex(REAL)
    }

    #[test]
    fn a_real_uberblock_decodes_and_encodes_to_itself() {
        let bytes = real();
        let uberblock = Uberblock::decode(&bytes).unwrap();
        assert_eq!(uberblock.version, 5000);
        assert_eq!(uberblock.txg, Txg(271));
        assert_eq!(uberblock.guid_sum, 0xd589_91f9_ed3c_a7ff);
        assert_eq!(uberblock.timestamp_s, 0x6b01_613f);
        let dva = uberblock.root.dvas().next().unwrap();
        assert_eq!(
            (dva.vdev, dva.offset_bytes, dva.asize_bytes),
            (VdevId(0), 0x000e_0450 << 9, 8192)
        );
        assert_eq!(uberblock.root.lsize_bytes(), 4096);
        assert_eq!(uberblock.root.compression(), Some(CompressionKind::Off));
        assert_eq!(
            uberblock.root.checksum_kind(),
            Some(ChecksumKind::Fletcher4)
        );
        assert_eq!(uberblock.root.object_type().0, 11);
        assert_eq!(uberblock.root.birth(), Txg(271));
        assert_eq!(uberblock.software_version, 5000);
        let mmp = uberblock.mmp().unwrap();
        assert_eq!(
            (mmp.delay_ns, mmp.interval_ms, mmp.sequence),
            (0, None, None)
        );
        assert_eq!(
            UberblockRing::new(Ashift(12)).slot_of_txg(Txg(271), false),
            15
        );
        assert_eq!(uberblock.encode(), bytes);
    }

    #[test]
    fn heartbeats_are_decoded_as_they_were_encoded() {
        let real = Uberblock::decode(&real()).unwrap();
        let mmp = MmpState {
            delay_ns: 990_000_000,
            interval_ms: Some(1000),
            sequence: Some(3),
            fail_intervals: Some(10),
        };
        let beat = real.with_mmp(mmp);
        assert_eq!(beat.mmp_config, 0x000a_0003_0003_e807);
        assert_eq!(Uberblock::decode(&beat.encode()).unwrap().mmp(), Some(mmp));
        assert!(beat.rank() > real.rank());
        let long = real.with_mmp(MmpState {
            interval_ms: Some(u32::MAX),
            sequence: None,
            ..mmp
        });
        let read = long.mmp().unwrap();
        assert_eq!((read.interval_ms, read.sequence), (Some(0xff_ffff), None));
        let ring = UberblockRing::new(Ashift(12));
        assert_eq!(ring.heartbeat_slot(), 31);
        assert!((0..64).all(|txg| ring.slot_of_txg(Txg(txg), true) != 31));
    }

    #[test]
    fn a_byteswapped_uberblock_decodes_to_equal_values() {
        let mut bytes = real();
        let little = Uberblock::decode(&bytes).unwrap();
        for word in bytes.chunks_exact_mut(8) {
            word.reverse();
        }
        let big = Uberblock::decode(&bytes).unwrap();
        assert_eq!(big.endian, Endian::Big);
        assert_eq!(
            Uberblock {
                endian: Endian::Little,
                ..big
            },
            little
        );
        assert_eq!(big.encode(), real());
    }

    #[test]
    fn slots_follow_the_ashift_of_the_top_level_vdev() {
        for (ashift, bytes, count) in [
            (9, 1024, 128),
            (10, 1024, 128),
            (11, 2048, 64),
            (12, 4096, 32),
            (13, 8192, 16),
            (16, 8192, 16),
        ] {
            let ring = UberblockRing::new(Ashift(ashift));
            assert_eq!((ring.slot_bytes(), ring.slot_count()), (bytes, count));
            assert_eq!(ring.slot_offset_bytes(count), None);
            assert_eq!(ring.slot_offset_bytes(1), Some(0x20000 + bytes as u64));
            assert_eq!(
                ring.slots(&vec![0; UBERBLOCK_RING_BYTES]).count() as u64,
                count
            );
        }
        let ring = UberblockRing::new(Ashift(12));
        assert_eq!(ring.slot_of_txg(Txg(31), false), 31);
        assert_eq!(ring.slot_of_txg(Txg(31), true), 0);
    }

    #[test]
    fn txg_outranks_time_and_time_outranks_the_heartbeat() {
        let base = Uberblock::decode(&real()).unwrap();
        let later = Uberblock {
            timestamp_s: base.timestamp_s + 1,
            ..base
        };
        let newer = Uberblock {
            txg: Txg(272),
            timestamp_s: 0,
            ..base
        };
        let beat = Uberblock {
            mmp_config: 2 | (7 << 32),
            ..base
        };
        let unstated = Uberblock {
            mmp_config: 9 << 32,
            ..base
        };
        assert!(newer.rank() > later.rank());
        assert!(later.rank() > beat.rank());
        assert!(beat.rank() > base.rank());
        assert_eq!(unstated.rank(), base.rank());
    }

    #[test]
    fn heartbeat_fields_are_read_only_where_valid() {
        let base = Uberblock::decode(&real()).unwrap();
        let on = Uberblock {
            mmp_delay_ns: 5,
            mmp_config: 7 | (1000 << 8) | (3 << 32) | (10 << 48),
            ..base
        };
        assert_eq!(
            on.mmp(),
            Some(MmpState {
                delay_ns: 5,
                interval_ms: Some(1000),
                sequence: Some(3),
                fail_intervals: Some(10)
            })
        );
        assert_eq!(Uberblock { mmp_magic: 0, ..on }.mmp(), None);
    }

    #[test]
    fn reflow_progress_is_an_offset_and_a_state() {
        let reflow = RaidzReflow(0x0200_0000_0031_2cd6);
        assert_eq!(
            (reflow.scratch_state(), reflow.offset_bytes()),
            (4, 0x0031_2cd6 * 512)
        );
        assert!(!reflow.is_scratch_valid());
        assert!(RaidzReflow(1 << 55).is_scratch_valid());
        assert_eq!(RaidzReflow(u64::MAX).scratch_state(), 511);
    }

    #[test]
    fn too_few_bytes_or_another_magic_is_no_uberblock() {
        let bytes = real();
        for length in 0..bytes.len() {
            assert!(Uberblock::decode(&bytes[..length]).is_err());
        }
        assert_eq!(
            Uberblock::decode(&[0; 1024]).unwrap_err().reason,
            "no magic"
        );
    }

    #[test]
    fn a_slot_is_the_uberblock_and_zeros_up_to_its_trailer() {
        let uberblock = Uberblock::decode(&real()).unwrap();
        for ring in UberblockRing::all() {
            let slot = uberblock.encode_slot(ring).unwrap();
            assert_eq!(slot.len(), ring.slot_bytes());
            assert_eq!(slot[..UBERBLOCK_BYTES], real());
            assert!(slot[UBERBLOCK_BYTES..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn versions_1_to_28_and_5000_exist() {
        let base = Uberblock::decode(&real()).unwrap();
        let known = |version| Uberblock { version, ..base }.has_known_version();
        let numbers: Vec<u64> = (0..6000).filter(|version| known(*version)).collect();
        assert_eq!(numbers, (1..=28).chain([5000]).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn any_words_after_the_magic_survive(words in proptest::collection::vec(any::<u64>(), 26)) {
            let mut bytes = Uberblock::MAGIC.to_le_bytes().to_vec();
            words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            let uberblock = Uberblock::decode(&bytes).unwrap();
            prop_assert_eq!(uberblock.encode(), bytes);
            let _ = (uberblock.rank(), uberblock.raidz_reflow.offset_bytes());
        }
    }
}
