//! Audits: reads all bytes that leaves hold of a block, and judges each.

use super::blame::{failure, is_right, truth_of};
use super::cells::{Cell, Cells, Copy, CopyId, CopyState, Row};
use super::layout::Layout;
use super::search::Search;
use super::{BlockRange, Failure, LeafBytes, LeafFault, LeafOutcome, LeafRead, PlanError};
use crate::health::Health;
use crate::indirect::IndirectMap;
use crate::tree::{LeafId, VdevTree};

/// What the bytes of a leaf are to the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Bytes of the block.
    Data,
    /// Parity of the block.
    Parity,
    /// Zeros that pad a dRAID row.
    Padding,
}

/// The judgement of one leaf's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is right.
    Right,
    /// It is wrong.
    Wrong,
    /// The leaf is known to have missed the txg, and the bytes are wrong or were not read.
    Stale,
    /// It could not be read.
    Fault(LeafFault),
    /// The leaf is absent, offline or faulted, and was not read.
    Absent,
    /// It was read but cannot be judged, because the block is unknown.
    Unjudged,
}

/// The judgement of one run of bytes on one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AuditFinding {
    /// The leaf.
    pub leaf: LeafId,
    /// The distributed spare whose space the bytes are in, the outermost if there are several.
    pub spare: Option<LeafId>,
    /// First byte on the device, including labels.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
    /// The role of the bytes.
    pub role: Role,
    /// Whether they are right.
    pub verdict: Verdict,
    /// Whether the leaf, or a distributed spare in whose space they lie, is known to have missed the txg.
    pub is_stale: bool,
}

/// The judgement of everything that leaves hold of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditReport {
    /// The block, or why it cannot be read.
    pub block: Result<LeafBytes, Failure>,
    /// One entry for each run of bytes on each leaf, including absent leaves, sorted by leaf and offset.
    /// Adjacent runs with the same role and verdict are one entry.
    pub findings: Vec<AuditFinding>,
}

impl AuditReport {
    /// Whether the block is readable and every leaf is present and right.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.block.is_ok()
            && self
                .findings
                .iter()
                .all(|finding| finding.verdict == Verdict::Right)
    }
}

/// The next step of an [`AuditPlan`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum AuditStep {
    /// Perform these reads and pass the outcomes to [`AuditPlan::advance`] in the same order. Never empty.
    Read(Vec<LeafRead>),
    /// The result.
    Done(AuditReport),
}

/// A plan to judge every leaf that holds a part of one block: data, every side of a mirror, parity, and the
/// padding of dRAID. Limits are those of [`ReadPlan`](super::ReadPlan).
#[derive(Debug)]
pub struct AuditPlan {
    cells: Cells,
    /// Whether stale leaves are not read while the block is known without them.
    spares_stale: bool,
    /// Whether one copy of each part is enough while the block is known with it.
    spares_copies: bool,
    /// Whether a whole copy may be right that differs from another one.
    verifies_copies: bool,
}

impl AuditPlan {
    /// Plans the audit of `range`, as [`ReadPlan::new`](super::ReadPlan::new) does.
    ///
    /// # Errors
    /// [`PlanError`] if the range cannot hold a block.
    pub fn new(
        tree: &VdevTree,
        health: &dyn Health,
        indirect: &dyn IndirectMap,
        range: BlockRange,
    ) -> Result<Self, PlanError> {
        Ok(Self {
            cells: Cells::new(Layout::new(tree, health, indirect, range)?),
            spares_stale: false,
            spares_copies: false,
            verifies_copies: false,
        })
    }

    /// Reads stale leaves only if the block cannot be found without them. What was not read is
    /// [`Verdict::Stale`].
    #[must_use]
    pub fn sparing_stale(mut self) -> Self {
        self.spares_stale = true;
        self
    }

    /// Reads one copy of each part only, unless the block cannot be found with it. Nothing is said of copies on
    /// leaves that are up to date and were not read.
    #[must_use]
    pub fn sparing_copies(mut self) -> Self {
        self.spares_copies = true;
        self
    }

    /// Judges each whole copy of a mirror by `verify`, not by comparison with another one. For blocks whose checksum does not
    /// cover all their bytes: the rest is never written, and differs between leaves.
    #[must_use]
    pub fn verifying_copies(mut self) -> Self {
        self.verifies_copies = true;
        self
    }

    /// Takes the outcomes of the last [`AuditStep::Read`] (none on the first call) and returns the next
    /// step; see [`ReadPlan::advance`](super::ReadPlan::advance). Ends after at most seven calls, and one more for each copy
    /// of a part if [`AuditPlan::sparing_copies`] was called. If there
    /// is no checksum (`verify` always returns true), copies and parity are compared with the preferred
    /// copies.
    pub fn advance(
        &mut self,
        outcomes: Vec<LeafOutcome>,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> AuditStep {
        self.cells.absorb(outcomes);
        let mut rest = self.cells.askable();
        rest.extend(askable_pads(&self.cells));
        if self.spares_stale {
            rest.retain(|id| !self.cells.is_stale(id));
        }
        if self.spares_copies {
            self.cells.retain_needed(&mut rest);
        }
        if !rest.is_empty() {
            return AuditStep::Read(self.cells.ask(rest));
        }
        if let Some(report) = self.believe_single(verify) {
            return AuditStep::Done(report);
        }
        let mut search = Search::new(&self.cells, verify);
        let found = search.try_believing().or_else(|| search.try_doubting());
        let (tried, had_candidate) = (search.tried, search.had_candidate);
        if found.is_none() && self.spares_copies {
            self.spares_copies = false;
            return self.advance(Vec::new(), verify);
        }
        if found.is_none() && self.spares_stale {
            // The stale leaves may have right bytes nevertheless.
            self.spares_stale = false;
            return self.advance(Vec::new(), verify);
        }
        if found.is_none() && !search.is_ambiguous && self.cells.split() {
            // This happens only once.
            return self.advance(Vec::new(), verify);
        }
        let findings = self.findings(found.as_deref(), verify);
        let found = found.map(LeafBytes::from);
        let block = found.ok_or_else(|| failure(&self.cells, tried, had_candidate));
        AuditStep::Done(AuditReport { block, findings })
    }

    /// Handles the common case of a plain leaf or mirror whose preferred copy is right. The other sides are
    /// compared with its buffer, which then becomes the block.
    fn believe_single(&mut self, verify: &mut dyn FnMut(&[u8]) -> bool) -> Option<AuditReport> {
        if !self.cells.is_single || self.cells.is_split {
            return None;
        }
        let size = self.cells.size;
        let cell = self.cells.rows.first()?.cells.first()?;
        let (preferred, bytes) = cell.copies.iter().enumerate().find_map(|(at, copy)| {
            let bytes = copy.held().filter(|_| !copy.source.is_stale)?;
            Some((at, bytes.get(..size)?))
        })?;
        if !verify(bytes) {
            return None;
        }
        let findings = self.findings(Some(bytes), verify);
        let block = Ok(self.cells.take_single(preferred)?);
        Some(AuditReport { block, findings })
    }

    fn findings(
        &self,
        block: Option<&[u8]>,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Vec<AuditFinding> {
        let mut found = Vec::new();
        for row in &self.cells.rows {
            let truth = block.and_then(|block| truth_of(row, block));
            for (index, cell) in row.cells.iter().enumerate() {
                let role = if index < row.parity {
                    Role::Parity
                } else {
                    Role::Data
                };
                let truth = truth.as_ref().and_then(|truth| truth.get(index));
                for copy in self.judged_copies(cell) {
                    let mut finding = judge(row, cell, copy, role, truth.map(AsRef::as_ref));
                    let differs = matches!(finding.verdict, Verdict::Wrong | Verdict::Stale);
                    if differs && self.is_right_by_itself(copy, verify) {
                        finding.verdict = Verdict::Right;
                    }
                    found.push(finding);
                }
            }
            for cell in &row.pads {
                let zeros = vec![0; cell.length];
                for copy in self.judged_copies(cell) {
                    found.push(judge(row, cell, copy, Role::Padding, Some(&zeros)));
                }
            }
        }
        merge(found)
    }

    /// Whether a copy verifies that is not the same as the block.
    fn is_right_by_itself(&self, copy: &Copy, verify: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let is_whole = self.verifies_copies && self.cells.is_single && !self.cells.is_split;
        let bytes = copy.held().filter(|_| is_whole);
        bytes
            .and_then(|bytes| bytes.get(..self.cells.size))
            .is_some_and(verify)
    }

    /// The copies of a cell without those that were spared.
    fn judged_copies<'a>(&self, cell: &'a Cell) -> impl Iterator<Item = &'a Copy> {
        let spares = self.spares_copies;
        let copies = cell.copies.iter();
        copies.filter(move |copy| {
            let is_spared = matches!(copy.state, CopyState::Unread)
                && copy.source.is_readable
                && !copy.source.is_stale;
            !(spares && is_spared)
        })
    }
}

fn askable_pads(cells: &Cells) -> Vec<CopyId> {
    let mut found = Vec::new();
    for (row, shape) in cells.rows.iter().enumerate() {
        for (pad, cell) in shape.pads.iter().enumerate() {
            for (copy, held) in cell.copies.iter().enumerate() {
                if held.is_askable() {
                    let cell = shape.cells.len().saturating_add(pad);
                    found.push(CopyId { row, cell, copy });
                }
            }
        }
    }
    found
}

fn judge(row: &Row, cell: &Cell, copy: &Copy, role: Role, truth: Option<&[u8]>) -> AuditFinding {
    let verdict = match (&copy.state, truth) {
        _ if !copy.source.is_readable => Verdict::Absent,
        (CopyState::Held(held), Some(truth)) if is_right(row, cell, held.as_slice(), truth) => {
            Verdict::Right
        }
        (CopyState::Held(_), Some(_)) if copy.source.is_stale => Verdict::Stale,
        (CopyState::Held(_), Some(_)) => Verdict::Wrong,
        (CopyState::Held(_), None) => Verdict::Unjudged,
        (CopyState::Fault(fault), _) => Verdict::Fault(*fault),
        (CopyState::Unread, _) if copy.source.is_stale => Verdict::Stale,
        (CopyState::Unread | CopyState::Asked | CopyState::FailedInCompany, _) => {
            Verdict::Fault(LeafFault::Length)
        }
    };
    AuditFinding {
        leaf: copy.source.leaf,
        spare: copy.source.spares.first().copied(),
        offset_bytes: copy.source.offset_bytes,
        length_bytes: u64::try_from(cell.length).unwrap_or(u64::MAX),
        role,
        verdict,
        is_stale: copy.source.is_stale,
    }
}

fn merge(mut found: Vec<AuditFinding>) -> Vec<AuditFinding> {
    found.sort_by_key(|finding| (finding.leaf, finding.offset_bytes));
    let mut merged: Vec<AuditFinding> = Vec::with_capacity(found.len());
    for finding in found {
        if let Some(last) = merged.last_mut() {
            let is_next = (last.leaf, last.spare) == (finding.leaf, finding.spare)
                && (last.role, last.verdict, last.is_stale)
                    == (finding.role, finding.verdict, finding.is_stale)
                && last.offset_bytes.checked_add(last.length_bytes) == Some(finding.offset_bytes);
            if is_next {
                last.length_bytes = last.length_bytes.saturating_add(finding.length_bytes);
                continue;
            }
        }
        merged.push(finding);
    }
    merged
}
