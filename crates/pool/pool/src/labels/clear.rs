//! Clears labels.

use super::*;

/// The result of [`clear_labels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleared {
    /// The number of labels that were cleared.
    pub labels: usize,
    /// Whether the content header of a cache device was cleared too.
    pub cache_header: bool,
}

/// Clears every valid label of a device, of any pool, and flushes.
///
/// The configuration and the ring are zeroed; the bytes before them stay. For a cache device the content
/// header is cleared too.
///
/// The caller must check that the device may be cleared (`find_use`).
///
/// # Errors
/// [`LabelError::TooSmall`], or the device's error.
pub fn clear_labels(device: &dyn Device) -> Result<Cleared, LabelError> {
    let layout = LeafLayout::new(device.size_bytes()).ok_or(LabelError::TooSmall)?;
    let mut cleared = Cleared::default();
    let zeros = vec![0u8; (LABEL_BYTES - LABEL_CONFIG_OFFSET_BYTES) as usize];
    let mut unread = None;
    for label in layout.label_offsets_bytes() {
        let at = label.saturating_add(LABEL_CONFIG_OFFSET_BYTES);
        let region = match device.read_vec(at, LABEL_CONFIG_BYTES) {
            Ok(region) => region,
            // The other labels are cleared all the same.
            Err(error) => {
                unread = Some(error);
                continue;
            }
        };
        let Some(state) = any_label_state(&region) else {
            continue;
        };
        device.write(at, &zeros)?;
        cleared.labels += 1;
        if state == LeafState::Cache && !cleared.cache_header {
            let header = vec![0u8; LABEL_BYTES as usize];
            device.write(VDEV_DATA_START_BYTES, &header)?;
            cleared.cache_header = true;
        }
    }
    device.flush()?;
    match unread {
        Some(error) => Err(error.into()),
        None => Ok(cleared),
    }
}

/// The state in a configuration region, if it decodes as one. Also covers devices that never joined a pool.
fn any_label_state(region: &[u8]) -> Option<LeafState> {
    if Encoding::decode(region).ok()? != Encoding::Xdr {
        return None;
    }
    let list = NvList::decode(region).ok()?;
    if list.u64("guid").unwrap_or(0) == 0 {
        return None;
    }
    LeafState::from_number(list.u64("state").ok()?)
}
