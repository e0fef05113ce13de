//! Placement of attributes in the bonus or in the spill block.
//!
//! Page `docs/format/system-attributes.md`, "Bonus or spill".

use super::header_length;

/// Bytes of a dnode that are not available to the bonus: its header and one block pointer.
const DNODE_FIXED_BYTES: usize = 192;
/// Size of the pointer to the spill block in bytes.
const SPILL_POINTER_BYTES: usize = 128;

/// The result of [`place_attributes`]. Page `docs/format/system-attributes.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaPlacement {
    /// The number of attributes in the bonus, from the first one.
    pub bonus_attributes: usize,
    /// Size of the bonus buffer's header in bytes.
    pub bonus_header_bytes: usize,
    /// The bonus length of the dnode in bytes.
    pub bonus_bytes: usize,
    /// Size of the spill buffer up to the end of its last attribute; `None` without spill.
    pub spill_bytes: Option<usize>,
}

/// Divides attributes between the bonus of a dnode and the spill block.
///
/// The attributes are (bytes, whether the length is variable), in order. `dnode_bytes` is 512 to 16384. All
/// writers must agree on the result exactly.
#[must_use]
pub fn place_attributes(attributes: &[(usize, bool)], dnode_bytes: usize) -> SaPlacement {
    let full = dnode_bytes.saturating_sub(DNODE_FIXED_BYTES);
    let with_spill = full.saturating_sub(SPILL_POINTER_BYTES);
    let mut total = 0usize;
    let mut variable = 0usize;
    let mut header = 8usize;
    let mut extra = 0usize;
    let mut index = None;
    let mut spills = false;
    for (at, &(length, is_variable)) in attributes.iter().enumerate() {
        total = total.next_multiple_of(8).saturating_add(length);
        if spills {
            continue;
        }
        variable = variable.saturating_add(usize::from(is_variable));
        let takes_slot = is_variable && variable > 1;
        let wanted = header.saturating_add(if takes_slot { 2 } else { 0 });
        // From here on the bonus would overlap the spill pointer.
        let reaches =
            index.is_none() && total.saturating_add(wanted.next_multiple_of(8)) > with_spill;
        if takes_slot {
            if wanted.saturating_add(total) < full {
                header = wanted;
                if index.is_some() || reaches {
                    extra = extra.saturating_add(2);
                }
            } else {
                index = index.or(Some(at));
                spills = true;
                continue;
            }
        }
        if reaches {
            index = Some(at);
        }
        if total.saturating_add(header.next_multiple_of(8)) > full {
            spills = true;
        }
    }
    if !spills {
        let header = header.next_multiple_of(8);
        return SaPlacement {
            bonus_attributes: attributes.len(),
            bonus_header_bytes: header,
            bonus_bytes: total.saturating_add(header),
            spill_bytes: None,
        };
    }
    let index = index.unwrap_or(attributes.len());
    let header = header.saturating_sub(extra).next_multiple_of(8);
    let spilled = attributes.get(index..).unwrap_or_default();
    let spilled_variable = spilled.iter().filter(|(_, is_variable)| *is_variable);
    let spill_total = spilled.iter().fold(0usize, |total, (length, _)| {
        total.next_multiple_of(8).saturating_add(*length)
    });
    SaPlacement {
        bonus_attributes: index,
        bonus_header_bytes: header,
        bonus_bytes: with_spill.min(total.saturating_add(header)),
        spill_bytes: Some(spill_total.saturating_add(header_length(spilled_variable.count()))),
    }
}
