//! Rewrites gang blocks in place.
//!
//! Without this, a block of the MOS that has no contiguous space gets new pieces in every sync pass. Each pass
//! then changes space maps, which the next has to write, and the txg never converges.
//!
//! Page `docs/format/gang-header.md`.

use super::BlockWrite;
use super::WrittenForm;
use super::place::{Extent, Placed, Placer, sealed_header};
use super::prepare::{Stored, form};
use crate::copies::GANG_DEPTH_MAX;
use crate::damage::PointerValidity;
use crate::gang::HeaderBudget;
use crate::gang_headers::FoundHeader;
use millpond_checksum::{Form, GangVerifier};
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Dva};
use std::ops::Range;

impl Placer<'_> {
    /// Puts a block where its previous gang block lies: in the same pieces, below the same headers. `None` if
    /// that block cannot be read or has another number of copies.
    pub(super) fn rewrite_gang(&self, job: &BlockWrite, stored: &Stored) -> Option<Placed> {
        let mut rewrite = GangRewrite {
            placer: self,
            job,
            bytes: &stored.bytes,
            budget: HeaderBudget::of(&job.previous, PointerValidity::Current),
            extents: vec![],
        };
        rewrite.node(&job.previous, 0..stored.bytes.len(), 0)?;
        let extents = rewrite.extents;
        let dvas: Vec<Dva> = job.previous.dvas().collect();
        Some(Placed {
            pointer: self.pointer(job, stored, &dvas),
            form: WrittenForm::Rewritten,
            extents,
            taken: vec![],
        })
    }
}

struct GangRewrite<'a> {
    placer: &'a Placer<'a>,
    job: &'a BlockWrite,
    bytes: &'a Arc<Vec<u8>>,
    budget: HeaderBudget<'static>,
    extents: Vec<Extent>,
}

impl GangRewrite<'_> {
    /// Rewrites the header of `pointer`, which covers `whole`, and everything below it.
    fn node(&mut self, pointer: &BlockPointer, whole: Range<usize>, depth: u32) -> Option<()> {
        let copies = usize::from(self.job.copies);
        let is_of_txg = pointer.physical_birth() == self.placer.txg;
        if depth >= GANG_DEPTH_MAX || !is_of_txg || pointer.dvas().count() != copies.max(2) {
            return None;
        }
        let found = self.header(pointer)?;
        let mut pointers = vec![];
        let mut at = whole.start;
        for piece in found.header.children() {
            let end = at.checked_add(usize::try_from(piece.psize_bytes()).ok()?)?;
            if end > whole.end || piece.is_embedded() {
                return None;
            }
            let dvas: Vec<Dva> = piece.dvas().collect();
            if piece.is_gang() {
                self.node(piece, at..end, depth + 1)?;
            } else {
                if dvas.len() != copies || piece.physical_birth() != self.placer.txg {
                    return None;
                }
                self.write(&dvas, self.bytes, at..end);
            }
            let piece = self
                .placer
                .piece_pointer(self.job, self.bytes, at..end, &dvas);
            pointers.push(piece.ok()?);
            at = end;
        }
        if at != whole.end {
            return None;
        }
        let length = found.bytes.len();
        let verifier = GangVerifier::of(pointer)?;
        let form = match depth {
            0 => form(self.job),
            _ => Form::Full,
        };
        let header = Arc::new(sealed_header(pointers, length, verifier, form).ok()?);
        let dvas: Vec<Dva> = pointer.dvas().collect();
        self.write(&dvas, &header, 0..length);
        Some(())
    }

    fn header(&mut self, pointer: &BlockPointer) -> Option<FoundHeader> {
        pointer.dvas().find_map(|dva| {
            self.budget.take().ok()?;
            (self.placer.store)
                .read_gang_header(pointer, dva, PointerValidity::Current)
                .ok()
        })
    }

    fn write(&mut self, dvas: &[Dva], bytes: &Arc<Vec<u8>>, range: Range<usize>) {
        self.extents.extend(dvas.iter().map(|dva| Extent {
            dva: *dva,
            bytes: Arc::clone(bytes),
            range: range.clone(),
        }));
    }
}
