//! Gang blocks: blocks stored in pieces.
//!
//! Page `docs/format/gang-header.md`.

use crate::copies::{CopySearch, CopyTrouble, GANG_DEPTH_MAX};
use crate::damage::PointerValidity;
use crate::topology::Topology;
use crate::{BlockAddress, BlockError, BlockStore, CopyFailure};
use millpond_checksum::{Form, GangVerifier, find_gang_header};
use millpond_ondisk::{BlockPointer, DecodeError, Dva, GANG_HEADER_BYTES, GangHeader};

/// A gang header and its length on the device.
pub(crate) struct FoundHeader {
    pub(crate) header: GangHeader,
    pub(crate) length_bytes: u64,
}

/// How many more headers may be read for one block.
///
/// The pieces of a correct gang block add up to the whole, so its tree has fewer headers than the block has
/// sectors, each in up to three copies. Without this limit, headers that point to themselves would be
/// retried at every level: 3^24 times.
pub(crate) struct HeaderBudget {
    left: u64,
    /// Of the pointer that the read began with.
    pub(crate) validity: PointerValidity,
}

impl HeaderBudget {
    pub(crate) fn of(pointer: &BlockPointer, validity: PointerValidity) -> Self {
        let sectors = pointer.psize_bytes() / GANG_HEADER_BYTES as u64;
        Self {
            left: sectors.saturating_add(u64::from(GANG_DEPTH_MAX)) * 3,
            validity,
        }
    }
    pub(crate) fn take(&mut self) -> Result<(), CopyTrouble> {
        let left = self.left.checked_sub(1);
        self.left =
            left.ok_or_else(|| CopyTrouble::Other("too many gang headers for one block".into()))?;
        Ok(())
    }
}

/// The ranges of a gang pointer's own headers. `None` if one lies on a vdev that holds no data.
fn header_ranges(topology: &Topology, pointer: &BlockPointer) -> Option<Vec<Dva>> {
    let ranges = pointer.dvas().map(|dva| {
        let asize_bytes = topology.tree.gang_header_asize(dva.vdev)?;
        Some(Dva { asize_bytes, ..dva })
    });
    ranges.collect()
}

impl BlockStore {
    /// Reads the header at one address of a gang pointer, then the pieces, and verifies the whole.
    pub(crate) fn read_gang(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
        address: BlockAddress,
        depth: u32,
        budget: &mut HeaderBudget,
    ) -> Result<Vec<u8>, CopyTrouble> {
        budget.take()?;
        let header = self.read_gang_header(pointer, dva)?.header;
        if depth >= GANG_DEPTH_MAX {
            return Err(CopyTrouble::Other("gang blocks nest too deep".into()));
        }
        let total = pointer.psize_bytes();
        let pieces: u64 = header.children().map(BlockPointer::psize_bytes).sum();
        if pieces != total {
            return Err(CopyTrouble::Other(format!(
                "gang header's pieces hold {pieces} bytes of {total}"
            )));
        }
        // At most 16 MiB: `validate` bounds the physical size.
        let mut bytes = Vec::with_capacity(total as usize);
        for child in header.children() {
            child
                .validate()
                .map_err(|error| CopyTrouble::Other(format!("gang header: {error}")))?;
            if child.is_embedded() || child.psize_bytes() > total {
                return Err(CopyTrouble::Other(
                    "gang header: a piece is larger than the whole".into(),
                ));
            }
            let piece = if child.is_gang() {
                self.read_gang_node(child, address, depth + 1, budget)
            } else {
                let search = CopySearch {
                    depth: depth + 1,
                    budget: &mut *budget,
                    begun: None,
                    accepts: &|_| true,
                };
                self.search_copies(child, address, search)
                    .map_err(|error| CopyTrouble::Other(format!("piece of a gang block: {error}")))
            }?;
            bytes.extend_from_slice(&piece);
        }
        // Checksums of pointers inside the tree are not verified; the leader's checksum covers the whole.
        if depth == 0 && self.checksummer().verify(pointer, &bytes).is_err() {
            return Err(CopyTrouble::Other(
                "checksum of the assembled gang block is wrong".into(),
            ));
        }
        Ok(bytes)
    }

    /// Reads a piece that is itself a gang block, through the first header copy that leads to its pieces.
    fn read_gang_node(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        depth: u32,
        budget: &mut HeaderBudget,
    ) -> Result<Vec<u8>, CopyTrouble> {
        let mut last = CopyTrouble::Other("gang pointer without an address".into());
        for dva in pointer.dvas() {
            match self.read_gang(pointer, dva, address, depth, budget) {
                Ok(bytes) => return Ok(bytes),
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }

    /// Every range of space that a pointer owns, each once, as needed to free, claim or count it.
    ///
    /// For a plain block these are its addresses. For a gang block they are those of the header (with their
    /// sizes cut to that of a header) and of all pieces; this reads the headers. Holes and embedded
    /// pointers own none.
    ///
    /// At most three ranges for each sector of the block.
    ///
    /// # Errors
    /// [`BlockError::Missing`] if devices are missing or fail that may hold a header which would do;
    /// [`BlockError::Corrupt`] if no header is good; [`BlockError::Invalid`] if the pointer or a header leads
    /// to impossible pieces. It is then unknown what the pointer owns.
    pub fn extents(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
    ) -> Result<Vec<Dva>, BlockError> {
        self.with_retries(|| {
            let mut budget = HeaderBudget::of(pointer, PointerValidity::Current);
            let mut extents = vec![];
            self.gather(pointer, address, 0, &mut budget, &mut extents)?;
            Ok(extents)
        })
    }

    /// The ranges of a gang pointer's own headers, which are known although the headers may be lost. None for
    /// a pointer that no correct writer makes, or that is no gang pointer.
    #[must_use]
    pub fn header_extents(&self, pointer: &BlockPointer) -> Vec<Dva> {
        let topology = self.topology();
        if !pointer.is_gang() || pointer.validate().is_err() || topology.accepts(pointer).is_err() {
            return vec![];
        }
        header_ranges(&topology, pointer).unwrap_or_default()
    }

    fn gather(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        depth: u32,
        budget: &mut HeaderBudget,
        extents: &mut Vec<Dva>,
    ) -> Result<(), BlockError> {
        let invalid = |error| BlockError::Invalid { address, error };
        let refuse = |reason| invalid(DecodeError::new("gang header", reason, 0));
        pointer.validate().map_err(invalid)?;
        let topology = self.topology();
        topology.accepts(pointer).map_err(refuse)?;
        if !pointer.is_gang() {
            extents.extend(pointer.dvas());
            return Ok(());
        }
        if depth >= GANG_DEPTH_MAX {
            return Err(refuse("gang blocks nest too deep"));
        }
        let mut copies = vec![];
        let mut is_any_unavailable = false;
        let headers = header_ranges(&topology, pointer);
        extents.extend(headers.ok_or_else(|| refuse("it lies where nothing can lie"))?);
        for dva in pointer.dvas() {
            let found = budget
                .take()
                .and_then(|()| self.read_gang_header(pointer, dva));
            let header = match found {
                Ok(found) => found.header,
                Err(trouble) => {
                    is_any_unavailable |= trouble.is_unavailable();
                    let reason = trouble.describe(&topology);
                    copies.push(CopyFailure { dva, reason });
                    continue;
                }
            };
            let pieces = header.children().map(BlockPointer::psize_bytes);
            if pieces.fold(0, u64::saturating_add) != pointer.psize_bytes() {
                return Err(refuse("its pieces are not the whole"));
            }
            for child in header.children() {
                if child.is_embedded() {
                    return Err(refuse("a piece is no block"));
                }
                self.gather(child, address, depth + 1, budget, extents)?;
            }
            return Ok(());
        }
        // A header on a device that comes back tells everything.
        Err(if is_any_unavailable {
            BlockError::Missing { address, copies }
        } else {
            BlockError::Corrupt { address, copies }
        })
    }

    /// Reads the header at one address. Headers are 512 bytes or, since OpenZFS 2.4, as large as the
    /// smallest allocation on their vdevs.
    pub(crate) fn read_gang_header(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
    ) -> Result<FoundHeader, CopyTrouble> {
        self.await_write(pointer);
        let since = self.writing.reuses();
        let topology = self.topology();
        let birth = pointer.physical_birth();
        let verifier = GangVerifier::of(pointer)
            .ok_or_else(|| CopyTrouble::Other("gang pointer without an address".into()))?;
        let form = Form::of(pointer);
        let small = GANG_HEADER_BYTES as u64;
        let large = pointer
            .dvas()
            .filter_map(|dva| topology.tree.gang_header_size(dva.vdev, true))
            .min()
            .unwrap_or(small);
        let sizes = if topology.has_large_gang_headers && large > small {
            vec![large, small]
        } else {
            vec![small]
        };
        let mut last = CopyTrouble::Other("no gang header".into());
        for size in sizes {
            let mut verify = |bytes: &[u8]| find_gang_header(bytes, verifier, form).is_ok();
            match self.resolve(&topology, dva, size, birth, Vec::new(), &mut verify) {
                Ok(resolved) => {
                    self.count_errors(&topology, &resolved.liars, None);
                    self.repair(&topology, &resolved, birth, since);
                    let bytes = resolved.data;
                    let found = find_gang_header(&bytes, verifier, form)
                        .map_err(|error| CopyTrouble::Other(error.to_string()))?;
                    let header = bytes.get(..found.length).unwrap_or(&bytes);
                    let header = GangHeader::decode(header, found.endian)
                        .map_err(|error| CopyTrouble::Other(error.to_string()))?;
                    return Ok(FoundHeader {
                        header,
                        length_bytes: found.length as u64,
                    });
                }
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }
}
