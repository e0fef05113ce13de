//! An image shared by many runs, with the changes of one run.

use millpond_device::{Device, DeviceError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A read-only device: an image with pieces that replace parts of it.
pub struct Overlay {
    base: Arc<Vec<u8>>,
    /// By first byte; pieces do not overlap.
    pieces: BTreeMap<u64, Vec<u8>>,
}

impl Overlay {
    /// The unchanged image.
    pub fn new(base: Arc<Vec<u8>>) -> Self {
        Self {
            base,
            pieces: BTreeMap::new(),
        }
    }
    /// Replaces bytes of the image. A piece at the same position is replaced.
    pub fn put(&mut self, offset_bytes: u64, bytes: Vec<u8>) {
        self.pieces.insert(offset_bytes, bytes);
    }
    /// The pieces by first byte.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pieces
            .iter()
            .map(|(at, bytes)| (*at, bytes.as_slice()))
    }
}

impl std::fmt::Debug for Overlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Overlay({} pieces)", self.pieces.len())
    }
}

impl Device for Overlay {
    fn size_bytes(&self) -> u64 {
        self.base.len() as u64
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        DeviceError::check_range(offset_bytes, buffer.len() as u64, self.size_bytes())?;
        let end = offset_bytes + buffer.len() as u64;
        buffer.copy_from_slice(&self.base[offset_bytes as usize..end as usize]);
        let before = self.pieces.range(..offset_bytes).next_back();
        let within = self.pieces.range(offset_bytes..end);
        for (at, piece) in before.into_iter().chain(within) {
            let from = (*at).max(offset_bytes);
            let to = (at + piece.len() as u64).min(end);
            if from < to {
                buffer[(from - offset_bytes) as usize..(to - offset_bytes) as usize]
                    .copy_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_image_for_any_read() {
        let mut overlay = Overlay::new(Arc::new(vec![0; 100]));
        overlay.put(10, vec![1; 10]);
        overlay.put(30, vec![2; 10]);
        for start in 0..50 {
            for length in 0..50 {
                let mut buffer = vec![9; length];
                overlay.read(start as u64, &mut buffer).unwrap();
                for (at, byte) in buffer.iter().enumerate() {
                    let expected = match start + at {
                        10..20 => 1,
                        30..40 => 2,
                        _ => 0,
                    };
                    assert_eq!(*byte, expected, "byte {}", start + at);
                }
            }
        }
    }
}
