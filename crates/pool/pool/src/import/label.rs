//! Reads the four labels of one device.

use millpond_device::{Device, DeviceError};
use millpond_env::sync::Arc;
use millpond_nvlist::{Encoding, NvList};
use millpond_ondisk::{
    BOOT_ENV_BYTES, BOOT_ENV_OFFSET_BYTES, BootEnvironment, DecodeError, Guid, LABEL_CONFIG_BYTES,
    LABEL_CONFIG_OFFSET_BYTES, LABEL_COUNT, LeafLayout, Txg,
};

/// The use of a device according to its label (`state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeafState {
    /// A leaf of a pool that was imported when the label was written.
    Active,
    /// A leaf of an exported pool.
    Exported,
    /// A leaf of a destroyed pool.
    Destroyed,
    /// A hot spare that is not in use; several pools may share it.
    Spare,
    /// A cache device.
    Cache,
}

impl LeafState {
    /// The state with this number; `None` for states that are not stored in labels.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Active,
            1 => Self::Exported,
            2 => Self::Destroyed,
            3 => Self::Spare,
            4 => Self::Cache,
            _ => return None,
        })
    }
    /// The number of this state.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Self::Active => 0,
            Self::Exported => 1,
            Self::Destroyed => 2,
            Self::Spare => 3,
            Self::Cache => 4,
        }
    }
    /// Whether labels in this state name a pool.
    #[must_use]
    pub fn has_pool(self) -> bool {
        !matches!(self, Self::Spare | Self::Cache)
    }
}

/// The configuration in one label, with the keys that every label must have.
///
/// Page `docs/format/label.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafLabel {
    /// The whole configuration.
    pub config: Arc<NvList>,
    /// `guid`: the guid of the leaf itself.
    pub guid: Guid,
    /// `state`.
    pub state: LeafState,
    /// `pool_guid`; 0 for spares and cache devices.
    pub pool_guid: Guid,
    /// `top_guid`; 0 for spares and cache devices.
    pub top_guid: Guid,
    /// `txg` in which the label was written; 0 for spares and cache devices.
    pub txg: Txg,
    /// Whether the label's checksum is valid. A label with an invalid checksum that still decodes is used
    /// only if the device has no valid one, and only to read.
    pub is_verified: bool,
}

/// Why a label is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LabelFault {
    /// The device is too small to have labels.
    #[error("the device is too small")]
    TooSmall,
    /// The device could not be read at the label's offset.
    #[error(transparent)]
    Unreadable(#[from] DeviceError),
    /// The label was never written, or it was wiped.
    #[error("blank")]
    Blank,
    /// The label does not hold a valid name/value list.
    #[error("no configuration: {0}")]
    Damaged(DecodeError),
    /// The list lacks a required key.
    #[error("not a label: {0}")]
    Incomplete(&'static str),
    /// The label's checksum is invalid. What it says is good enough to read a pool, but not to write to it.
    #[error("its checksum is wrong")]
    BadChecksum,
    /// The label was written when the device was added, but the pool never used the device or has released
    /// it since.
    #[error("the device never became part of a pool")]
    NeverUsed {
        /// The leaf that the device was to be, or was.
        guid: Guid,
        /// Its pool.
        pool_guid: Guid,
    },
}

/// Reads the four labels of a device, each with its own result. Reads 448 KiB.
pub fn read_labels(device: &dyn Device) -> [Result<LeafLabel, LabelFault>; LABEL_COUNT] {
    let Some(layout) = LeafLayout::new(device.size_bytes()) else {
        return [0; LABEL_COUNT].map(|_| Err(LabelFault::TooSmall));
    };
    layout
        .label_offsets_bytes()
        .map(|label| read_label(device, label.saturating_add(LABEL_CONFIG_OFFSET_BYTES)))
}

fn read_label(device: &dyn Device, offset_bytes: u64) -> Result<LeafLabel, LabelFault> {
    let mut region = vec![0u8; LABEL_CONFIG_BYTES];
    device.read(offset_bytes, &mut region)?;
    decode_label(&region, offset_bytes)
}

/// Decodes a configuration region located at `offset_bytes` of its device.
fn decode_label(region: &[u8], offset_bytes: u64) -> Result<LeafLabel, LabelFault> {
    if region.iter().all(|byte| *byte == 0) {
        return Err(LabelFault::Blank);
    }
    // Zeros decode as an empty list in the native encoding, which labels never use.
    if Encoding::decode(region).map_err(LabelFault::Damaged)? != Encoding::Xdr {
        return Err(LabelFault::Incomplete("not in XDR"));
    }
    let config = NvList::decode(region).map_err(LabelFault::Damaged)?;
    let number = |name| config.u64(name).unwrap_or(0);
    let guid = Guid(number("guid"));
    if guid == Guid(0) {
        return Err(LabelFault::Incomplete("no guid"));
    }
    let state = config
        .u64("state")
        .ok()
        .and_then(LeafState::from_number)
        .ok_or(LabelFault::Incomplete("no state"))?;
    let (pool_guid, top_guid, txg) = (number("pool_guid"), number("top_guid"), number("txg"));
    if state.has_pool() {
        if !config.contains("txg") {
            return Err(LabelFault::Incomplete("no txg"));
        }
        if txg == 0 {
            let pool_guid = Guid(pool_guid);
            return Err(LabelFault::NeverUsed { guid, pool_guid });
        }
        if pool_guid == 0 {
            return Err(LabelFault::Incomplete("no pool guid"));
        }
        if config.list("vdev_tree").is_err() {
            return Err(LabelFault::Incomplete("no vdev tree"));
        }
    }
    Ok(LeafLabel {
        guid,
        state,
        pool_guid: Guid(pool_guid),
        top_guid: Guid(top_guid),
        txg: Txg(txg),
        is_verified: is_region_intact(region, offset_bytes),
        config: Arc::new(config),
    })
}

/// Whether the checksum of a label region is valid, for a region at `offset_bytes` of its device.
pub(crate) fn is_region_intact(region: &[u8], offset_bytes: u64) -> bool {
    millpond_checksum::verify_label(region, offset_bytes).is_ok()
}

/// Reads the boot environment block of the first label with a valid checksum; `None` if there is none.
#[must_use]
pub fn read_boot_environment(device: &dyn Device) -> Option<BootEnvironment> {
    let layout = LeafLayout::new(device.size_bytes())?;
    layout.label_offsets_bytes().into_iter().find_map(|label| {
        let offset_bytes = label.checked_add(BOOT_ENV_OFFSET_BYTES)?;
        let mut block = vec![0u8; BOOT_ENV_BYTES];
        device.read(offset_bytes, &mut block).ok()?;
        is_region_intact(&block, offset_bytes)
            .then(|| BootEnvironment::decode(&block).ok())
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::unsealed_label_region;

    fn region(config: &NvList, offset_bytes: u64) -> Vec<u8> {
        let mut region =
            unsealed_label_region(&config.encode_xdr().unwrap(), LABEL_CONFIG_BYTES).unwrap();
        millpond_checksum::seal_label(&mut region, offset_bytes).unwrap();
        region
    }

    fn config() -> NvList {
        let mut config = NvList::new();
        for (name, value) in [
            ("guid", 7u64),
            ("state", 0),
            ("txg", 9),
            ("pool_guid", 5),
            ("top_guid", 6),
        ] {
            config.insert(name, value);
        }
        config.insert("vdev_tree", NvList::new());
        config
    }

    #[test]
    fn a_label_verifies_only_at_its_own_offset() {
        let region = region(&config(), 0x4000);
        assert!(decode_label(&region, 0x4000).unwrap().is_verified);
        assert!(!decode_label(&region, 0x44000).unwrap().is_verified);
    }

    #[test]
    fn a_label_needs_its_mandatory_pairs() {
        for (name, fault) in [
            ("guid", LabelFault::Incomplete("no guid")),
            ("state", LabelFault::Incomplete("no state")),
            ("txg", LabelFault::Incomplete("no txg")),
            ("pool_guid", LabelFault::Incomplete("no pool guid")),
            ("vdev_tree", LabelFault::Incomplete("no vdev tree")),
        ] {
            let mut config = config();
            config.remove(name);
            assert_eq!(decode_label(&region(&config, 0), 0), Err(fault));
        }
        // It says whose it was to be.
        let mut config = config();
        config.insert("txg", 0u64);
        assert_eq!(
            decode_label(&region(&config, 0), 0),
            Err(LabelFault::NeverUsed {
                guid: Guid(7),
                pool_guid: Guid(5)
            })
        );
        config.insert("state", 5u64);
        assert_eq!(
            decode_label(&region(&config, 0), 0),
            Err(LabelFault::Incomplete("no state"))
        );
    }

    #[test]
    fn blank_and_foreign_regions_are_no_labels() {
        let blank = vec![0; LABEL_CONFIG_BYTES];
        assert_eq!(decode_label(&blank, 0), Err(LabelFault::Blank));
        let mut native = config().encode_native().unwrap();
        native.resize(LABEL_CONFIG_BYTES, 0);
        assert_eq!(
            decode_label(&native, 0),
            Err(LabelFault::Incomplete("not in XDR"))
        );
        assert!(matches!(
            decode_label(&[9; 500], 0),
            Err(LabelFault::Damaged(_))
        ));
        assert!(matches!(decode_label(&[], 0), Err(LabelFault::Blank)));
    }

    #[test]
    fn a_spare_needs_only_guid_and_state() {
        let mut config = NvList::new();
        config.insert("guid", 7u64);
        config.insert("state", 3u64);
        let label = decode_label(&region(&config, 0), 0).unwrap();
        assert_eq!((label.state, label.pool_guid), (LeafState::Spare, Guid(0)));
    }
}
