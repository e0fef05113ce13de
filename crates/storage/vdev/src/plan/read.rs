//! Reads one block: first the minimum, then everything, then all combinations.

use super::blame::{blame, failure};
use super::cells::{Cells, CopyId, CopyState, Row};
use super::layout::Layout;
use super::search::Search;
use super::{BlockRange, Failure, FailureKind, LeafOutcome, LeafRead, PlanError, Resolved, Step};
use crate::health::Health;
use crate::indirect::IndirectMap;
use crate::tree::VdevTree;

/// A plan to read one block. It owns everything it needs, so plans of many blocks run in parallel without
/// locks.
///
/// It first reads only one copy of each data column, and as much parity as there are columns known to be
/// lost. If the result is wrong, it reads the other sides of a mirror one by one. With parity or several
/// pieces it reads everything readable and tries combinations. If the result is still wrong, it splits each
/// column into at most 64 pieces of whole sectors, retries unreadable pieces one by one, and tries
/// combinations of pieces.
///
/// It holds at most everything that its leaves store of the block (a copy for each side of a mirror, or
/// data and parity), and one more block while it tries combinations. The number of candidates is limited:
///
/// * combinations of leaves: 262,144, and 16 GiB in total, but at least 4096;
/// * combinations of copies, where a block has several rows or its columns several copies: 16,384, and 512
///   MiB in total, but at least 512;
/// * blocks without parity: 4096;
/// * after splitting: the combinations of leaves again if a read failed, and 4096 combinations of pieces,
///   and 256 MiB in total, but at least 256.
#[derive(Debug)]
pub struct ReadPlan {
    cells: Cells,
    phase: Phase,
    tried: u64,
    /// The copies of a single cell that were already checked.
    checked: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Read only what is needed.
    Least,
    /// Everything has been requested.
    Everything,
    Over,
}

impl ReadPlan {
    /// Plans the read of `range` and records the health of its leaves. The first
    /// [`advance`](Self::advance), without outcomes, returns the first reads.
    ///
    /// # Errors
    /// [`PlanError`] if the range cannot hold a block.
    pub fn new(
        tree: &VdevTree,
        health: &dyn Health,
        indirect: &dyn IndirectMap,
        range: BlockRange,
    ) -> Result<Self, PlanError> {
        let cells = Cells::new(Layout::new(tree, health, indirect, range)?);
        Ok(Self {
            cells,
            phase: Phase::Least,
            tried: 0,
            checked: Vec::new(),
        })
    }

    /// Takes the outcomes of the last [`Step::Read`] in order (none on the first call), and returns the
    /// next step.
    ///
    /// `verify` decides whether candidate bytes, whose number is that of the range, are right; it may be
    /// called many times. A missing outcome counts as a failed read, a surplus one is ignored. The plan
    /// ends after at most five more steps than the block has copies.
    pub fn advance(
        &mut self,
        outcomes: Vec<LeafOutcome>,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Step {
        if self.phase == Phase::Over {
            return Step::Failed(Failure {
                kind: FailureKind::Spent,
                tried: self.tried,
                blames: Vec::new(),
                absent: Vec::new(),
            });
        }
        self.cells.absorb(outcomes);
        if self.cells.is_single {
            return self.advance_single(verify);
        }
        if self.phase == Phase::Least {
            let needed = self
                .cells
                .rows
                .iter()
                .enumerate()
                .flat_map(|(at, row)| needed(at, row));
            let needed: Vec<CopyId> = needed.collect();
            if !needed.is_empty() {
                return Step::Read(self.cells.ask(needed));
            }
            let mut search = Search::new(&self.cells, verify);
            let found = search.try_believing();
            self.tried = search.tried;
            if let Some(block) = found {
                return self.finish(block);
            }
            self.phase = Phase::Everything;
        }
        self.advance_rest(verify)
    }

    /// Reads everything that is still readable and tries all combinations; then once more with split
    /// columns.
    fn advance_rest(&mut self, verify: &mut dyn FnMut(&[u8]) -> bool) -> Step {
        let rest = self.cells.askable();
        if !rest.is_empty() {
            return Step::Read(self.cells.ask(rest));
        }
        let mut search = Search::new(&self.cells, verify);
        let found = search.try_believing().or_else(|| search.try_doubting());
        let had_candidate = search.had_candidate || self.tried > 0;
        let is_ambiguous = search.is_ambiguous;
        self.tried = self.tried.saturating_add(search.tried);
        match found {
            Some(block) => self.finish(block),
            None if !is_ambiguous && self.cells.split() => self.advance_rest(verify),
            None => self.fail(had_candidate),
        }
    }

    /// Handles a block that is a single run of bytes with several copies: tries them one by one.
    fn advance_single(&mut self, verify: &mut dyn FnMut(&[u8]) -> bool) -> Step {
        let size = self.cells.size;
        let copies = self.cells.rows.first().and_then(|row| row.cells.first());
        let copies = copies.map_or(&[][..], |cell| cell.copies.as_slice());
        let fresh = copies.iter().enumerate().find_map(|(at, copy)| {
            let bytes = copy.held().filter(|_| !self.checked.contains(&at))?;
            Some((at, bytes.get(..size)?))
        });
        if let Some((at, bytes)) = fresh {
            self.tried = self.tried.saturating_add(1);
            self.checked.push(at);
            if verify(bytes) {
                let is_first = self.checked.len() == 1 && !self.cells.had_fault;
                if is_first && let Some(data) = self.cells.take_single(at) {
                    self.phase = Phase::Over;
                    let (liars, repairs) = (Vec::new(), Vec::new());
                    return Step::Done(Resolved {
                        data: data.into_vec(),
                        liars,
                        repairs,
                    });
                }
                let block = bytes_of(&self.cells, at, size);
                return self.finish(block);
            }
        }
        match self.cells.askable().into_iter().next() {
            Some(next) => Step::Read(self.cells.ask(vec![next])),
            None if self.cells.split() => {
                self.phase = Phase::Everything;
                self.advance_rest(verify)
            }
            None => self.fail(self.tried > 0),
        }
    }

    fn finish(&mut self, data: Vec<u8>) -> Step {
        let is_clean = self.phase == Phase::Least && !self.cells.had_fault && self.tried <= 1;
        // If all reads for the first candidate succeeded, every byte read is part of it or was used to
        // verify it, so all are right.
        let (liars, repairs) = if is_clean {
            (Vec::new(), Vec::new())
        } else {
            blame(&self.cells, &data)
        };
        self.phase = Phase::Over;
        Step::Done(Resolved {
            data,
            liars,
            repairs,
        })
    }

    fn fail(&mut self, had_candidate: bool) -> Step {
        self.phase = Phase::Over;
        Step::Failed(failure(&self.cells, self.tried, had_candidate))
    }
}

fn bytes_of(cells: &Cells, copy: usize, size: usize) -> Vec<u8> {
    let cell = cells.rows.first().and_then(|row| row.cells.first());
    let held = cell
        .and_then(|cell| cell.copies.get(copy))
        .and_then(|copy| copy.held());
    held.and_then(|bytes| bytes.get(..size))
        .unwrap_or(&[])
        .to_vec()
}

impl Cells {
    /// Every copy that can still be read.
    pub(super) fn askable(&self) -> Vec<CopyId> {
        let mut found = Vec::new();
        for (row, shape) in self.rows.iter().enumerate() {
            for (cell, shape) in shape.cells.iter().enumerate() {
                for (copy, held) in shape.copies.iter().enumerate() {
                    if held.is_askable() {
                        found.push(CopyId { row, cell, copy });
                    }
                }
            }
        }
        found
    }
}

/// The minimum that must still be read to assemble a row.
fn needed(at: usize, row: &Row) -> Vec<CopyId> {
    // After a merged read failed, find out which of its parts is bad.
    let mut wanted: Vec<CopyId> = failed_in_company(at, row).collect();
    let mut missing = Vec::new();
    for (index, cell) in row.cells.iter().enumerate().skip(row.parity) {
        if cell.length == 0 {
            continue;
        }
        match state_of(row, at, index, false) {
            CellState::Held => {}
            CellState::Askable(id) => want(&mut wanted, id),
            CellState::Lost => missing.push(index),
        }
    }
    let mut lacking = missing.len();
    for index in 0..row.parity {
        if lacking == 0 {
            break;
        }
        match state_of(row, at, index, false) {
            CellState::Held => lacking = lacking.saturating_sub(1),
            CellState::Askable(id) => {
                lacking = lacking.saturating_sub(1);
                want(&mut wanted, id);
            }
            CellState::Lost => {}
        }
    }
    if lacking > 0 {
        // Last resort for lost cells: copies on slow leaves, and those that missed the txg.
        for index in missing.into_iter().chain(0..row.parity) {
            if lacking == 0 {
                break;
            }
            let is_lost = matches!(state_of(row, at, index, false), CellState::Lost);
            match state_of(row, at, index, true) {
                CellState::Held if is_lost => lacking = lacking.saturating_sub(1),
                CellState::Askable(id) if is_lost => {
                    lacking = lacking.saturating_sub(1);
                    want(&mut wanted, id);
                }
                _ => {}
            }
        }
    }
    wanted
}

fn failed_in_company(at: usize, row: &Row) -> impl Iterator<Item = CopyId> {
    row.cells.iter().enumerate().flat_map(move |(cell, shape)| {
        let copies = shape.copies.iter().enumerate();
        let failed = copies.filter(|(_, copy)| matches!(copy.state, CopyState::FailedInCompany));
        failed.map(move |(copy, _)| CopyId {
            row: at,
            cell,
            copy,
        })
    })
}

/// Adds a copy unless it is already in the list.
fn want(wanted: &mut Vec<CopyId>, id: CopyId) {
    if !wanted.contains(&id) {
        wanted.push(id);
    }
}

enum CellState {
    Held,
    Askable(CopyId),
    Lost,
}

/// The state of a cell's complete copies on leaves that answer, or of the others.
fn state_of(row: &Row, row_index: usize, index: usize, is_last_resort: bool) -> CellState {
    let copies = row
        .cells
        .get(index)
        .map_or(&[][..], |cell| cell.copies.as_slice());
    let mut fitting = copies
        .iter()
        .enumerate()
        .filter(|(_, copy)| copy.source.is_last_resort() == is_last_resort);
    if fitting.clone().any(|(_, copy)| copy.held().is_some()) {
        return CellState::Held;
    }
    match fitting.find(|(_, copy)| copy.is_askable()) {
        Some((copy, _)) => CellState::Askable(CopyId {
            row: row_index,
            cell: index,
            copy,
        }),
        None => CellState::Lost,
    }
}

/// Access to the reads of a step.
impl Step {
    /// The requested reads; empty when the plan has ended.
    #[must_use]
    pub fn reads(&self) -> &[LeafRead] {
        match self {
            Step::Read(reads) => reads,
            _ => &[],
        }
    }
}
