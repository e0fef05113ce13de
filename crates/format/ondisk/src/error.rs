/// Bytes that a correct writer would not have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{structure}: {reason} at byte {offset}")]
pub struct DecodeError {
    /// The structure, by its name in `docs/format/` ("dnode", "zap leaf").
    pub structure: &'static str,
    /// The error ("indirect levels above 12").
    pub reason: &'static str,
    /// Byte offset from the start of the structure.
    pub offset: u32,
}

impl DecodeError {
    /// An error about `structure` at `offset` bytes from its start (clamped to `u32::MAX`).
    #[must_use]
    pub fn new(structure: &'static str, reason: &'static str, offset: usize) -> Self {
        Self {
            structure,
            reason,
            offset: u32::try_from(offset).unwrap_or(u32::MAX),
        }
    }
}
