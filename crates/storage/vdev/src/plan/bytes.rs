//! The bytes of a read.

use core::ops::Deref;
use std::fmt;
use std::sync::Arc;

/// The bytes of a read: a vector, or memory of another kind, such as that of direct I/O, which is not copied.
#[derive(Clone)]
pub struct LeafBytes {
    memory: Memory,
    /// How many of the bytes count, from the first.
    length: usize,
}

#[derive(Clone)]
enum Memory {
    Plain(Vec<u8>),
    Other(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

impl LeafBytes {
    /// The bytes of an owner whose `as_ref` always gives the same ones.
    pub fn of(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self {
            length: owner.as_ref().len(),
            memory: Memory::Other(Arc::new(owner)),
        }
    }

    /// Leaves the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// The bytes as a vector, copied unless they are one.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self.memory {
            Memory::Plain(mut bytes) => {
                bytes.truncate(self.length);
                bytes
            }
            Memory::Other(_) => self.to_vec(),
        }
    }
}

impl From<Vec<u8>> for LeafBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            length: bytes.len(),
            memory: Memory::Plain(bytes),
        }
    }
}

impl Deref for LeafBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = match &self.memory {
            Memory::Plain(bytes) => bytes,
            Memory::Other(owner) => owner.as_ref().as_ref(),
        };
        bytes.get(..self.length).unwrap_or_default()
    }
}

impl fmt::Debug for LeafBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl PartialEq for LeafBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for LeafBytes {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_and_shared_bytes_compare_equal() {
        let plain = LeafBytes::from(vec![1, 2, 3]);
        let other = LeafBytes::of([1, 2, 3]);
        assert_eq!(plain, other);
        assert_eq!(other.clone().into_vec(), plain.clone().into_vec());
        assert_eq!(format!("{other:?}"), "[1, 2, 3]");
        for mut bytes in [plain, other] {
            bytes.truncate(2);
            bytes.truncate(3);
            assert_eq!(bytes, LeafBytes::of([1, 2]));
            assert_eq!(bytes.into_vec(), [1, 2]);
        }
    }
}
