//! Copies the data of a vdev that is being removed to new space, without looking at blocks.
//!
//! Checksums are not verified: what is a block is not known. So the sides of a mirror are compared, and where they differ,
//! the sides of the mirror that takes the copy get one each. Then a block that one side had right stays readable.
//!
//! Page `docs/format/indirect-vdev.md`, "Removing a vdev".

use crate::io_stats::IoClass;
use crate::write::{ExtentWrite, write_over};
use crate::{BlockAddress, BlockError, BlockStore, CopyFailure};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{Dva, Txg, VDEV_DATA_START_BYTES, VdevId};
use millpond_vdev::LeafFault;
use std::ops::Range;

/// The contents of a range, one for each side that has other bytes than those before it. At least one.
pub type SideContents = Vec<Arc<Vec<u8>>>;

impl BlockStore {
    /// Reads a range of a disk or mirror, in bytes from the start of its space, from all leaves that lack nothing. At most
    /// some MiB.
    ///
    /// # Errors
    /// [`BlockError::Missing`] if no such leaf answers, [`BlockError::Corrupt`] if all have read errors,
    /// [`BlockError::Write`] if a block of this txg cannot be written.
    pub fn read_sides(&self, top: VdevId, range: &Range<u64>) -> Result<SideContents, BlockError> {
        let address = BlockAddress::default();
        // What is read here has to be on the devices.
        self.settle_outstanding().map_err(|error| {
            let reason = error.to_string();
            BlockError::Write { address, reason }
        })?;
        let topology = self.topology();
        let mut contents: SideContents = vec![];
        let mut is_absent = true;
        for leaf in topology.copy_sources(top, &[]) {
            match topology.read_copy(leaf, range) {
                Some(Ok(bytes)) if contents.iter().any(|known| **known == bytes) => {}
                Some(Ok(bytes)) => contents.push(Arc::new(bytes)),
                Some(Err(fault)) => is_absent &= fault == LeafFault::Absent,
                None => {}
            }
        }
        if !contents.is_empty() {
            return Ok(contents);
        }
        let dva = Dva {
            vdev: top,
            offset_bytes: range.start,
            asize_bytes: range.end.saturating_sub(range.start),
            is_gang: false,
        };
        let reason = "no side could be read".to_owned();
        let copies = vec![CopyFailure { dva, reason }];
        Err(match is_absent {
            true => BlockError::Missing { address, copies },
            false => BlockError::Corrupt { address, copies },
        })
    }

    /// Writes a copy to space of a disk or mirror that was allocated in `txg`. It is durable when the txg is.
    ///
    /// # Errors
    /// [`BlockError::Write`] if it cannot be read back.
    pub fn write_evacuated(
        &self,
        txg: Txg,
        dva: Dva,
        contents: &SideContents,
    ) -> Result<(), BlockError> {
        let failed = |reason: &str| BlockError::Write {
            address: BlockAddress::default(),
            reason: reason.to_owned(),
        };
        let first = contents.first().ok_or_else(|| failed("nothing to write"))?;
        let topology = self.topology();
        loop {
            let since = self.resumes();
            let bytes = Arc::clone(first);
            let written = self.write_extent(&topology, txg, ExtentWrite { dva, bytes });
            match written {
                Ok(()) => break,
                Err(reason) if self.waits_to_write(since, &reason) => {}
                Err(reason) => return Err(failed(&reason)),
            }
        }
        if contents.len() < 2 {
            return Ok(());
        }
        mark::hit("sides-differ-in-removal");
        let leaves = topology.tree.leaves();
        let leaves = leaves.filter(|(_, node)| node.top == Some(dva.vdev));
        let offset = VDEV_DATA_START_BYTES.saturating_add(dva.offset_bytes);
        for ((leaf, _), bytes) in leaves.zip(contents.iter().cycle()) {
            if !Arc::ptr_eq(bytes, first) {
                write_over(&topology, leaf, offset, bytes, txg);
            }
        }
        Ok(())
    }
}

/// The class of the requests.
pub(crate) const CLASS: IoClass = IoClass::Rebuild;
