//! Reads a block's copies, from every leaf that holds a part of them.

use crate::damage::PointerValidity;
use crate::gang::{GangPlace, HeaderBudget};
use crate::io_stats::IoClass;
use crate::topology::Topology;
use crate::write::ReadStart;
use crate::{BlockAddress, BlockError, BlockStore, CopyFailure};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, ChecksumKind, DecodeError, Dva, Txg};
use millpond_vdev::{
    BlameReason, BlockRange, Failure, FailureKind, Health, LeafHealth, LeafId, LeafOutcome,
    LeafRead, ReadPlan, Resolved, Step,
};

/// The deepest nesting of gang blocks. Splitting a 16 MiB block into three children at each level reaches
/// single sectors with far fewer levels.
pub(crate) const GANG_DEPTH_MAX: u32 = 24;

/// Why reading one address failed.
pub(crate) enum CopyTrouble {
    /// The vdev layer did not find the right bytes.
    Failed(Failure),
    /// No plan could be made, or the gang header is invalid.
    Other(String),
}

impl CopyTrouble {
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self, Self::Failed(failure) if failure.kind == FailureKind::Unavailable)
    }

    pub(crate) fn describe(&self, topology: &Topology) -> String {
        let failure = match self {
            Self::Other(reason) => return reason.clone(),
            Self::Failed(failure) => failure,
        };
        let mut words = vec![];
        for blame in &failure.blames {
            let what = match blame.reason {
                BlameReason::Checksum => "checksum does not match".to_owned(),
                BlameReason::Stale => "missed this block".to_owned(),
                BlameReason::Io(fault) => fault.to_string(),
            };
            let name = topology.leaf_name(blame.leaf);
            words.push(format!("{name} at byte {}: {what}", blame.offset_bytes));
        }
        for leaf in &failure.absent {
            words.push(format!("{} is not available", topology.leaf_name(*leaf)));
        }
        words.dedup();
        if words.is_empty() {
            failure.to_string()
        } else {
            words.join(", ")
        }
    }
}

/// A search for a good copy of a block.
pub(crate) struct CopySearch<'a, 'v> {
    /// How many gang headers lead to it.
    pub(crate) depth: u32,
    pub(crate) budget: &'a mut HeaderBudget<'v>,
    /// Reads that were already made.
    pub(crate) begun: Option<Begun>,
    /// What else the bytes must be, whose checksum is right.
    pub(crate) accepts: &'a dyn Fn(&[u8]) -> bool,
}

impl BlockStore {
    /// The stored bytes of the first good copy. `begun` holds reads that were already made.
    pub(crate) fn read_copies(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        begun: Option<Begun>,
        validity: PointerValidity<'_>,
    ) -> Result<Vec<u8>, BlockError> {
        let mut budget = HeaderBudget::of(pointer, validity);
        let search = CopySearch {
            depth: 0,
            budget: &mut budget,
            begun,
            accepts: &|_| true,
        };
        self.search_copies(pointer, address, search)
    }

    /// The stored bytes of the first copy that has the right checksum and that `accepts` takes. If there is none, no device
    /// is blamed.
    pub(crate) fn read_accepted_copy(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        accepts: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<u8>, BlockError> {
        let mut budget = HeaderBudget::of(pointer, PointerValidity::NEVER_CURRENT);
        let search = CopySearch {
            depth: 0,
            budget: &mut budget,
            begun: None,
            accepts,
        };
        self.search_copies(pointer, address, search)
    }

    pub(crate) fn search_copies(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        search: CopySearch<'_, '_>,
    ) -> Result<Vec<u8>, BlockError> {
        let CopySearch {
            depth,
            budget,
            mut begun,
            accepts,
        } = search;
        if begun.is_none() {
            self.await_write(pointer);
        }
        let since = match &begun {
            Some(begun) => begun.since,
            None => self.writing.reuses(),
        };
        let topology = self.topology();
        let checksummer = self.checksummer();
        let is_computable = match pointer.checksum_kind() {
            None | Some(ChecksumKind::Inherit | ChecksumKind::On) => false,
            Some(kind) if kind.is_embedded() => false,
            Some(kind) => !kind.is_salted() || checksummer.salt().is_some(),
        };
        if !is_computable {
            // No block can carry this function, or the salt is unknown: no copy will help.
            let reason = "its checksum function cannot be computed";
            let error = DecodeError::new("block pointer", reason, 53);
            return Err(BlockError::Invalid { address, error });
        }
        if self.is_past() && pointer.checksum_kind() == Some(ChecksumKind::Off) {
            let reason = "it has no checksum, and its space may have been used again since";
            let error = DecodeError::new("block pointer", reason, 53);
            return Err(BlockError::Invalid { address, error });
        }
        let mut verify =
            |bytes: &[u8]| checksummer.verify(pointer, bytes).is_ok() && accepts(bytes);
        let start = ReadStart {
            birth: pointer.physical_birth(),
            since,
            validity: budget.validity,
        };
        let birth = start.birth;
        let mut failures = vec![];
        let mut all_unavailable = true;
        let mut blames = vec![];
        for dva in pointer.dvas() {
            let outcome = if dva.is_gang {
                let place = GangPlace {
                    depth,
                    expected: None,
                };
                let read = self.read_gang(pointer, dva, address, place, budget);
                read.and_then(|bytes| match accepts(&bytes) {
                    true => Ok(bytes),
                    false => Err(CopyTrouble::Other("does not authenticate".into())),
                })
            } else if let Some(begun) = begun.take() {
                let topology = Arc::clone(&begun.topology);
                begun.finish(&mut verify).map(|resolved| {
                    self.mend(&topology, &resolved, Some(address), start);
                    resolved.data
                })
            } else {
                let size = pointer.psize_bytes();
                let buffer = self.cache.buffers.take(to_usize(size)).unwrap_or_default();
                let params = ReadParams {
                    buffer,
                    without: budget.without,
                    ..ReadParams::new(IoClass::SyncRead)
                };
                let found = self.resolve(&topology, dva, size, birth, params, &mut verify);
                found.map(|resolved| {
                    match &mut budget.trial {
                        Some(trial) => trial.has_trouble |= !resolved.liars.is_empty(),
                        None => self.mend(&topology, &resolved, Some(address), start),
                    }
                    resolved.data
                })
            };
            match outcome {
                Ok(bytes) => {
                    if let Some(trial) = &mut budget.trial {
                        trial.has_trouble |= !failures.is_empty();
                        return Ok(bytes);
                    }
                    if !failures.is_empty() {
                        mark::hit("second-copy-read");
                        let since = self.count_met(&topology, &blames, Some(address), start);
                        self.repair_copies(&topology, pointer, &bytes, &failures, since);
                    }
                    return Ok(bytes);
                }
                Err(trouble) => {
                    all_unavailable &= trouble.is_unavailable();
                    let reason = trouble.describe(&topology);
                    if let CopyTrouble::Failed(failure) = trouble {
                        blames.extend(failure.blames);
                    }
                    failures.push(CopyFailure { dva, reason });
                }
            }
        }
        match &mut budget.trial {
            Some(trial) => trial.blames.extend(blames),
            None if budget.validity.is_current() => {
                self.count_errors(&topology, &blames, Some(address));
            }
            None => {}
        }
        let copies = failures;
        Err(if all_unavailable && !copies.is_empty() {
            BlockError::Missing { address, copies }
        } else {
            BlockError::Corrupt { address, copies }
        })
    }

    /// Executes one plan and repairs nothing: for blocks that may not be part of the pool.
    pub(crate) fn read_range(
        &self,
        topology: &Topology,
        dva: Dva,
        size_bytes: u64,
        birth: Txg,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Vec<u8>, CopyTrouble> {
        let params = ReadParams::new(IoClass::SyncRead);
        let resolved = self.resolve(topology, dva, size_bytes, birth, params, verify)?;
        self.count_errors(topology, &resolved.liars, None);
        Ok(resolved.data)
    }

    /// Executes one plan. The caller counts the errors of leaves if it succeeds.
    pub(crate) fn resolve(
        &self,
        topology: &Topology,
        dva: Dva,
        size_bytes: u64,
        birth: Txg,
        params: ReadParams,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Resolved, CopyTrouble> {
        look(topology, dva, size_bytes, birth, params, verify)
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// How the reads of a plan are made.
pub(crate) struct ReadParams {
    /// The class that they count as.
    pub(crate) class: IoClass,
    /// The buffer for the first step that has a single read.
    pub(crate) buffer: Vec<u8>,
    /// Leaves that are not read.
    pub(crate) without: LeftOut,
}

/// Up to three leaves that are not read. RAID-Z has at most three parity columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeftOut([Option<LeafId>; 3]);

impl LeftOut {
    /// Every set of one leaf, then of two, then of three.
    pub(crate) fn sets(leaves: &[LeafId]) -> impl Iterator<Item = Self> + '_ {
        let one = |at: usize| leaves.get(at).copied();
        let count = leaves.len();
        let singles = (0..count).map(move |a| Self([one(a), None, None]));
        let pairs = (0..count).flat_map(move |a| (0..a).map(move |b| Self([one(a), one(b), None])));
        let triples = (0..count).flat_map(move |a| {
            (0..a).flat_map(move |b| (0..b).map(move |c| Self([one(a), one(b), one(c)])))
        });
        singles.chain(pairs).chain(triples)
    }

    fn contains(self, leaf: LeafId) -> bool {
        self.0.contains(&Some(leaf))
    }

    fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl ReadParams {
    pub(crate) fn new(class: IoClass) -> Self {
        Self {
            class,
            buffer: Vec::new(),
            without: LeftOut::default(),
        }
    }
}

/// The leaves of a topology but for some.
struct Without<'a> {
    topology: &'a Topology,
    left_out: LeftOut,
}

impl Health for Without<'_> {
    fn leaf(&self, leaf: LeafId, birth: Txg) -> LeafHealth {
        match self.left_out.contains(leaf) {
            true => LeafHealth::Unreadable,
            false => self.topology.leaf(leaf, birth),
        }
    }
    fn load(&self, leaf: LeafId) -> u64 {
        self.topology.load(leaf)
    }
}

/// Executes one plan and counts reads but no errors.
pub(crate) fn look(
    topology: &Topology,
    dva: Dva,
    size_bytes: u64,
    birth: Txg,
    params: ReadParams,
    verify: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<Resolved, CopyTrouble> {
    let range = BlockRange {
        vdev: dva.vdev,
        offset_bytes: dva.offset_bytes,
        size_bytes,
        birth,
    };
    let without = Without {
        topology,
        left_out: params.without,
    };
    let health: &dyn Health = match params.without.is_empty() {
        true => topology,
        false => &without,
    };
    let mut plan = ReadPlan::new(&topology.tree, health, &topology.indirect, range)
        .map_err(|error| CopyTrouble::Other(error.to_string()))?;
    let step = plan.advance(vec![], verify);
    finish(topology, plan, step, None, params, verify)
}

/// Continues a plan at `step`. `first` holds the outcomes of the step's reads, if they were already made.
fn finish(
    topology: &Topology,
    mut plan: ReadPlan,
    mut step: Step,
    mut first: Option<Vec<LeafOutcome>>,
    mut params: ReadParams,
    verify: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<Resolved, CopyTrouble> {
    loop {
        match step {
            Step::Read(reads) => {
                let outcomes = first.take().unwrap_or_else(|| match reads.as_slice() {
                    [read] => {
                        let buffer = std::mem::take(&mut params.buffer);
                        vec![topology.read_leaf(read, params.class, buffer)]
                    }
                    reads => topology.read_leaves(reads, params.class),
                });
                step = plan.advance(outcomes, verify);
            }
            Step::Done(resolved) => return Ok(resolved),
            Step::Failed(failure) => return Err(CopyTrouble::Failed(failure)),
        }
    }
}

/// A block whose first address was read together with other blocks, with the outcomes.
pub(crate) struct Begun {
    topology: Arc<Topology>,
    plan: ReadPlan,
    reads: Vec<LeafRead>,
    outcomes: Vec<LeafOutcome>,
    /// [`Writing::reuses`](crate::write::Writing::reuses) when the read began.
    since: u64,
}

impl BlockStore {
    /// Reads the first addresses of several blocks with one call: from the first pointer on, at least one
    /// and up to the size of a group. `None` marks a block that has to be read by itself.
    pub(crate) fn begin<'a>(
        &self,
        pointers: impl Iterator<Item = &'a BlockPointer>,
    ) -> Vec<Option<Begun>> {
        let since = self.writing.reuses();
        // Asked before the topology, which then knows what leaves missed of the writes that have ended.
        let outstanding = self.outstanding_since();
        let (topology, checksummer) = (self.topology(), self.checksummer());
        let mut group: Vec<Option<Begun>> = vec![];
        let mut reads: Vec<LeafRead> = vec![];
        let mut bytes = 0;
        for pointer in pointers {
            let mut verify = |bytes: &[u8]| checksummer.verify(pointer, bytes).is_ok();
            let is_written = pointer.physical_birth() < outstanding;
            let begun = match is_written {
                true => lay_out(&topology, pointer, since, &mut verify),
                false => None,
            };
            let parts = begun.iter().flat_map(|begun| &begun.reads);
            bytes += parts.map(|read| read.length_bytes).sum::<u64>();
            reads.extend(begun.iter().flat_map(|begun| &begun.reads));
            group.push(begun);
            // Checked here, so that no pointer is taken from `pointers` without being read.
            if bytes >= topology.group_bytes() {
                break;
            }
        }
        let mut outcomes = topology.read_leaves(&reads, IoClass::SyncRead).into_iter();
        for begun in group.iter_mut().flatten() {
            begun.outcomes = outcomes.by_ref().take(begun.reads.len()).collect();
        }
        group
    }
}

/// Plans the read of a block's first address. `None` for a gang block and if no read is needed.
pub(crate) fn lay_out(
    topology: &Arc<Topology>,
    pointer: &BlockPointer,
    since: u64,
    verify: &mut dyn FnMut(&[u8]) -> bool,
) -> Option<Begun> {
    let dva = pointer.dvas().next().filter(|dva| !dva.is_gang)?;
    let range = BlockRange {
        vdev: dva.vdev,
        offset_bytes: dva.offset_bytes,
        size_bytes: pointer.psize_bytes(),
        birth: pointer.physical_birth(),
    };
    let plan = ReadPlan::new(&topology.tree, topology.as_ref(), &topology.indirect, range);
    let mut plan = plan.ok()?;
    match plan.advance(vec![], verify) {
        Step::Read(reads) => Some(Begun {
            topology: Arc::clone(topology),
            plan,
            reads,
            outcomes: vec![],
            since,
        }),
        Step::Done(_) | Step::Failed(_) => None,
    }
}

impl Begun {
    /// The reads of the first step.
    pub(crate) fn reads(&self) -> &[LeafRead] {
        &self.reads
    }

    /// Gives it the outcomes of [`Begun::reads`].
    pub(crate) fn set_outcomes(&mut self, outcomes: Vec<LeafOutcome>) {
        self.outcomes = outcomes;
    }

    /// Completes the read for a prefetch: nothing is counted or repaired. `None` unless every leaf that was
    /// read was right.
    pub(crate) fn finish_without_trace(
        self,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let params = ReadParams::new(IoClass::AsyncRead);
        let (step, first) = (Step::Read(self.reads), Some(self.outcomes));
        let resolved = finish(&self.topology, self.plan, step, first, params, verify).ok()?;
        (resolved.liars.is_empty() && resolved.repairs.is_empty()).then_some(resolved.data)
    }

    /// Completes the read of the first address. The caller counts the errors of leaves if it succeeds.
    fn finish(self, verify: &mut dyn FnMut(&[u8]) -> bool) -> Result<Resolved, CopyTrouble> {
        let step = Step::Read(self.reads);
        let first = Some(self.outcomes);
        let params = ReadParams::new(IoClass::SyncRead);
        finish(&self.topology, self.plan, step, first, params, verify)
    }
}
