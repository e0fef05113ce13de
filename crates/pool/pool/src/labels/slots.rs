//! The slots that hold an uberblock, with their checksums.

use super::{LabelError, SealedRegions, Target, sealer};
use millpond_checksum::LabelSealer;
use millpond_env::sync::Arc;
use millpond_ondisk::{Ashift, LABEL_COUNT, LeafLayout, Txg, Uberblock, UberblockRing};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Slots that hold one uberblock, for leaves of any size.
#[derive(Default)]
pub(super) struct SealedSlots {
    /// By size of a slot in bytes.
    sealers: BTreeMap<usize, LabelSealer>,
    /// By offset and size of a slot in bytes. Leaves of one size have their labels at the same offsets.
    sealed: BTreeMap<(u64, usize), Arc<Vec<u8>>>,
}

impl SealedSlots {
    /// The slots of the four rings of a leaf.
    pub(super) fn of_leaf(
        &mut self,
        target: &Target,
        uberblock: &Uberblock,
        slot: Txg,
        multihost: bool,
    ) -> Result<SealedRegions, LabelError> {
        let layout = LeafLayout::new(target.device.size_bytes()).ok_or(LabelError::TooSmall)?;
        let ring = UberblockRing::new(target.ashift);
        let slot = ring.slot_of_txg(slot, multihost);
        let (Some(bytes), Some(offset)) =
            (uberblock.encode_slot(ring), ring.slot_offset_bytes(slot))
        else {
            return Err(LabelError::TooLarge);
        };
        let sealer = match self.sealers.entry(bytes.len()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(sealer(&bytes)?),
        };
        let labels = layout.label_offsets_bytes().into_iter();
        let regions = labels.map(|label| {
            let at = label.saturating_add(offset);
            let sealed = self.sealed.entry((at, bytes.len()));
            (
                at,
                Arc::clone(sealed.or_insert_with(|| Arc::new(sealer.sealed(at)))),
            )
        });
        Ok(regions.collect())
    }
}

/// A heartbeat with its checksum: the offset in bytes of the reserved slot in one of the four labels, and its bytes.
pub(super) fn heartbeat(
    device_bytes: u64,
    ashift: Ashift,
    uberblock: &Uberblock,
    random: u64,
) -> Result<(u64, Vec<u8>), LabelError> {
    let layout = LeafLayout::new(device_bytes).ok_or(LabelError::TooSmall)?;
    let ring = UberblockRing::new(ashift);
    let offset = ring.slot_offset_bytes(ring.heartbeat_slot());
    let (Some(bytes), Some(offset)) = (uberblock.encode_slot(ring), offset) else {
        return Err(LabelError::TooLarge);
    };
    let label = usize::try_from(random % LABEL_COUNT as u64).unwrap_or(0);
    let offsets = layout.label_offsets_bytes();
    let label = offsets.get(label).copied().unwrap_or(0);
    let at = label.saturating_add(offset);
    Ok((at, sealer(&bytes)?.sealed(at)))
}
