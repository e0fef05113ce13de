//! What an audit of a block found.

use crate::write::heal::HealWrite;
use millpond_env::sync::Arc;
use millpond_ondisk::Dva;
use millpond_vdev::{AuditFinding, LeafBytes, LeafId};

/// What every device holds of one block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockAudit {
    /// Bytes read from devices.
    pub read_bytes: u64,
    /// Everything that is wrong, with its address.
    pub findings: Vec<(Dva, AuditFinding)>,
    /// Addresses that could not be judged, and why.
    pub troubles: Vec<(Dva, String)>,
    /// Whether at least one copy of the whole block is right.
    pub is_readable: bool,
    /// The stored bytes of that copy; `None` after [`BlockStore::heal_batch`].
    pub stored: Option<Arc<LeafBytes>>,
    /// What [`BlockStore::heal_batch`] wrote.
    pub healed: Healed,
    /// Writes that repair the block, not begun yet.
    pub(crate) planned: Vec<HealWrite>,
}

/// What was done about the wrong bytes of a block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Healed {
    /// The leaves that got right bytes, and how many, in the order of the writes.
    pub written: Vec<(LeafId, u64)>,
    /// The leaves whose wrong bytes could not be replaced.
    pub failed: Vec<LeafId>,
}

impl BlockAudit {
    /// Bytes that were written to leaves.
    #[must_use]
    pub fn healed_bytes(&self) -> u64 {
        self.healed.written.iter().map(|(_, bytes)| bytes).sum()
    }
    /// Whether every copy is complete and right.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.is_readable && self.findings.is_empty() && self.troubles.is_empty()
    }
}
