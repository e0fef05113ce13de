//! The content of files and volumes, as runs of data, holes and unreadable ranges.

use millpond_engine::BlockId;
use millpond_engine::{Node, ObjectError, ReadableObject, Volume};

/// The content of a file or volume. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Content {
    /// The object that stores the bytes.
    pub object: ReadableObject,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// A run of bytes that is not a hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub offset_bytes: u64,
    /// Number of bytes, never 0.
    pub length_bytes: u64,
    /// Why the run is unknown: the indirect blocks above it cannot be read.
    pub lost: Option<String>,
}

impl From<&Node> for Content {
    fn from(node: &Node) -> Self {
        Self {
            object: node.object().clone(),
            size_bytes: node.size_bytes(),
        }
    }
}

impl From<&Volume> for Content {
    fn from(volume: &Volume) -> Self {
        Self {
            object: volume.data().clone(),
            size_bytes: volume.size_bytes(),
        }
    }
}

impl Content {
    /// Returns the first piece at or after `from_bytes`.
    ///
    /// An unreadable indirect block makes only the range below it unknown.
    pub fn next_piece(&self, from_bytes: u64) -> Option<Piece> {
        if from_bytes >= self.size_bytes {
            return None;
        }
        let block = self.object.block_bytes().max(1);
        if !block.is_power_of_two() {
            // An object with a single block of an odd size counts as data, even if it is a hole.
            return self.piece(from_bytes, self.size_bytes, None);
        }
        let first = match self.object.next_data_block(BlockId(from_bytes / block)) {
            Ok(Some(first)) => first,
            Ok(None) => return None,
            Err(error) => return self.lost(from_bytes, &error),
        };
        let start = first.0.saturating_mul(block).max(from_bytes);
        if start >= self.size_bytes {
            return None;
        }
        match self.object.next_hole_block(first) {
            Ok(hole) => self.piece(start, hole.0.saturating_mul(block), None),
            // Everything before the unreadable range is data.
            Err(error) => match self.span_of(&error) {
                Some((bad, _)) if bad > start => self.piece(start, bad, None),
                _ => self.lost(start, &error),
            },
        }
    }

    fn piece(&self, start: u64, end: u64, lost: Option<String>) -> Option<Piece> {
        let end = end.min(self.size_bytes);
        (end > start).then(|| Piece {
            offset_bytes: start,
            length_bytes: end - start,
            lost,
        })
    }

    fn lost(&self, from_bytes: u64, error: &ObjectError) -> Option<Piece> {
        let reason = Some(error.to_string());
        match self.span_of(error) {
            Some((start, end)) if end > from_bytes => {
                self.piece(start.max(from_bytes), end, reason)
            }
            _ => self.piece(from_bytes, self.size_bytes, reason),
        }
    }

    /// The range of bytes below the indirect block that an error names.
    fn span_of(&self, error: &ObjectError) -> Option<(u64, u64)> {
        let ObjectError::Block(error) = error else {
            return None;
        };
        let address = error.address();
        if address.object != self.object.id() {
            return None;
        }
        let shift = self.object.pointers_shift() * u32::from(address.level.0);
        let blocks = 1u64.checked_shl(shift).unwrap_or(u64::MAX);
        let bytes = blocks.saturating_mul(self.object.block_bytes());
        let start = address.block.0.saturating_mul(bytes);
        Some((start, start.saturating_add(bytes)))
    }
}
