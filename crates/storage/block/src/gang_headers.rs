//! Headers of gang blocks, and which one is right where leaves have different ones.
//!
//! A header is sealed with the address and the birth of its pointer. A gang block that is written again in a later pass of
//! the same txg keeps both, so a leaf that lost the last write has an older header that vouches for itself.
//!
//! Page `docs/format/gang-header.md`.

use crate::copies::{CopyTrouble, LeftOut, ReadParams};
use crate::damage::PointerValidity;
use crate::gang::{GangPlace, HeaderBudget};
use crate::io_stats::IoClass;
use crate::topology::Topology;
use crate::write::ReadStart;
use crate::{BlockAddress, BlockError, BlockStore, CopyFailure};
use millpond_checksum::{Form, GangVerifier, find_gang_header};
use millpond_ondisk::{BlockPointer, Dva, GANG_HEADER_BYTES, GangHeader};
use millpond_vdev::Resolved;

/// The most different headers of one block that are looked at.
pub(crate) const HEADERS_MAX: usize = 8;

/// A gang header as it was read.
pub(crate) struct FoundHeader {
    pub(crate) header: GangHeader,
    /// Its bytes on the device.
    pub(crate) bytes: Vec<u8>,
}

fn decoded(bytes: &[u8], found: millpond_checksum::GangHeader) -> Result<FoundHeader, CopyTrouble> {
    let bytes = bytes.get(..found.length).unwrap_or(bytes).to_vec();
    let header = GangHeader::decode(&bytes, found.endian)
        .map_err(|error| CopyTrouble::Other(error.to_string()))?;
    Ok(FoundHeader { header, bytes })
}

impl FoundHeader {
    /// Whether a header says the same. Not all words of a truncated checksum are used.
    fn is_same(&self, header: &GangHeader) -> bool {
        self.header.pointers == header.pointers
    }

    /// Its length on the device.
    pub(crate) fn length_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether a gang pointer's header in these bytes says the same.
    pub(crate) fn is_in(&self, pointer: &BlockPointer, bytes: &[u8]) -> bool {
        let Some(verifier) = GangVerifier::of(pointer) else {
            return false;
        };
        let found = find_gang_header(bytes, verifier, Form::of(pointer)).ok();
        let found = found.and_then(|found| decoded(bytes, found).ok());
        found.is_some_and(|found| self.is_same(&found.header))
    }

    /// Whether another header leads to the same space.
    fn has_pieces_of(&self, other: &Self) -> bool {
        let pieces = |found: &Self| -> Vec<(Vec<Dva>, u64)> {
            let children = found.header.children();
            children
                .map(|child| (child.dvas().collect(), child.psize_bytes()))
                .collect()
        };
        pieces(self) == pieces(other)
    }
}

/// Whether the two words of a header's checksum are zero that are not used in the truncated form.
pub(crate) fn ends_with_zeros(header: &[u8]) -> bool {
    let unused = header.len().saturating_sub(16);
    header.iter().skip(unused).all(|byte| *byte == 0)
}

/// The header of a gang pointer that is right.
pub(crate) enum RightHeader {
    /// The leaves have one header only, or none.
    Undisputed,
    /// This one leads to the block, others do not.
    Found(FoundHeader),
    /// None leads to the block.
    Unknown,
}

impl BlockStore {
    /// Reads the header at one address. Headers are 512 bytes or, since OpenZFS 2.4, as large as the
    /// smallest allocation on their vdevs.
    pub(crate) fn read_gang_header(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
        validity: PointerValidity<'_>,
    ) -> Result<FoundHeader, CopyTrouble> {
        self.await_write(pointer);
        self.read_header_that(pointer, dva, validity, &mut |_| true)
    }

    /// As [`BlockStore::read_gang_header`], but nothing is repaired or counted, and leaves may be left out.
    pub(crate) fn quiet_header(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
        without: LeftOut,
    ) -> Result<FoundHeader, CopyTrouble> {
        let found = self.find_header(&self.topology(), pointer, dva, without, &mut |_| true);
        found.map(|(found, _)| found)
    }

    /// Whether a leaf has a header of this size at this address that is accepted. Nothing is repaired or counted.
    pub(crate) fn has_header(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
        size_bytes: u64,
        accepts: &mut dyn FnMut(&[u8]) -> bool,
    ) -> bool {
        let params = ReadParams::new(IoClass::SyncRead);
        let (topology, birth) = (self.topology(), pointer.physical_birth());
        self.resolve(&topology, dva, size_bytes, birth, params, accepts)
            .is_ok()
    }

    /// A header at this address that is none of those. Nothing is repaired or counted.
    pub(crate) fn other_header(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
        tried: &[FoundHeader],
        without: LeftOut,
    ) -> Option<FoundHeader> {
        let mut is_other = |header: &GangHeader| tried.iter().all(|tried| !tried.is_same(header));
        let found = self.find_header(&self.topology(), pointer, dva, without, &mut is_other);
        found.ok().map(|(found, _)| found)
    }

    /// Writes a header, which is the right one, to the leaves that have another one at this address.
    pub(crate) fn keep_header(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
        right: &FoundHeader,
        validity: PointerValidity<'_>,
    ) {
        let mut is_right = |header: &GangHeader| right.is_same(header);
        // If it fails, they keep what they have.
        let _ = self.read_header_that(pointer, dva, validity, &mut is_right);
    }

    fn read_header_that(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
        validity: PointerValidity<'_>,
        accepts: &mut dyn FnMut(&GangHeader) -> bool,
    ) -> Result<FoundHeader, CopyTrouble> {
        let since = self.writing.reuses();
        let topology = self.topology();
        let (found, resolved) =
            self.find_header(&topology, pointer, dva, LeftOut::default(), accepts)?;
        let start = ReadStart {
            birth: pointer.physical_birth(),
            since,
            validity,
        };
        self.mend(&topology, &resolved, None, start);
        Ok(found)
    }

    fn find_header(
        &self,
        topology: &Topology,
        pointer: &BlockPointer,
        dva: Dva,
        without: LeftOut,
        accepts: &mut dyn FnMut(&GangHeader) -> bool,
    ) -> Result<(FoundHeader, Resolved), CopyTrouble> {
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
            let mut verify = |bytes: &[u8]| {
                let found = find_gang_header(bytes, verifier, form).ok();
                found.is_some_and(|found| {
                    // What cannot be decoded is reported below.
                    decoded(bytes, found).map_or(true, |found| accepts(&found.header))
                })
            };
            let params = ReadParams {
                without,
                ..ReadParams::new(IoClass::SyncRead)
            };
            match self.resolve(topology, dva, size, birth, params, &mut verify) {
                Ok(resolved) => {
                    let found = find_gang_header(&resolved.data, verifier, form)
                        .map_err(|error| CopyTrouble::Other(error.to_string()))?;
                    return Ok((decoded(&resolved.data, found)?, resolved));
                }
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }

    /// Looks at the headers that all leaves have at all addresses of a gang pointer. `place` says what the block has, if that is
    /// known.
    pub(crate) fn right_header(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        place: GangPlace<'_>,
    ) -> RightHeader {
        let mut headers = vec![];
        for dva in pointer.dvas() {
            while headers.len() < HEADERS_MAX
                && let Some(other) = self.other_header(pointer, dva, &headers, LeftOut::default())
            {
                headers.push(other);
            }
        }
        if headers.len() < 2 {
            return RightHeader::Undisputed;
        }
        // Without knowing the block, an older header of a piece leads to something, too.
        let Some(expected) = place.expected else {
            return RightHeader::Unknown;
        };
        let leads_to_block = |found: &FoundHeader| {
            let mut budget = HeaderBudget::trial(pointer, LeftOut::default());
            let joined = self.join_pieces(pointer, &found.header, address, place, &mut budget);
            joined.is_ok()
        };
        headers.retain(leads_to_block);
        // Checksums of pieces that are gang blocks themselves lead nowhere, but only the newest header has the right ones.
        let newest = headers
            .iter()
            .position(|found| self.is_newest(found, expected));
        match headers.get(newest.unwrap_or(0)) {
            None => RightHeader::Unknown,
            Some(_) => RightHeader::Found(headers.swap_remove(newest.unwrap_or(0))),
        }
    }

    /// Whether all checksums in a header are those of the pieces of a block.
    pub(crate) fn is_newest(&self, found: &FoundHeader, block: &[u8]) -> bool {
        let checksummer = self.checksummer();
        let mut rest = block;
        found.header.children().all(|child| {
            let length = usize::try_from(child.psize_bytes()).unwrap_or(usize::MAX);
            let Some((piece, others)) = rest.split_at_checked(length) else {
                return false;
            };
            rest = others;
            checksummer.verify(child, piece).is_ok()
        })
    }

    /// The header whose pieces a gang pointer owns, of which one was found.
    ///
    /// # Errors
    /// [`BlockError::Corrupt`] if leaves have headers with other pieces, and none leads to the block.
    pub(crate) fn sure_header(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
        found: FoundHeader,
        address: BlockAddress,
        depth: u32,
    ) -> Result<GangHeader, BlockError> {
        let found = [found];
        let other = self.other_header(pointer, dva, &found, LeftOut::default());
        let [found] = found;
        if other.is_none_or(|other| other.has_pieces_of(&found)) {
            return Ok(found.header);
        }
        let block = match depth {
            0 => self.try_gang(pointer, address),
            _ => None,
        };
        let place = GangPlace {
            depth,
            expected: block.as_deref(),
        };
        match self.right_header(pointer, address, place) {
            RightHeader::Undisputed => Ok(found.header),
            RightHeader::Found(right) => Ok(right.header),
            RightHeader::Unknown => {
                let reason = "leaves have different gang headers".to_owned();
                let copies = vec![CopyFailure { dva, reason }];
                Err(BlockError::Corrupt { address, copies })
            }
        }
    }
}
