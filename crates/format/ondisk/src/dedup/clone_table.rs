//! Clone tables ("BRT"): blocks with more than one reference, one table per top-level vdev.

use crate::{DecodeError, Endian, ObjectId, Writer};

/// Size of the range per counter in bytes, in every table written so far.
pub const CLONE_RANGE_BYTES: u64 = 16 << 20;

/// The header of a clone table: the bonus of its object (56 bytes). Page `docs/format/block-cloning.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloneTablePhys {
    /// ZAP: byte offset of a block on the vdev to its number of references beyond the first.
    pub entries: Option<ObjectId>,
    /// The number of counters in the object's data.
    pub counter_count: u64,
    /// Byte order of the counters.
    pub counter_endian: Endian,
    /// The number of entries in the ZAP.
    pub entry_count: u64,
    /// Size of the range per counter in bytes, never 0.
    pub range_bytes: u64,
    /// Deflated bytes of all blocks with an entry.
    pub used_bytes: u64,
    /// The same, multiplied by their counts.
    pub saved_bytes: u64,
}

impl CloneTablePhys {
    /// Reads a header.
    ///
    /// # Errors
    /// If there are fewer than 56 bytes, or the byte order or range size is invalid.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [
            entries,
            counter_count,
            order,
            entry_count,
            range_bytes,
            used_bytes,
            saved_bytes,
        ] = endian.words("clone table", bonus)?;
        let counter_endian = match order {
            0 => Endian::Little,
            1 => Endian::Big,
            _ => {
                return Err(DecodeError::new(
                    "clone table",
                    "byte order does not exist",
                    16,
                ));
            }
        };
        if range_bytes == 0 {
            return Err(DecodeError::new("clone table", "empty ranges", 32));
        }
        Ok(Self {
            entries: ObjectId(entries).some(),
            counter_count,
            counter_endian,
            entry_count,
            range_bytes,
            used_bytes,
            saved_bytes,
        })
    }
    /// Encodes the header as 56 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(56);
        writer.put_words(&[
            ObjectId::number(self.entries),
            self.counter_count,
            u64::from(self.counter_endian == Endian::Big),
            self.entry_count,
            self.range_bytes,
            self.used_bytes,
            self.saved_bytes,
        ]);
        writer.finish()
    }
    /// The index of the counter for the block at `offset_bytes` on the vdev.
    #[must_use]
    pub fn counter_index(&self, offset_bytes: u64) -> u64 {
        offset_bytes.checked_div(self.range_bytes).unwrap_or(0)
    }
    /// The pool's clone ratio times 100; 100 if there are no clones.
    #[must_use]
    pub fn ratio_percent(used_bytes: u64, saved_bytes: u64) -> u64 {
        let all = u128::from(used_bytes).saturating_add(u128::from(saved_bytes));
        let ratio = all
            .saturating_mul(100)
            .checked_div(u128::from(used_bytes))
            .unwrap_or(100);
        u64::try_from(ratio).unwrap_or(u64::MAX)
    }
}

/// The counters in a clone table's data: the number of entries in each range.
///
/// The bytes are as stored on disk, without conversion. Missing counters are 0.
#[derive(Debug, Clone, Copy)]
pub struct CloneCounters<'a> {
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> CloneCounters<'a> {
    /// The counters in `bytes`, in the byte order of the table's header.
    #[must_use]
    pub fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { bytes, endian }
    }
    /// The counter at `index`; 0 beyond the end. If the counter of a block is 0, the block has no entry.
    #[must_use]
    pub fn get(&self, index: u64) -> u16 {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.bytes.get(index.checked_mul(2)?..)?.first_chunk::<2>())
            .map_or(0, |counter| self.endian.u16(*counter))
    }
}

/// Decodes the count in an entry's value.
///
/// The value is one integer of 8 bytes, or 8 integers of one byte in the byte order of the pool's creator,
/// which is in the table's header.
///
/// # Errors
/// If the value has another form.
pub fn clone_entry_count(
    value: &[u8],
    integer_bytes: u8,
    table: &CloneTablePhys,
) -> Result<u64, DecodeError> {
    let fail = || DecodeError::new("clone table entry", "neither 8 bytes nor one number", 0);
    let bytes: [u8; 8] = value.try_into().map_err(|_| fail())?;
    match integer_bytes {
        // ZAP integers are big-endian.
        8 => Ok(u64::from_be_bytes(bytes)),
        1 => Ok(table.counter_endian.u64(bytes)),
        _ => Err(fail()),
    }
}

/// Encodes the count of an entry: with the table's byte order for the old form (8 integers of one byte), as
/// big-endian for the new one (one integer of 8 bytes).
#[must_use]
pub fn clone_entry_value(count: u64, endian: Endian) -> [u8; 8] {
    match endian {
        Endian::Little => count.to_le_bytes(),
        Endian::Big => count.to_be_bytes(),
    }
}
