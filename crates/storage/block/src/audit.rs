//! Audits: read every copy, mirror side and parity column of a block.

mod report;

pub use report::{BlockAudit, Healed};

use crate::copies::GANG_DEPTH_MAX;
use crate::damage::PointerValidity;
use crate::gang::GangPlace;
use crate::gang_headers::{RightHeader, ends_with_zeros};
use crate::io_stats::IoClass;
use crate::topology::Topology;
use crate::write::heal::HealGroup;
use crate::{BlockAddress, BlockError, BlockStore};
use millpond_checksum::{Checksummer, Form, GangVerifier, find_gang_header};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockPointer, ChecksumKind, DecodeError, Dva, GANG_HEADER_BYTES, GangHeader,
};
use millpond_vdev::{
    AuditFinding, AuditPlan, AuditStep, BlockRange, LeafBytes, LeafOutcome, LeafRead, PlanError,
    Role, VdevKind, Verdict,
};

impl BlockStore {
    /// Reads and judges every copy, mirror side and parity column of a block, bypassing the cache.
    ///
    /// # Errors
    /// [`BlockError::Invalid`] if the pointer cannot be followed. Wrong or missing data on devices is never
    /// an error but part of the result.
    pub fn audit(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
    ) -> Result<BlockAudit, BlockError> {
        self.await_write(pointer);
        let topology = self.topology();
        is_sound(&topology, pointer, address)?;
        let begun = begin(&topology, &self.checksummer(), pointer, Mode::Judge);
        let audited = Audited {
            topology: &topology,
            pointer,
            address,
            mode: Mode::Judge,
            expected: None,
        };
        Ok(self.audit_begun(audited, begun))
    }

    /// Audits several blocks as [`BlockStore::audit`] does: calls `found` with the index of each and its
    /// outcome, in order.
    ///
    /// Devices with queue depth get the reads of several blocks at once: groups end with the block that
    /// reaches 1 MiB. That much is in memory.
    pub fn audit_batch(
        &self,
        wanted: &[(BlockPointer, BlockAddress)],
        found: impl FnMut(usize, Result<BlockAudit, BlockError>),
    ) {
        self.audit_many(wanted, Mode::Judge, found);
    }

    /// Like [`BlockStore::audit_batch`], and writes the right bytes wherever wrong or missing ones were found and
    /// the block is known. [`BlockAudit::healed`] says what was written. Durable after a flush of the store.
    ///
    /// A group is written while the next one is read, so two are in memory.
    ///
    /// The store must be that of a pool open for writing, or a view of one whose blocks are pinned. An expired
    /// view writes nothing.
    pub fn heal_batch(
        &self,
        wanted: &[(BlockPointer, BlockAddress)],
        found: impl FnMut(usize, Result<BlockAudit, BlockError>),
    ) {
        self.audit_many(wanted, Mode::Heal, found);
    }

    /// Like [`BlockStore::heal_batch`], but reads one copy of each part only, unless that is wrong. So it finds little of
    /// what is wrong on leaves that are up to date.
    pub fn resilver_batch(
        &self,
        wanted: &[(BlockPointer, BlockAddress)],
        found: impl FnMut(usize, Result<BlockAudit, BlockError>),
    ) {
        self.audit_many(wanted, Mode::Resilver, found);
    }

    /// Like [`BlockStore::heal_batch`], for blocks of intent logs when they are claimed. A crash may have cut off their
    /// writes, so wrong bytes are counted against no leaf.
    pub fn complete_batch(
        &self,
        wanted: &[(BlockPointer, BlockAddress)],
        found: impl FnMut(usize, Result<BlockAudit, BlockError>),
    ) {
        self.audit_many(wanted, Mode::Complete, found);
    }

    fn audit_many(
        &self,
        wanted: &[(BlockPointer, BlockAddress)],
        mode: Mode,
        mut found: impl FnMut(usize, Result<BlockAudit, BlockError>),
    ) {
        for (pointer, _) in wanted {
            self.await_write(pointer);
        }
        let (topology, checksummer) = (self.topology(), self.checksummer());
        let mut numbers = 0..;
        let mut report = |audits: Vec<_>| {
            for (audit, number) in audits.into_iter().zip(numbers.by_ref()) {
                found(number, audit);
            }
        };
        // Repairs are written while the next group is read.
        let mut healing: Option<HealGroup> = None;
        let mut rest = wanted.iter();
        while !rest.as_slice().is_empty() {
            let (group, reads) = next_group(&topology, &checksummer, mode, &mut rest);
            let mut outcomes = topology.read_leaves(&reads, IoClass::Scrub).into_iter();
            let audits = group.into_iter().map(|(block, begun)| {
                begun.map(|mut begun| {
                    for part in &mut begun {
                        let count = part.reads().len();
                        part.outcomes = Some(outcomes.by_ref().take(count).collect());
                    }
                    let (pointer, address) = block;
                    let audited = Audited {
                        topology: &topology,
                        pointer,
                        address: *address,
                        mode,
                        expected: None,
                    };
                    self.audit_begun(audited, begun)
                })
            });
            if mode == Mode::Judge {
                audits.for_each(|audit| report(vec![audit]));
                continue;
            }
            let next = self.begin_heal(&topology, audits.collect());
            if let Some(group) = healing.replace(next) {
                report(group.settle(&topology));
            }
        }
        if let Some(group) = healing {
            report(group.settle(&topology));
        }
    }

    fn audit_begun(&self, audited: Audited<'_>, begun: Vec<Begun>) -> BlockAudit {
        let mut audit = BlockAudit::default();
        if audited.pointer.is_hole() || audited.pointer.is_embedded() {
            audit.is_readable = true;
        } else {
            self.audit_pointer(audited, begun, &mut audit, 0);
        }
        if audit.is_readable || !audited.pointer.is_gang() {
            return audit;
        }
        let Some(block) = self.try_gang(audited.pointer, audited.address) else {
            return audit;
        };
        // Leaves have different headers, and now it is known which are right.
        mark::hit("older-gang-header-replaced");
        let audited = Audited {
            expected: Some(&block),
            ..audited
        };
        let mut audit = BlockAudit::default();
        self.audit_pointer(audited, vec![], &mut audit, 0);
        audit
    }

    fn audit_pointer(
        &self,
        audited: Audited<'_>,
        begun: Vec<Begun>,
        audit: &mut BlockAudit,
        depth: u32,
    ) {
        let right = match audited.pointer.is_gang() {
            true => {
                let expected = audited.expected;
                let place = GangPlace { depth, expected };
                self.right_header(audited.pointer, audited.address, place)
            }
            false => RightHeader::Undisputed,
        };
        if matches!(right, RightHeader::Unknown) {
            // Each may be the right one: none is overwritten or blamed.
            audit.is_readable = false;
            audit.stored = None;
            return;
        }
        let Audited {
            topology, pointer, ..
        } = audited;
        let mut lost = vec![];
        let mut begun = begun.into_iter();
        let checksummer = self.checksummer();
        let mut stored = None;
        let (mut gang_header, mut lost_headers) = (None, vec![]);
        for dva in pointer.dvas() {
            if dva.is_gang {
                match self.audit_gang_header(audited, dva, &right, audit) {
                    Some(bytes) => gang_header = Some(bytes),
                    None => lost_headers.push(dva),
                }
                continue;
            }
            let mut verify = |bytes: &[u8]| checksummer.verify(pointer, bytes).is_ok();
            // There is one entry for each non-gang address, in order.
            let found = (begun.next())
                .and_then(|begun| self.audit_range(audited, dva, begun, audit, &mut verify));
            if found.is_none() {
                lost.push(range_of(pointer, dva, pointer.psize_bytes()));
            }
            stored = stored.or(found);
        }
        if let (true, Some(block)) = (audited.mode.heals(), &stored) {
            // Every copy at these addresses is wrong, and another address has a right one.
            for range in lost {
                Self::plan_right_bytes(topology, range, block, None, audit);
            }
        }
        if let (true, Some(bytes)) = (audited.mode.heals(), &gang_header) {
            Self::plan_right_headers(audited, lost_headers, bytes, audit);
        }
        if pointer.is_gang() {
            stored = match gang_header {
                Some(bytes) if depth < GANG_DEPTH_MAX => {
                    let joined = self.audit_pieces(audited, &bytes, audit, depth);
                    joined.map(|bytes| Arc::new(bytes.into()))
                }
                _ => None,
            };
            // Checksums inside the tree are not verified; the leader's checksum covers the whole.
            if depth == 0 {
                stored = stored.filter(|bytes| checksummer.verify(pointer, bytes).is_ok());
            }
        }
        audit.is_readable = stored.is_some();
        audit.stored = stored;
    }

    fn audit_gang_header(
        &self,
        audited: Audited<'_>,
        dva: Dva,
        right: &RightHeader,
        audit: &mut BlockAudit,
    ) -> Option<Arc<LeafBytes>> {
        let Audited {
            topology,
            pointer,
            mode,
            ..
        } = audited;
        let verifier = GangVerifier::of(pointer)?;
        let form = Form::of(pointer);
        // Only verifying a header shows which of the two sizes it has, so read it first.
        let size = match right {
            RightHeader::Found(right) => right.length_bytes(),
            _ => self
                .read_gang_header(pointer, dva, PointerValidity::Current)
                .map_or(GANG_HEADER_BYTES as u64, |found| found.length_bytes()),
        };
        let is_right = |bytes: &[u8]| match right {
            RightHeader::Found(right) => right.is_in(pointer, bytes),
            _ => find_gang_header(bytes, verifier, form).is_ok(),
        };
        // Two words of the checksum in a header are not used in the truncated form. Writers leave zeros there; a leaf
        // that has other bytes is wrong if one has zeros, though its header says the same.
        let verifies_copies = form == Form::Truncated;
        let mut is_strict = |bytes: &[u8]| is_right(bytes) && ends_with_zeros(bytes);
        let is_strict = verifies_copies && self.has_header(pointer, dva, size, &mut is_strict);
        let mut verify = |bytes: &[u8]| is_right(bytes) && (!is_strict || ends_with_zeros(bytes));
        let range = (dva, size, verifies_copies);
        let begun = Begun::new(topology, pointer, range, mode, &mut verify);
        self.audit_range(audited, dva, begun, audit, &mut verify)
    }

    /// Plans to write a right gang header to the addresses where all copies of it are wrong. All addresses of a pointer
    /// have the same header.
    fn plan_right_headers(
        audited: Audited<'_>,
        lost: Vec<Dva>,
        bytes: &[u8],
        audit: &mut BlockAudit,
    ) {
        let Audited {
            topology, pointer, ..
        } = audited;
        let verifier = GangVerifier::of(pointer);
        let found = verifier.map(|verifier| find_gang_header(bytes, verifier, Form::of(pointer)));
        let Some(Ok(found)) = found else {
            return;
        };
        let header = bytes.get(..found.length).unwrap_or(bytes);
        for dva in lost {
            let range = range_of(pointer, dva, header.len() as u64);
            Self::plan_right_bytes(topology, range, header, None, audit);
        }
    }

    /// Judges the pieces of a gang block. Returns them joined if all are readable.
    fn audit_pieces(
        &self,
        audited: Audited<'_>,
        header: &[u8],
        audit: &mut BlockAudit,
        depth: u32,
    ) -> Option<Vec<u8>> {
        let Audited {
            topology, pointer, ..
        } = audited;
        let found = find_gang_header(header, GangVerifier::of(pointer)?, Form::of(pointer)).ok()?;
        let bytes = header.get(..found.length).unwrap_or(header);
        let header = GangHeader::decode(bytes, found.endian).ok()?;
        // A reader refuses others too. Without this check a small block could claim endless pieces.
        let pieces = header
            .children()
            .map(BlockPointer::psize_bytes)
            .fold(0, u64::saturating_add);
        if pieces != pointer.psize_bytes() {
            return None;
        }
        let (mut joined, mut at) = (Some(vec![]), 0usize);
        for child in header.children() {
            let is_sound = child.validate().is_ok()
                && topology.accepts(child).is_ok()
                && !child.is_embedded()
                && child.psize_bytes() <= pointer.psize_bytes();
            if !is_sound {
                joined = None;
                continue;
            }
            let begun = begin(topology, &self.checksummer(), child, audited.mode);
            let end = at.saturating_add(child.psize_bytes() as usize);
            let piece = Audited {
                pointer: child,
                expected: audited.expected.and_then(|all| all.get(at..end)),
                ..audited
            };
            at = end;
            self.audit_pointer(piece, begun, audit, depth + 1);
            joined = match (joined, audit.stored.take()) {
                (Some(mut all), Some(piece)) => {
                    all.extend_from_slice(&piece);
                    Some(all)
                }
                _ => None,
            };
        }
        joined.filter(|all: &Vec<u8>| all.len() as u64 == pointer.psize_bytes())
    }
}

/// Whether wrong bytes are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Judge,
    Heal,
    /// As [`Mode::Heal`], with the least reads.
    Resilver,
    /// As [`Mode::Heal`], but no leaf is blamed.
    Complete,
}

impl Mode {
    fn heals(self) -> bool {
        self != Self::Judge
    }
}

/// A block that is audited.
#[derive(Clone, Copy)]
struct Audited<'a> {
    topology: &'a Topology,
    pointer: &'a BlockPointer,
    address: BlockAddress,
    mode: Mode,
    /// Its bytes, if they are known.
    expected: Option<&'a [u8]>,
}

fn range_of(pointer: &BlockPointer, dva: Dva, size_bytes: u64) -> BlockRange {
    BlockRange {
        vdev: dva.vdev,
        offset_bytes: dva.offset_bytes,
        size_bytes,
        birth: pointer.physical_birth(),
    }
}

/// The planned audit of one address, with the outcomes of the first reads.
struct Begun {
    range: BlockRange,
    plan: Result<(AuditPlan, AuditStep), PlanError>,
    /// `None` if they were not read yet.
    outcomes: Option<Vec<LeafOutcome>>,
}

impl Begun {
    fn new(
        topology: &Topology,
        pointer: &BlockPointer,
        (dva, size_bytes, verifies_copies): (Dva, u64, bool),
        mode: Mode,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Self {
        let range = range_of(pointer, dva, size_bytes);
        let plan = AuditPlan::new(&topology.tree, topology, &topology.indirect, range);
        let plan = plan.map(|plan| {
            let plan = match verifies_copies {
                true => plan.verifying_copies(),
                false => plan,
            };
            // Stale leaves are written anyway.
            let mut plan = match mode {
                Mode::Heal | Mode::Complete => plan.sparing_stale(),
                Mode::Resilver => plan.sparing_stale().sparing_copies(),
                Mode::Judge => plan,
            };
            let step = plan.advance(vec![], verify);
            (plan, step)
        });
        Self {
            range,
            plan,
            outcomes: None,
        }
    }

    /// The reads of the first step.
    fn reads(&self) -> &[LeafRead] {
        match &self.plan {
            Ok((_, AuditStep::Read(reads))) => reads,
            _ => &[],
        }
    }
}

/// Plans the audits of all non-gang addresses.
fn begin(
    topology: &Topology,
    checksummer: &Checksummer,
    pointer: &BlockPointer,
    mode: Mode,
) -> Vec<Begun> {
    if pointer.is_hole() || pointer.is_embedded() {
        return vec![];
    }
    let mut verify = |bytes: &[u8]| checksummer.verify(pointer, bytes).is_ok();
    let dvas = pointer.dvas().filter(|dva| !dva.is_gang);
    let size = pointer.psize_bytes();
    // On mirrors only the used part of a log block is written, and its checksum covers no more.
    let is_log = matches!(
        pointer.checksum_kind(),
        Some(ChecksumKind::Zilog | ChecksumKind::Zilog2)
    );
    dvas.map(|dva| Begun::new(topology, pointer, (dva, size, is_log), mode, &mut verify))
        .collect()
}

/// Plans the audits of the next blocks: as many as devices with queue depth get at once, at least one.
fn next_group<'a>(
    topology: &Topology,
    checksummer: &Checksummer,
    mode: Mode,
    rest: &mut std::slice::Iter<'a, (BlockPointer, BlockAddress)>,
) -> (Vec<GroupEntry<'a>>, Vec<LeafRead>) {
    let (mut group, mut reads) = (vec![], vec![]);
    let mut bytes = 0;
    while (group.is_empty() || bytes < topology.group_bytes())
        && let Some(block) = rest.next()
    {
        let (pointer, address) = block;
        let begun = is_sound(topology, pointer, *address)
            .map(|()| begin(topology, checksummer, pointer, mode));
        for part in begun.iter().flatten() {
            let lengths = part.reads().iter().map(|read| read.length_bytes);
            bytes += lengths.sum::<u64>();
            reads.extend_from_slice(part.reads());
        }
        group.push((block, begun));
    }
    (group, reads)
}

/// A block of a group, and its planned audit.
type GroupEntry<'a> = (
    &'a (BlockPointer, BlockAddress),
    Result<Vec<Begun>, BlockError>,
);

pub(crate) fn is_sound(
    topology: &Topology,
    pointer: &BlockPointer,
    address: BlockAddress,
) -> Result<(), BlockError> {
    let invalid = |error| BlockError::Invalid { address, error };
    pointer.validate().map_err(invalid)?;
    topology
        .accepts(pointer)
        .map_err(|reason| invalid(DecodeError::new("block pointer", reason, 0)))
}

impl BlockStore {
    /// Judges one address. Returns the right bytes if they are available.
    fn audit_range(
        &self,
        audited: Audited<'_>,
        dva: Dva,
        begun: Begun,
        audit: &mut BlockAudit,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Option<Arc<LeafBytes>> {
        let Audited {
            topology,
            pointer,
            mode,
            ..
        } = audited;
        let range = begun.range;
        let mut first = begun.outcomes;
        let (mut plan, mut step) = match begun.plan {
            Ok(begun) => begun,
            Err(error) => {
                audit.troubles.push((dva, error.to_string()));
                return None;
            }
        };
        // Where every leaf holds the whole range, each one that fails the checksum is wrong. For columns it is
        // unknown which one is wrong.
        let is_whole_copy = topology.tree.top(dva.vdev).is_some_and(|top| {
            !matches!(
                top.kind,
                VdevKind::Raidz(_) | VdevKind::Draid(_) | VdevKind::Indirect
            )
        });
        loop {
            match step {
                AuditStep::Read(reads) => {
                    audit.read_bytes += reads.iter().map(|read| read.length_bytes).sum::<u64>();
                    let outcomes = first
                        .take()
                        .unwrap_or_else(|| topology.read_leaves(&reads, IoClass::Scrub));
                    step = plan.advance(outcomes, verify);
                }
                AuditStep::Done(report) => {
                    let block = report.block.map(Arc::new);
                    let heals = mode.heals();
                    // Without a checksum nothing tells which of two different copies is right, nor whether data or
                    // parity is. Each may be the last right one: none is overwritten or blamed.
                    let is_unknown = |finding: &AuditFinding| {
                        heals
                            && finding.role != Role::Padding
                            && pointer.checksum_kind() == Some(ChecksumKind::Off)
                            && matches!(finding.verdict, Verdict::Wrong | Verdict::Unjudged)
                            && !finding.is_stale
                    };
                    if let (true, Ok(block)) = (heals, &block) {
                        // A leaf that missed the txg may show right bytes that it does not have: a system that
                        // lost a write-back still reads them from its cache.
                        let findings = report.findings.iter().copied();
                        let wrong = findings.filter(|f| f.verdict != Verdict::Right || f.is_stale);
                        let wrong: Vec<AuditFinding> = wrong.filter(|f| !is_unknown(f)).collect();
                        Self::plan_right_bytes(topology, range, block, Some(&wrong), audit);
                    }
                    let bad = report.findings.into_iter();
                    for mut finding in bad.filter(|f| f.verdict != Verdict::Right) {
                        if is_unknown(&finding) {
                            finding.verdict = Verdict::Unjudged;
                        } else if finding.verdict == Verdict::Unjudged && is_whole_copy {
                            finding.verdict = Verdict::Wrong;
                        }
                        // Checksum errors of an expired view say nothing about leaves: see `count_errors`.
                        let is_wrong = finding.verdict == Verdict::Wrong;
                        if !is_wrong || !(self.has_expired() || mode == Mode::Complete) {
                            topology.count_finding(&finding, audited.address);
                        }
                        audit.findings.push((dva, finding));
                    }
                    if let Err(failure) = &block {
                        audit.troubles.push((dva, failure.to_string()));
                    }
                    return block.ok();
                }
            }
        }
    }
}
