//! Gang blocks: blocks stored in pieces.
//!
//! Page `docs/format/gang-header.md`.

use crate::copies::{CopySearch, CopyTrouble, GANG_DEPTH_MAX, LeftOut};
use crate::damage::PointerValidity;
use crate::gang_headers::HEADERS_MAX;
use crate::topology::Topology;
use crate::{BlockAddress, BlockError, BlockStore, CopyFailure};
use millpond_env::mark;
use millpond_ondisk::{BlockPointer, DecodeError, Dva, GANG_HEADER_BYTES, GangHeader};
use millpond_vdev::{Blame, LeafId};

/// The most sets of leaves without which a gang block is read, one after the other: all sets of up to three of eight leaves.
const SETS_MAX: usize = 92;

/// How many more headers may be read for one block.
///
/// The pieces of a correct gang block add up to the whole, so its tree has fewer headers than the block has
/// sectors, each in up to three copies. Without this limit, headers that point to themselves would be
/// retried at every level: 3^24 times.
pub(crate) struct HeaderBudget<'a> {
    left: u64,
    /// Of the pointer that the read began with.
    pub(crate) validity: PointerValidity<'a>,
    /// While it is not known whether a header is the right one: nothing is repaired or counted.
    pub(crate) trial: Option<Trial>,
    /// Leaves that are not read.
    pub(crate) without: LeftOut,
}

/// What was met below a header that may be outdated.
#[derive(Default)]
pub(crate) struct Trial {
    /// Whether a copy of a piece was wrong.
    pub(crate) has_trouble: bool,
    /// Who had the wrong copies of a piece that has no right one.
    pub(crate) blames: Vec<Blame>,
}

impl<'a> HeaderBudget<'a> {
    pub(crate) fn of(pointer: &BlockPointer, validity: PointerValidity<'a>) -> Self {
        let sectors = pointer.psize_bytes() / GANG_HEADER_BYTES as u64;
        Self {
            left: sectors.saturating_add(u64::from(GANG_DEPTH_MAX)) * 3,
            validity,
            trial: None,
            without: LeftOut::default(),
        }
    }
    /// For a read that repairs and counts nothing.
    pub(crate) fn trial(pointer: &BlockPointer, without: LeftOut) -> Self {
        Self {
            trial: Some(Trial::default()),
            without,
            ..Self::of(pointer, PointerValidity::NEVER_CURRENT)
        }
    }
    pub(crate) fn take(&mut self) -> Result<(), CopyTrouble> {
        let left = self.left.checked_sub(1);
        self.left =
            left.ok_or_else(|| CopyTrouble::Other("too many gang headers for one block".into()))?;
        Ok(())
    }
}

/// Where in the tree of a gang block a header is.
#[derive(Clone, Copy, Default)]
pub(crate) struct GangPlace<'a> {
    /// How many headers lead to it.
    pub(crate) depth: u32,
    /// The bytes below it, if they are known.
    pub(crate) expected: Option<&'a [u8]>,
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
    /// Reads the header at one address of a gang pointer, then the pieces, and verifies the whole. If `expected` is given, it
    /// must be these bytes.
    ///
    /// A header vouches for itself only. Within a txg it can be written several times, and a leaf that lost the last
    /// write has an older one. So until the whole is verified nothing is repaired, and then other headers at this address
    /// are tried.
    pub(crate) fn read_gang(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
        address: BlockAddress,
        place: GangPlace<'_>,
        budget: &mut HeaderBudget<'_>,
    ) -> Result<Vec<u8>, CopyTrouble> {
        budget.take()?;
        let mut next = Some(match &budget.trial {
            Some(_) => self.quiet_header(pointer, dva, budget.without)?,
            None => self.read_gang_header(pointer, dva, budget.validity)?,
        });
        let outer = budget.trial.take();
        let mut tried = vec![];
        let mut failure = None;
        while let Some(found) = next {
            budget.trial = Some(Trial::default());
            let outcome = self.join_pieces(pointer, &found.header, address, place, budget);
            let trial = budget.trial.take().unwrap_or_default();
            let trouble = match outcome {
                Ok(bytes) => {
                    budget.trial = outer;
                    if let Some(outer) = &mut budget.trial {
                        outer.has_trouble |= trial.has_trouble || !tried.is_empty();
                        return Ok(bytes);
                    }
                    if !tried.is_empty() {
                        mark::hit("older-gang-header");
                        if self.is_newest(&found, &bytes) {
                            self.keep_header(pointer, dva, &found, budget.validity);
                        }
                    }
                    if trial.has_trouble {
                        let place = GangPlace {
                            expected: Some(&bytes),
                            ..place
                        };
                        // Repairs what is wrong.
                        let _ = self.join_pieces(pointer, &found.header, address, place, budget);
                    }
                    return Ok(bytes);
                }
                Err(trouble) => trouble,
            };
            failure.get_or_insert((trouble, trial.blames));
            tried.push(found);
            next = match tried.len() < HEADERS_MAX && budget.take().is_ok() {
                true => self.other_header(pointer, dva, &tried, budget.without),
                false => None,
            };
        }
        budget.trial = outer;
        if budget.trial.is_none()
            && place.expected.is_none()
            && let Some(bytes) = self.read_gang_without_some(pointer, dva, address)
        {
            mark::hit("gang-block-read-without-leaves");
            let place = GangPlace {
                depth: 0,
                expected: Some(&bytes),
            };
            let mut budget = HeaderBudget::of(pointer, budget.validity);
            // Repairs what is wrong.
            let _ = self.read_gang(pointer, dva, address, place, &mut budget);
            return Ok(bytes);
        }
        let none = || (CopyTrouble::Other("no gang header".into()), vec![]);
        let (trouble, blames) = failure.unwrap_or_else(none);
        match &mut budget.trial {
            Some(outer) => outer.blames.extend(blames),
            None if budget.validity.is_current() => {
                self.count_errors(&self.topology(), &blames, Some(address));
            }
            None => {}
        }
        Err(trouble)
    }

    /// Reads a gang block without some leaves of a vdev: they may be those with older headers, all of which lead to something.
    /// Nothing is repaired or counted.
    fn read_gang_without_some(
        &self,
        pointer: &BlockPointer,
        dva: Dva,
        address: BlockAddress,
    ) -> Option<Vec<u8>> {
        let topology = self.topology();
        let leaves = topology.tree.leaves();
        let leaves = leaves.filter(|(_, node)| node.top == Some(dva.vdev));
        let leaves: Vec<LeafId> = leaves.map(|(leaf, _)| leaf).collect();
        LeftOut::sets(&leaves).take(SETS_MAX).find_map(|left_out| {
            let mut budget = HeaderBudget::trial(pointer, left_out);
            let place = GangPlace::default();
            self.read_gang(pointer, dva, address, place, &mut budget)
                .ok()
        })
    }

    /// The bytes of a gang block, if any of its headers leads to them. Nothing is repaired or counted.
    pub(crate) fn try_gang(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
    ) -> Option<Vec<u8>> {
        pointer.dvas().find_map(|dva| {
            let mut budget = HeaderBudget::trial(pointer, LeftOut::default());
            let place = GangPlace::default();
            let read = self.read_gang(pointer, dva, address, place, &mut budget);
            read.ok()
                .or_else(|| self.read_gang_without_some(pointer, dva, address))
        })
    }

    /// Reads the pieces that a header leads to, and verifies the whole.
    pub(crate) fn join_pieces(
        &self,
        pointer: &BlockPointer,
        header: &GangHeader,
        address: BlockAddress,
        place: GangPlace<'_>,
        budget: &mut HeaderBudget<'_>,
    ) -> Result<Vec<u8>, CopyTrouble> {
        let GangPlace { depth, expected } = place;
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
            let end = bytes.len().saturating_add(child.psize_bytes() as usize);
            let wanted = expected.and_then(|all| all.get(bytes.len()..end));
            let piece = if child.is_gang() {
                let place = GangPlace {
                    depth: depth + 1,
                    expected: wanted,
                };
                self.read_gang_node(child, address, place, budget)
            } else {
                let search = CopySearch {
                    depth: depth + 1,
                    budget: &mut *budget,
                    begun: None,
                    accepts: &|bytes| wanted.is_none_or(|wanted| bytes == wanted),
                };
                self.search_copies(child, address, search)
                    .map_err(|error| CopyTrouble::Other(format!("piece of a gang block: {error}")))
            }?;
            bytes.extend_from_slice(&piece);
        }
        // Checksums of pointers inside the tree are not verified; the leader's checksum covers the whole.
        if expected.is_some_and(|expected| bytes != expected) {
            return Err(CopyTrouble::Other("the pieces are of another block".into()));
        }
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
        place: GangPlace<'_>,
        budget: &mut HeaderBudget<'_>,
    ) -> Result<Vec<u8>, CopyTrouble> {
        let mut last = CopyTrouble::Other("gang pointer without an address".into());
        for dva in pointer.dvas() {
            match self.read_gang(pointer, dva, address, place, budget) {
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
        budget: &mut HeaderBudget<'_>,
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
                .and_then(|()| self.read_gang_header(pointer, dva, budget.validity));
            let header = match found {
                Ok(found) => self.sure_header(pointer, dva, found, address, depth)?,
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
}
