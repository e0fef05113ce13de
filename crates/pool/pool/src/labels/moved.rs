//! Labels at the end of a device that has grown.
//!
//! Labels 2 and 3 stand at the end, so on a device that grew they are missing until they are written at the new
//! end. They are copied from the first two, with all uberblocks, before anything else changes: so no crash finds a
//! device with fewer labels than the two at its start.
//!
//! Page `docs/format/label.md`, "Devices that grow".

use super::*;
use crate::import::{LabelFault, LeafLabel, is_region_intact, read_labels};
use millpond_env::mark;
use millpond_ondisk::UberblockRing;
use std::collections::BTreeMap;

/// The labels at the start of a device, which stay where they are.
const AT_START: [usize; 2] = [0, 1];
/// The labels at its end.
const AT_END: [usize; 2] = [2, 3];

/// Measures the present devices of `tops` again, and gives those that grew labels at their end, also if they grew
/// while the pool was not open. The number of copies written is 2 for a device whose labels moved, else 0.
pub(crate) fn follow_growth(
    topology: &Topology,
    tops: &[VdevId],
    is_meant: &dyn Fn(Guid) -> bool,
    write_order: WriteOrder,
) -> RoundReport {
    let mut targets = targets(topology, tops);
    targets.retain(|target| is_meant(target.guid));
    let works = targets.into_iter().map(|target| {
        let (guid, ashift) = (target.guid, target.ashift);
        let work = move |device: &dyn Device| match follow(device, guid, ashift) {
            Ok(true) => (AT_END.len(), None),
            Ok(false) => (0, None),
            Err(error) => (0, Some(error)),
        };
        (target, Box::new(work) as Work)
    });
    in_order(topology, write_order, works)
}

/// Measures the device of a leaf, and gives it labels at its end if they are missing there. Returns whether they were.
pub(crate) fn follow(device: &dyn Device, leaf: Guid, ashift: Ashift) -> Result<bool, LabelError> {
    let before = device.size_bytes();
    let now = device.measure()?;
    if now < before {
        return Err(LabelError::Shrunk { before, now });
    }
    if !lacks_end_labels(device, leaf) {
        return Ok(false);
    }
    copy_to_end(device, ashift)?;
    mark::hit("end-labels-moved");
    Ok(true)
}

fn lacks_end_labels(device: &dyn Device, leaf: Guid) -> bool {
    are_missing_at_end(&read_labels(device), leaf)
}

/// Whether these labels of a leaf are missing at the end, but not at the start. Labels that could not be read count as
/// present.
pub(crate) fn are_missing_at_end(labels: &[Result<LeafLabel, LabelFault>], leaf: Guid) -> bool {
    let is_own = |label: &Result<LeafLabel, LabelFault>| match label {
        Ok(label) => label.is_verified && label.guid == leaf,
        Err(_) => false,
    };
    let is_unreadable =
        |label: &Result<LeafLabel, LabelFault>| matches!(label, Err(LabelFault::Unreadable(_)));
    let at = |index: &usize| labels.get(*index);
    let has_start = AT_START.iter().filter_map(at).any(is_own);
    let mut end = AT_END.iter().filter_map(at);
    has_start && !end.any(|label| is_own(label) || is_unreadable(label))
}

/// Copies configuration, boot environment and valid uberblocks from the labels at the start to those at the end,
/// and flushes. Whatever was there before is overwritten.
fn copy_to_end(device: &dyn Device, ashift: Ashift) -> Result<(), LabelError> {
    let layout = LeafLayout::new(device.size_bytes()).ok_or(LabelError::TooSmall)?;
    let places = layout.label_offsets_bytes();
    let config = intact(
        device,
        &places,
        LABEL_CONFIG_OFFSET_BYTES,
        LABEL_CONFIG_BYTES,
    )?;
    let boot = intact(device, &places, BOOT_ENV_OFFSET_BYTES, BOOT_ENV_BYTES)?;
    let slots = valid_slots(device, &places, UberblockRing::new(ashift))?;
    for index in AT_END {
        let label = places[index];
        let ring_at = label.saturating_add(UBERBLOCK_RING_OFFSET_BYTES);
        // The ring first: a label without uberblocks would let the device look older than it is.
        let mut ring = vec![0u8; UBERBLOCK_RING_BYTES];
        for (offset, slot) in &slots {
            let sealed = sealer(slot)?.sealed(label.saturating_add(*offset));
            let start = offset.saturating_sub(UBERBLOCK_RING_OFFSET_BYTES);
            let start = usize::try_from(start).unwrap_or(usize::MAX);
            let end = start.saturating_add(sealed.len());
            if let Some(place) = ring.get_mut(start..end) {
                place.copy_from_slice(&sealed);
            }
        }
        device.write(ring_at, &ring)?;
        for (offset, region) in [
            (BOOT_ENV_OFFSET_BYTES, &boot),
            (LABEL_CONFIG_OFFSET_BYTES, &config),
        ] {
            if let Some(region) = region {
                let at = label.saturating_add(offset);
                device.write(at, &sealer(region)?.sealed(at))?;
            }
        }
    }
    device.flush()?;
    Ok(())
}

/// The region with a valid checksum in one of the labels at the start; `None` if there is none.
fn intact(
    device: &dyn Device,
    places: &[u64; 4],
    offset: u64,
    length: usize,
) -> Result<Option<Vec<u8>>, LabelError> {
    for index in AT_START {
        let at = places[index].saturating_add(offset);
        let region = device.read_vec(at, length)?;
        if is_region_intact(&region, at) {
            return Ok(Some(region));
        }
    }
    Ok(None)
}

/// The valid uberblock slots of the labels at the start, with their offsets in the label.
fn valid_slots(
    device: &dyn Device,
    places: &[u64; 4],
    cut: UberblockRing,
) -> Result<BTreeMap<u64, Vec<u8>>, LabelError> {
    let mut valid = BTreeMap::new();
    for index in AT_START {
        let label = places[index];
        let ring_at = label.saturating_add(UBERBLOCK_RING_OFFSET_BYTES);
        let ring = device.read_vec(ring_at, UBERBLOCK_RING_BYTES)?;
        for (offset, slot) in cut.slots(&ring) {
            let is_valid = Uberblock::decode(slot).is_ok()
                && is_region_intact(slot, label.saturating_add(offset));
            if is_valid {
                valid.entry(offset).or_insert_with(|| slot.to_vec());
            }
        }
    }
    Ok(valid)
}
