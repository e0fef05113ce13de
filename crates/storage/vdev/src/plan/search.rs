//! Finds wrong leaves: tries combinations of the bytes read until one verifies.
//!
//! First it excludes whole leaves, in sets of one up to the number of parity columns. On expanded RAID-Z it
//! also excludes whole children, at every width that the vdev has had. Then, if a block has several rows or
//! cells have several copies, it excludes single copies. Without parity it tries every choice of copies,
//! starting with those closest to the preferred ones. If everything fails, it repeats this with columns
//! split into pieces.
//!
//! A wrong column that is not excluded spoils the column that is computed from it, at the same offset and by the
//! same bits. Fletcher-2 does not see many of these pairs of errors. So where parity was used, other sets of the
//! same size are tried too, and if two contents verify, neither is returned.

use super::cells::{Cell, Cells, Copy};
use super::solve::{Doubt, NoDoubt};
use crate::tree::LeafId;

/// Limit on the total size of candidates when excluding whole leaves, in bytes.
const LEAF_CANDIDATE_BYTES_MAX: u64 = 16 << 30;
/// Bounds on the number of candidates when excluding whole leaves; they override the size limit.
const LEAF_CANDIDATES: core::ops::RangeInclusive<u64> = 4096..=262_144;
/// Limit on the total size of candidates when excluding single copies of blocks with parity, in bytes.
const COPY_CANDIDATE_BYTES_MAX: u64 = 512 << 20;
/// Bounds on the number of candidates when excluding single copies; they override the size limit.
const COPY_CANDIDATES: core::ops::RangeInclusive<u64> = 512..=16_384;
/// The most candidates for choices of copies of blocks without parity.
const CHOICE_CANDIDATES_MAX: u64 = 4096;
/// Limit on the total size of candidates after columns were split, in bytes.
const PIECE_CANDIDATE_BYTES_MAX: u64 = 256 << 20;
/// Bounds on the number of candidates after columns were split; they override the size limit.
const PIECE_CANDIDATES: core::ops::RangeInclusive<u64> = 256..=4096;
/// How many candidates to check after one has verified.
const OTHERS_MAX: u64 = 256;
/// How many sets to consider per candidate, because most large sets yield no candidate.
const SETS_PER_CANDIDATE: u64 = 4;

/// What bytes are replaced with to see whether a checksum covers them: two different patterns, because a weak checksum may
/// not see one of them.
const NOISE: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];

fn noise_at(at: u64, seed: u64) -> u8 {
    let mixed = at.wrapping_add(1).wrapping_mul(seed);
    (mixed ^ mixed >> 29 ^ mixed >> 47).to_le_bytes()[3]
}

/// A possible origin of wrong bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suspect {
    Leaf(LeafId),
    /// Child `child` from a time when the vdev had `width` children.
    PastChild {
        width: u64,
        child: u64,
    },
    /// One copy of one cell, together with identical copies.
    Copy {
        row: usize,
        cell: usize,
        copy: usize,
    },
}

/// The suspects that are currently excluded.
struct Suspects<'a> {
    all: &'a [Suspect],
    chosen: &'a [usize],
}

impl Doubt for Suspects<'_> {
    fn is_doubted(&self, row: usize, cell: usize, shape: &Cell, copy: usize, held: &Copy) -> bool {
        self.chosen
            .iter()
            .filter_map(|at| self.all.get(*at))
            .any(|suspect| match *suspect {
                Suspect::Leaf(leaf) => held.source.leaf == leaf,
                Suspect::PastChild { width, child } => {
                    shape
                        .raid_sector
                        .and_then(|sector| sector.checked_rem(width))
                        == Some(child)
                }
                Suspect::Copy {
                    row: r,
                    cell: c,
                    copy: n,
                } => (r, c) == (row, cell) && (n == copy || says_the_same(shape, n, copy)),
            })
    }
}

fn says_the_same(shape: &Cell, one: usize, other: usize) -> bool {
    let bytes = |at: usize| shape.copies.get(at).and_then(Copy::held);
    matches!((bytes(one), bytes(other)), (Some(a), Some(b)) if a == b)
}

/// The remaining limits of a search.
struct Budget {
    candidates: u64,
    sets: u64,
}

impl Budget {
    fn new(candidates: u64) -> Self {
        Self {
            candidates,
            sets: candidates.saturating_mul(SETS_PER_CANDIDATE),
        }
    }

    fn take_set(&mut self) -> bool {
        self.sets = self.sets.saturating_sub(1);
        self.sets > 0 && self.candidates > 0
    }
}

/// A search over the copies that were read.
pub(super) struct Search<'a, 'v> {
    pub(super) cells: &'a Cells,
    pub(super) verify: &'v mut dyn FnMut(&[u8]) -> bool,
    /// The number of candidates checked so far.
    pub(super) tried: u64,
    /// Whether any candidate could be assembled.
    pub(super) had_candidate: bool,
    /// Whether several contents verify. Which one is right is unknown then.
    pub(super) is_ambiguous: bool,
    block: Vec<u8>,
}

impl<'a, 'v> Search<'a, 'v> {
    pub(super) fn new(cells: &'a Cells, verify: &'v mut dyn FnMut(&[u8]) -> bool) -> Self {
        let block = vec![0; cells.size];
        Self {
            cells,
            verify,
            tried: 0,
            had_candidate: false,
            is_ambiguous: false,
            block,
        }
    }

    /// Tries the block without excluding anything.
    pub(super) fn try_believing(&mut self) -> Option<Vec<u8>> {
        self.check(&NoDoubt)
            .then(|| core::mem::take(&mut self.block))
    }

    /// Tries the block with all combinations of exclusions.
    pub(super) fn try_doubting(&mut self) -> Option<Vec<u8>> {
        let is_found = if self.cells.rows.iter().all(|row| row.parity == 0) {
            self.choose_copies()
        } else {
            self.doubt_leaves() || (!self.is_ambiguous && self.doubt_copies())
        };
        is_found.then(|| core::mem::take(&mut self.block))
    }

    fn check(&mut self, doubt: &dyn Doubt) -> bool {
        if !self.cells.assemble(doubt, &mut self.block) {
            return false;
        }
        self.had_candidate = true;
        self.tried = self.tried.saturating_add(1);
        (self.verify)(&self.block)
    }

    fn doubt_leaves(&mut self) -> bool {
        if self.cells.is_split && !self.cells.had_fault {
            // Nothing was read since whole leaves were last excluded.
            return false;
        }
        let suspects = self.leaf_suspects();
        let budget = self.budget(LEAF_CANDIDATE_BYTES_MAX, LEAF_CANDIDATES);
        self.doubt_sets(&suspects, self.parity_max(), budget)
    }

    fn doubt_copies(&mut self) -> bool {
        let has_choice = self.cells.rows.len() > 1
            || self
                .cells
                .rows
                .iter()
                .flat_map(|row| &row.cells)
                .any(|cell| cell.copies.len() > 1);
        if !has_choice {
            return false;
        }
        let suspects = self.copy_suspects();
        let most = suspects.len();
        let budget = if self.cells.is_split {
            self.budget(PIECE_CANDIDATE_BYTES_MAX, PIECE_CANDIDATES)
        } else {
            self.budget(COPY_CANDIDATE_BYTES_MAX, COPY_CANDIDATES)
        };
        self.doubt_sets(&suspects, most, budget)
    }

    fn budget(&self, bytes_max: u64, candidates: core::ops::RangeInclusive<u64>) -> Budget {
        let size = u64::try_from(self.cells.size).unwrap_or(u64::MAX).max(1);
        let fitting = bytes_max.checked_div(size).unwrap_or(0);
        Budget::new(fitting.clamp(*candidates.start(), *candidates.end()))
    }

    fn parity_max(&self) -> usize {
        self.cells
            .rows
            .iter()
            .map(|row| row.parity)
            .max()
            .unwrap_or(0)
    }

    fn leaf_suspects(&self) -> Vec<Suspect> {
        let mut suspects = Vec::new();
        if let Some((least, current)) = self.cells.widths {
            for width in (least..=current).rev() {
                suspects.extend((0..width).map(|child| Suspect::PastChild { width, child }));
            }
        }
        let mut leaves: Vec<LeafId> = self
            .cells
            .rows
            .iter()
            .flat_map(|row| &row.cells)
            .flat_map(|cell| &cell.copies)
            .filter(|copy| copy.held().is_some())
            .map(|copy| copy.source.leaf)
            .collect();
        leaves.sort_unstable();
        leaves.dedup();
        suspects.extend(leaves.into_iter().map(Suspect::Leaf));
        suspects
    }

    /// Every distinct content of every cell.
    fn copy_suspects(&self) -> Vec<Suspect> {
        let mut suspects = Vec::new();
        for (row, shape) in self.cells.rows.iter().enumerate() {
            for (cell, shape) in shape.cells.iter().enumerate() {
                for copy in distinct(shape) {
                    suspects.push(Suspect::Copy { row, cell, copy });
                }
            }
        }
        suspects
    }

    /// Excludes every set of 1 to `most` of `suspects`, smallest sets first. False if none verifies, or if two
    /// of the same size do with different contents.
    fn doubt_sets(&mut self, suspects: &[Suspect], most: usize, mut budget: Budget) -> bool {
        for count in 1..=most.min(suspects.len()) {
            let mut sets = Subsets::new(suspects.len(), count);
            let mut found: Option<Vec<u8>> = None;
            while let Some(chosen) = sets.next() {
                if !budget.take_set() {
                    break;
                }
                let before = self.tried;
                let doubt = Suspects {
                    all: suspects,
                    chosen,
                };
                let is_verified = self.check(&doubt);
                budget.candidates = budget
                    .candidates
                    .saturating_sub(self.tried.saturating_sub(before));
                match &found {
                    _ if !is_verified => {}
                    Some(found) if *found != self.block && self.is_checked_where_differs(found) => {
                        self.is_ambiguous = true;
                        return false;
                    }
                    Some(_) => {}
                    None => {
                        found = Some(self.block.clone());
                        budget = Budget::new(budget.candidates.min(OTHERS_MAX));
                    }
                }
            }
            if let Some(found) = found {
                self.block = found;
                return true;
            }
        }
        false
    }

    /// Whether the checksum covers bytes in which the candidate differs from another one that verifies. That of an intent log
    /// block covers the records only, not the rest of the block, which may be anything.
    fn is_checked_where_differs(&mut self, other: &[u8]) -> bool {
        let candidate = self.block.clone();
        let is_noise_verified = NOISE.iter().all(|seed| {
            let bytes = self.block.iter_mut().zip(&candidate).zip(other);
            for (at, ((byte, candidate), other)) in (0u64..).zip(bytes) {
                if candidate != other {
                    *byte = noise_at(at, *seed);
                }
            }
            (self.verify)(&self.block)
        });
        self.block = candidate;
        !is_noise_verified
    }

    /// Tries every choice of copies, by the number of cells that do not use the preferred one.
    fn choose_copies(&mut self) -> bool {
        let cells = self.cells;
        let options: Vec<Vec<usize>> = cells
            .rows
            .iter()
            .map(|row| row.cells.first().map_or(vec![], distinct))
            .collect();
        let open: Vec<usize> = (0usize..)
            .zip(&options)
            .filter(|(_, copies)| copies.len() > 1)
            .map(|(row, _)| row)
            .collect();
        let mut budget = if self.cells.is_split {
            self.budget(PIECE_CANDIDATE_BYTES_MAX, PIECE_CANDIDATES)
                .candidates
        } else {
            CHOICE_CANDIDATES_MAX
        };
        // A corrupted leaf changes many cells at once.
        for leaf in self.leaf_suspects() {
            if !open.is_empty() && !self.cells.is_single {
                budget = budget.saturating_sub(1);
                if self.check(&Suspects {
                    all: &[leaf],
                    chosen: &[0],
                }) {
                    return true;
                }
            }
        }
        for count in 0..=open.len() {
            let mut sets = Subsets::new(open.len(), count);
            while let Some(set) = sets.next() {
                let rows: Vec<usize> = set.iter().filter_map(|at| open.get(*at).copied()).collect();
                let mut combination = Combination::new(&options, &rows);
                loop {
                    if budget == 0 {
                        return false;
                    }
                    budget = budget.saturating_sub(1);
                    if self.check(&combination) {
                        return true;
                    }
                    if !combination.advance() {
                        break;
                    }
                }
            }
        }
        false
    }
}

/// The first copy of each distinct content of a cell, in order of preference.
fn distinct(cell: &Cell) -> Vec<usize> {
    let mut found: Vec<(usize, &[u8])> = Vec::new();
    for (at, copy) in cell.copies.iter().enumerate() {
        if let Some(bytes) = copy.held()
            && found.iter().all(|(_, other)| *other != bytes)
        {
            found.push((at, bytes));
        }
    }
    found.into_iter().map(|(at, _)| at).collect()
}

/// A choice of copies for blocks without parity: some rows use another copy than the preferred one.
struct Combination<'a> {
    options: &'a [Vec<usize>],
    /// Row and index into its options (1 or more).
    turned: Vec<(usize, usize)>,
}

impl<'a> Combination<'a> {
    fn new(options: &'a [Vec<usize>], rows: &[usize]) -> Self {
        Self {
            options,
            turned: rows.iter().map(|row| (*row, 1)).collect(),
        }
    }

    /// The next choice for the same rows, like an odometer; false after the last one.
    fn advance(&mut self) -> bool {
        for (row, at) in &mut self.turned {
            let next = at.saturating_add(1);
            if self
                .options
                .get(*row)
                .is_some_and(|copies| next < copies.len())
            {
                *at = next;
                return true;
            }
            *at = 1;
        }
        false
    }
}

impl Doubt for Combination<'_> {
    fn is_doubted(&self, row: usize, _: usize, _: &Cell, copy: usize, _: &Copy) -> bool {
        let turned = self
            .turned
            .iter()
            .find(|(turned, _)| *turned == row)
            .map_or(0, |(_, at)| *at);
        let wanted = self.options.get(row).and_then(|copies| copies.get(turned));
        wanted.is_some_and(|wanted| *wanted != copy)
    }
}

/// All sets of `count` numbers below `size`, in order.
struct Subsets {
    size: usize,
    members: Vec<usize>,
    is_fresh: bool,
}

impl Subsets {
    fn new(size: usize, count: usize) -> Self {
        Self {
            size,
            members: (0..count).collect(),
            is_fresh: count <= size,
        }
    }

    fn next(&mut self) -> Option<&[usize]> {
        if self.is_fresh {
            self.is_fresh = false;
            return Some(&self.members);
        }
        let count = self.members.len();
        // The last member that can still be incremented.
        let (at, value) = (0..count).rev().find_map(|at| {
            let value = self.members.get(at)?.checked_add(1)?;
            let last = self.size.checked_sub(count.checked_sub(at)?)?;
            (value <= last).then_some((at, value))
        })?;
        for (slot, value) in self.members.iter_mut().skip(at).zip(value..) {
            *slot = value;
        }
        Some(&self.members)
    }
}

#[cfg(test)]
mod tests {
    use super::Subsets;

    #[test]
    fn every_subset_appears_once() {
        for size in 0..7usize {
            for count in 0..=size + 1 {
                let mut sets = Subsets::new(size, count);
                let mut seen = std::collections::BTreeSet::new();
                while let Some(set) = sets.next() {
                    assert!(set.is_sorted() && set.iter().all(|member| *member < size));
                    assert!(seen.insert(set.to_vec()));
                }
                let expected = (0u32..1 << size)
                    .filter(|mask| mask.count_ones() as usize == count)
                    .count();
                assert_eq!(seen.len(), expected, "{count} of {size}");
            }
        }
    }
}
