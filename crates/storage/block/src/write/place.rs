//! Allocates space for prepared blocks, in one run or as gang pieces, and makes the pointers.
//!
//! Pages `docs/format/block-pointer.md`, `docs/format/gang-header.md`.

use super::prepare::{Stored, form};
use super::{Allocate, BlockWrite, NoSpace, SpaceRequest, WrittenForm};
use crate::BlockStore;
use crate::copies::GANG_DEPTH_MAX;
use crate::topology::Topology;
use millpond_checksum::{Checksummer, Form, GangVerifier, seal_gang_header};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockPointer, CompressionKind, Dva, Endian, GANG_HEADER_BYTES, GangHeader, Level, ObjectType,
    StoredBlock, Txg,
};
use std::ops::Range;

/// Bytes to write at one address.
#[derive(Debug, Clone)]
pub(super) struct Extent {
    pub(super) dva: Dva,
    pub(super) bytes: Arc<Vec<u8>>,
    /// The part of `bytes` to write.
    pub(super) range: Range<usize>,
}

impl Extent {
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or(&[])
    }
}

/// A block that has space and waits to be written.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) pointer: BlockPointer,
    pub(super) form: WrittenForm,
    pub(super) extents: Vec<Extent>,
    /// Newly allocated space, to be released if the block is not written.
    pub(super) taken: Vec<Dva>,
}

/// Why a block got no space.
#[derive(Debug)]
pub(super) enum NoPlace {
    NoSpace,
    /// The allocator refused to release what it had allocated, because it was free.
    Allocator(String),
}

impl From<NoSpace> for NoPlace {
    fn from(_: NoSpace) -> Self {
        Self::NoSpace
    }
}

/// The context of placing blocks.
#[derive(Clone, Copy)]
pub(super) struct Placer<'a> {
    pub(super) store: &'a BlockStore,
    pub(super) txg: Txg,
    pub(super) allocator: &'a dyn Allocate,
    pub(super) topology: &'a Topology,
    pub(super) checksummer: &'a Checksummer,
}

impl Placer<'_> {
    /// Finds space: the previous block's if `job` allows it and `avoid` is empty (no write failed there),
    /// else a new run for each copy, else gang pieces.
    pub(super) fn place(
        &self,
        job: &BlockWrite,
        stored: &Stored,
        avoid: &[Dva],
    ) -> Result<Placed, NoPlace> {
        let psize = stored.bytes.len() as u64;
        if avoid.is_empty() && self.may_rewrite(job, psize) {
            if !job.previous.is_gang() {
                mark::hit("block-rewritten-in-place");
                let dvas: Vec<Dva> = job.previous.dvas().collect();
                return Ok(self.contiguous(job, stored, dvas, WrittenForm::Rewritten));
            }
            if let Some(placed) = self.rewrite_gang(job, stored) {
                mark::hit("gang-block-rewritten-in-place");
                return Ok(placed);
            }
        }
        let request = SpaceRequest {
            psize_bytes: psize,
            copies: job.copies,
            class: job.class,
            is_gang_header: false,
            avoid,
        };
        match self.allocator.allocate(self.txg, &request) {
            Ok(dvas) => Ok(self.contiguous(job, stored, dvas, WrittenForm::Contiguous)),
            Err(NoSpace) if job.may_gang => self.gang(job, stored, avoid),
            Err(NoSpace) => Err(NoPlace::NoSpace),
        }
    }

    /// Releases the space that a block took.
    ///
    /// # Errors
    /// The allocator's error, after every address was tried.
    pub(super) fn release(&self, taken: &[Dva]) -> Result<(), NoPlace> {
        let mut outcome = Ok(());
        for dva in taken {
            if let Err(reason) = self.allocator.release(self.txg, dva) {
                outcome = Err(NoPlace::Allocator(reason));
            }
        }
        outcome
    }

    /// Whether a block of `psize` bytes fits exactly where the previous one lies, and no earlier txg refers
    /// to that one.
    fn may_rewrite(&self, job: &BlockWrite, psize: u64) -> bool {
        let previous = &job.previous;
        job.may_rewrite
            && job.dedup.is_none()
            && !previous.is_hole()
            && !previous.is_embedded()
            && !previous.is_dedup()
            && !previous.has_crypt_bit()
            && previous.birth() == self.txg
            && previous.physical_birth() == self.txg
            && previous.psize_bytes() == psize
            && (previous.is_gang() || previous.dvas().count() == usize::from(job.copies))
    }

    fn contiguous(
        &self,
        job: &BlockWrite,
        stored: &Stored,
        dvas: Vec<Dva>,
        form: WrittenForm,
    ) -> Placed {
        let extents = dvas.iter().map(|dva| Extent {
            dva: *dva,
            bytes: Arc::clone(&stored.bytes),
            range: 0..stored.bytes.len(),
        });
        Placed {
            pointer: self.pointer(job, stored, &dvas),
            form,
            extents: extents.collect(),
            taken: if form == WrittenForm::Rewritten {
                vec![]
            } else {
                dvas
            },
        }
    }

    pub(super) fn pointer(&self, job: &BlockWrite, stored: &Stored, dvas: &[Dva]) -> BlockPointer {
        let mut pointer = StoredBlock {
            dvas,
            lsize_bytes: job.content.len() as u64,
            psize_bytes: stored.bytes.len() as u64,
            compression: stored.compression,
            checksum: job.checksum,
            checksum_words: stored.checksum_words,
            object_type: job.object_type,
            level: job.level,
            birth: self.txg,
            fill: job.fill,
        }
        .pointer();
        if let Some(protection) = &stored.protection {
            protection.mark(&mut pointer);
        }
        pointer
    }

    /// The pointer in a gang header to a part of a block.
    pub(super) fn piece_pointer(
        &self,
        job: &BlockWrite,
        bytes: &[u8],
        range: Range<usize>,
        dvas: &[Dva],
    ) -> Result<BlockPointer, NoSpace> {
        let bytes = bytes.get(range).unwrap_or(&[]);
        let kind = job.checksum;
        let words = self.checksummer.checksum(kind, bytes, Endian::Little);
        let piece = StoredBlock {
            dvas,
            lsize_bytes: bytes.len() as u64,
            psize_bytes: bytes.len() as u64,
            compression: CompressionKind::Off,
            checksum: kind,
            // The same function already succeeded on the whole.
            checksum_words: words.map_err(|_| NoSpace)?,
            object_type: ObjectType(0),
            level: Level(0),
            birth: self.txg,
            fill: 0,
        };
        Ok(piece.pointer())
    }

    fn gang(&self, job: &BlockWrite, stored: &Stored, avoid: &[Dva]) -> Result<Placed, NoPlace> {
        let mut gang = Gang {
            placer: self,
            job,
            bytes: &stored.bytes,
            avoid,
            extents: vec![],
            taken: vec![],
            is_nested: false,
        };
        match gang.node(0..stored.bytes.len(), 0) {
            Ok(dvas) => {
                mark::hit("gang-block");
                Ok(Placed {
                    pointer: self.pointer(job, stored, &dvas),
                    form: WrittenForm::Gang {
                        is_nested: gang.is_nested,
                    },
                    extents: gang.extents,
                    taken: gang.taken,
                })
            }
            Err(NoSpace) => {
                mark::hit("gang-block-has-no-room");
                self.release(&gang.taken)?;
                Err(NoPlace::NoSpace)
            }
        }
    }
}

/// The bytes of a gang header.
///
/// The size is one of a vdev, and the number of pointers is limited to what fits; a header that still does
/// not encode cannot be written.
pub(super) fn sealed_header(
    pointers: Vec<BlockPointer>,
    header_bytes: usize,
    verifier: GangVerifier,
    form: Form,
) -> Result<Vec<u8>, NoSpace> {
    let header = GangHeader {
        pointers,
        checksum: [0; 4],
    };
    let mut header = header.encode(header_bytes).map_err(|_| NoSpace)?;
    seal_gang_header(&mut header, verifier, form).map_err(|_| NoSpace)?;
    Ok(header)
}

/// A block being split into pieces.
struct Gang<'a> {
    placer: &'a Placer<'a>,
    job: &'a BlockWrite,
    bytes: &'a Arc<Vec<u8>>,
    avoid: &'a [Dva],
    extents: Vec<Extent>,
    taken: Vec<Dva>,
    is_nested: bool,
}

impl Gang<'_> {
    /// Allocates a header and the pieces of `whole` below it. Returns the addresses of the header, each
    /// with the total size of what lies under it. On failure `self.taken` keeps what was allocated.
    fn node(&mut self, whole: Range<usize>, depth: u32) -> Result<Vec<Dva>, NoSpace> {
        if depth >= GANG_DEPTH_MAX {
            return Err(NoSpace);
        }
        // Losing the header loses all pieces, so there are at least two copies.
        let copies = self.job.copies.max(2);
        let mut headers = self.allocate(GANG_HEADER_BYTES as u64, copies, true)?;
        let header_bytes = self.header_bytes(&headers);
        let mut pointers = vec![];
        let slots = GangHeader::pointer_count(header_bytes);
        let mut at = whole.start;
        while at < whole.end {
            let left = slots.saturating_sub(pointers.len());
            let child = self.piece(at..whole.end, whole.len(), left, depth)?;
            at += child.psize_bytes() as usize;
            pointers.push(child);
        }
        let verifier = headers.first().map(|dva| GangVerifier {
            vdev: dva.vdev,
            offset_bytes: dva.offset_bytes,
            birth: self.placer.txg,
        });
        let verifier = verifier.ok_or(NoSpace)?;
        // Only the pointer to the whole block says that it is encrypted.
        let form = match depth {
            0 => form(self.job),
            _ => Form::Full,
        };
        let header = sealed_header(pointers.clone(), header_bytes, verifier, form)?;
        let header = Arc::new(header);
        for dva in &headers {
            self.extents.push(Extent {
                dva: *dva,
                bytes: Arc::clone(&header),
                range: 0..header_bytes,
            });
        }
        for (index, dva) in headers.iter_mut().enumerate() {
            dva.is_gang = true;
            for child in &pointers {
                let below = child.dvas().nth(index);
                dva.asize_bytes += below.map_or(0, |below| below.asize_bytes);
            }
        }
        Ok(headers)
    }

    /// Allocates the next piece of `left`, in a node of `total` bytes with `slots` free pointers.
    ///
    /// Tries the rest, its half, its quarter and so on, and takes the longest free run. The piece is never
    /// so small that the other slots could not hold what remains.
    fn piece(
        &mut self,
        left: Range<usize>,
        total: usize,
        slots: usize,
        depth: u32,
    ) -> Result<BlockPointer, NoSpace> {
        let unit = self.unit();
        let least = left.len().div_ceil(slots.max(1));
        let least = least.next_multiple_of(unit).min(left.len());
        let mut size = left.len();
        loop {
            // The whole was already tried before the block was split.
            if size < total {
                let copies = self.job.copies;
                if let Ok(dvas) = self.allocate(size as u64, copies, false) {
                    let range = left.start..left.start + size;
                    for dva in &dvas {
                        self.extents.push(Extent {
                            dva: *dva,
                            bytes: Arc::clone(self.bytes),
                            range: range.clone(),
                        });
                    }
                    return self
                        .placer
                        .piece_pointer(self.job, self.bytes, range, &dvas);
                }
            }
            if size <= least {
                break;
            }
            // Always smaller than before: a size above `least` is above one unit.
            size = (size / 2).next_multiple_of(unit).max(least);
        }
        // A piece of one sector is not worth a header, which takes a sector too.
        if least <= unit || least >= total {
            return Err(NoSpace);
        }
        mark::hit("gang-block-in-gang-block");
        self.is_nested = true;
        let range = left.start..left.start + least;
        let dvas = self.node(range.clone(), depth + 1)?;
        self.placer
            .piece_pointer(self.job, self.bytes, range, &dvas)
    }

    fn allocate(
        &mut self,
        psize_bytes: u64,
        copies: u8,
        is_gang_header: bool,
    ) -> Result<Vec<Dva>, NoSpace> {
        let request = SpaceRequest {
            psize_bytes,
            copies,
            class: self.job.class,
            is_gang_header,
            avoid: self.avoid,
        };
        let dvas = self.placer.allocator.allocate(self.placer.txg, &request)?;
        self.taken.extend_from_slice(&dvas);
        Ok(dvas)
    }

    /// The size of a header at these addresses: the smallest that their vdevs allow.
    fn header_bytes(&self, dvas: &[Dva]) -> usize {
        let Topology {
            tree,
            has_large_gang_headers,
            ..
        } = self.placer.topology;
        let sizes = dvas
            .iter()
            .filter_map(|dva| tree.gang_header_size(dva.vdev, *has_large_gang_headers));
        let least = sizes.min().and_then(|size| usize::try_from(size).ok());
        least.unwrap_or(GANG_HEADER_BYTES)
    }

    /// Pieces are whole sectors of the vdev with the smallest sector, so that only the last one is padded.
    fn unit(&self) -> usize {
        let units = super::prepare::allocation_units(&self.placer.topology.tree);
        units.stored_bytes(1, usize::MAX).unwrap_or(512)
    }
}
