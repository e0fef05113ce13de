//! How much a removal or an expansion copies at a time.

/// The size of a slice of a removal or an expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyLimits {
    /// How many bytes to copy at most.
    pub bytes: u64,
    /// How long to copy at most, in nanoseconds. Meanwhile no other txg is written.
    pub slice_ns: u64,
}

impl Default for CopyLimits {
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            slice_ns: 300_000_000,
        }
    }
}
