//! Reading everything that leaves hold of a block, and judging each of them.

use super::blame::{failure, is_right, truth_of};
use super::cells::{Cell, Cells, Copy, CopyId, CopyState, Row};
use super::layout::Layout;
use super::search::Search;
use super::{BlockRange, Failure, LeafFault, LeafOutcome, LeafRead, PlanError};
use crate::health::Health;
use crate::indirect::IndirectMap;
use crate::tree::{LeafId, VdevTree};

/// What a leaf holds of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Bytes of the block itself.
    Data,
    /// Parity of it.
    Parity,
    /// Zeros that fill up a dRAID row.
    Padding,
}

/// What became of one leaf's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It holds what it should.
    Right,
    /// It holds something else.
    Wrong,
    /// It holds something else, and is known to have missed the txg.
    Stale,
    /// It could not be read.
    Fault(LeafFault),
    /// The leaf is absent, offline or faulted; it was not asked.
    Absent,
    /// It was read, but the block is not known, so nobody can tell.
    Unjudged,
}

/// The judgement of one run of bytes on one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AuditFinding {
    /// The leaf.
    pub leaf: LeafId,
    /// First byte on the device, labels included.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
    /// What it holds there.
    pub role: Role,
    /// Whether that is right.
    pub verdict: Verdict,
}

/// What every leaf holds of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditReport {
    /// The block, or why it cannot be had.
    pub block: Result<Vec<u8>, Failure>,
    /// One entry for each run of bytes on each leaf, absent leaves included, sorted by leaf and
    /// offset; neighbours with the same role and verdict are one entry.
    pub findings: Vec<AuditFinding>,
}

impl AuditReport {
    /// Whether the block is readable and every leaf was there and right.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.block.is_ok()
            && self
                .findings
                .iter()
                .all(|finding| finding.verdict == Verdict::Right)
    }
}

/// What is to be done next with an [`AuditPlan`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum AuditStep {
    /// Read these and pass the outcomes to [`AuditPlan::advance`] in the same order. Never empty.
    Read(Vec<LeafRead>),
    /// The judgement.
    Done(AuditReport),
}

/// The way to a judgement on every leaf that holds a part of one block: data, every side of a mirror,
/// parity, and the padding of dRAID. Bounds as for [`ReadPlan`](super::ReadPlan).
#[derive(Debug)]
pub struct AuditPlan {
    cells: Cells,
}

impl AuditPlan {
    /// Lays out `range`, as [`ReadPlan::new`](super::ReadPlan::new) does.
    ///
    /// # Errors
    /// [`PlanError`] when nothing can lie there.
    pub fn new(
        tree: &VdevTree,
        health: &dyn Health,
        indirect: &dyn IndirectMap,
        range: BlockRange,
    ) -> Result<Self, PlanError> {
        Ok(Self {
            cells: Cells::new(Layout::new(tree, health, indirect, range)?),
        })
    }

    /// Takes the outcomes of the last [`AuditStep::Read`] (none for the first call) and says what
    /// comes next; see [`ReadPlan::advance`](super::ReadPlan::advance). Ends after at most five
    /// calls. Where nothing can be right or wrong (`verify` always true), copies and parity
    /// are compared with what the preferred copies give.
    pub fn advance(
        &mut self,
        outcomes: Vec<LeafOutcome>,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> AuditStep {
        self.cells.absorb(outcomes);
        let mut rest = self.cells.askable();
        rest.extend(askable_pads(&self.cells));
        if !rest.is_empty() {
            return AuditStep::Read(self.cells.ask(rest));
        }
        if let Some(report) = self.believe_single(verify) {
            return AuditStep::Done(report);
        }
        let mut search = Search::new(&self.cells, verify);
        let found = search.try_believing().or_else(|| search.try_doubting());
        let (tried, had_candidate) = (search.tried, search.had_candidate);
        if found.is_none() && self.cells.split() {
            // Once only.
            return self.advance(Vec::new(), verify);
        }
        let findings = findings(&self.cells, found.as_deref());
        let block = found.ok_or_else(|| failure(&self.cells, tried, had_candidate));
        AuditStep::Done(AuditReport { block, findings })
    }

    /// The common case of a plain leaf or mirror whose preferred copy is right: the other sides are
    /// compared with it where it lies, and its buffer becomes the block.
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
        let findings = findings(&self.cells, Some(bytes));
        let block = Ok(self.cells.take_single(preferred)?);
        Some(AuditReport { block, findings })
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

fn findings(cells: &Cells, block: Option<&[u8]>) -> Vec<AuditFinding> {
    let mut found = Vec::new();
    for row in &cells.rows {
        let truth = block.and_then(|block| truth_of(row, block));
        for (index, cell) in row.cells.iter().enumerate() {
            let role = if index < row.parity {
                Role::Parity
            } else {
                Role::Data
            };
            let truth = truth.as_ref().and_then(|truth| truth.get(index));
            for copy in &cell.copies {
                found.push(judge(row, cell, copy, role, truth.map(AsRef::as_ref)));
            }
        }
        for cell in &row.pads {
            let zeros = vec![0; cell.length];
            for copy in &cell.copies {
                found.push(judge(row, cell, copy, Role::Padding, Some(&zeros)));
            }
        }
    }
    merge(found)
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
        (CopyState::Unread | CopyState::Asked | CopyState::FailedInCompany, _) => {
            Verdict::Fault(LeafFault::Length)
        }
    };
    AuditFinding {
        leaf: copy.source.leaf,
        offset_bytes: copy.source.offset_bytes,
        length_bytes: u64::try_from(cell.length).unwrap_or(u64::MAX),
        role,
        verdict,
    }
}

fn merge(mut found: Vec<AuditFinding>) -> Vec<AuditFinding> {
    found.sort_by_key(|finding| (finding.leaf, finding.offset_bytes));
    let mut merged: Vec<AuditFinding> = Vec::with_capacity(found.len());
    for finding in found {
        if let Some(last) = merged.last_mut() {
            let is_next = last.leaf == finding.leaf
                && (last.role, last.verdict) == (finding.role, finding.verdict)
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
