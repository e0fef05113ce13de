//! Traverses all block pointers of a pool and verifies every copy of every block.

use super::report::{LeafReport, Problem, ProblemKind};
use super::{VerifyProgress, VerifyReport};
use crate::walk::{Budget, LOG_BLOCKS_MAX, Spent, Stack};
use millpond_block::{Block, BlockAddress, BlockAudit, BlockError, BlockStore};
use millpond_crypt::verify_indirect_block;
use millpond_env::sync::{Arc, Mutex};
use millpond_intent::log_block_address;
use millpond_ondisk::intent_log::{IntentLogBlock, IntentLogBlockForm};
use millpond_ondisk::{
    BlockId, BlockPointer, DNODE_SLOT_BYTES, Dnode, EmbeddedKind, IntentLogHeader, Level, ObjectId,
    ObjectSetPhys, ObjectType, SPILL_BLOCK_ID, Txg,
};
use millpond_vdev::{AuditFinding, Verdict};
use std::collections::{HashSet, VecDeque};

/// Count of pointers that a thread takes from a block at once. The rest stays available to other threads.
const POINTERS_AT_ONCE: usize = 16;
/// Upper bound of the shared blocks (by dedup or cloning) that are remembered, so that each is verified once.
/// The set takes at most 32 MiB; beyond that, some blocks are verified again.
const SHARED_MAX: usize = 1 << 20;
/// An object set to traverse.
pub(super) struct Root {
    /// The dataset's object id in the MOS; 0 for the MOS itself.
    pub(super) dataset: u64,
    pub(super) pointer: BlockPointer,
    /// Blocks born up to this txg belong to an older snapshot, which is traversed separately.
    pub(super) born_after: Txg,
    /// Whether it may have an intent log. Snapshots have none.
    pub(super) has_log: bool,
}

/// A work item.
pub(super) enum Work {
    Root(Root),
    /// Pointers of one or several objects, processed in order.
    Pointers(VecDeque<Pointers>),
    Log {
        dataset: u64,
        header: IntentLogHeader,
    },
}

/// Pointers of one object at one level, from `next` on.
pub(super) struct Pointers {
    owner: Arc<Owner>,
    block: PointerBlock,
    level: u8,
    /// Block id of the first pointer.
    first_id: u64,
    next: usize,
}

impl Pointers {
    fn is_spill(&self) -> bool {
        matches!(self.block, PointerBlock::Spill(_))
    }
}

/// A pointer with its owner and address.
struct Taken {
    owner: Arc<Owner>,
    pointer: BlockPointer,
    address: BlockAddress,
}

impl Taken {
    /// Whether its block contains pointers.
    fn leads_further(&self) -> bool {
        self.address.level.0 > 0 || self.owner.holds_dnodes
    }
}

enum PointerBlock {
    Indirect(Arc<Block>),
    Dnode(Vec<BlockPointer>),
    Spill(BlockPointer),
}

impl PointerBlock {
    fn get(&self, index: usize) -> Option<BlockPointer> {
        match self {
            Self::Indirect(block) => {
                let bytes = block.bytes.get(index * 128..index * 128 + 128)?;
                BlockPointer::decode(bytes, block.endian).ok()
            }
            Self::Dnode(pointers) => pointers.get(index).copied(),
            Self::Spill(pointer) => (index == 0).then_some(*pointer),
        }
    }
}

/// The object that owns pointers, and the properties of its blocks according to its dnode.
struct Owner {
    dataset: u64,
    object: ObjectId,
    born_after: Txg,
    pointers_shift: u32,
    indirect_bytes: u64,
    data_bytes: u64,
    holds_dnodes: bool,
}

/// The walk's shared state.
pub(super) struct Walk<'a> {
    pub(super) store: &'a BlockStore,
    pub(super) progress: &'a VerifyProgress,
    pub(super) report: &'a Mutex<VerifyReport>,
    pub(super) on_problem: &'a (dyn Fn(&Problem) + Sync),
    pub(super) stack: Stack<Work>,
    pub(super) shared: Mutex<HashSet<(u64, u64)>>,
    /// Bounds the bytes of blocks that are not shared.
    pub(super) budget: Budget,
}

impl Walk<'_> {
    /// Processes work until all is done. Each thread calls this.
    pub(super) fn run(&self) {
        self.stack.work(|work| match work {
            Work::Root(root) => self.root(&root),
            Work::Pointers(sources) => self.pointers(sources),
            Work::Log { dataset, header } => self.log(dataset, &header),
        });
    }

    fn root(&self, root: &Root) {
        let address = BlockAddress::object_set(root.dataset);
        if root.pointer.is_hole() {
            return;
        }
        if root.pointer.object_type() != ObjectType::OBJECT_SET || root.pointer.level().0 != 0 {
            return self.invalid(address, "its pointer is not one to an object set");
        }
        // A snapshot of an unchanged dataset has the same root pointer as its successor. It is traversed only
        // once.
        if root.pointer.allocation_birth() <= root.born_after {
            return;
        }
        let Some(block) = self.judge(&root.pointer, address) else {
            return;
        };
        let phys = match ObjectSetPhys::decode(&block.bytes, block.endian) {
            Ok(phys) => phys,
            Err(error) => return self.invalid(address, &error.to_string()),
        };
        if root.has_log {
            let header = IntentLogHeader::from_words(&phys.intent_log_header);
            self.stack.push([Work::Log {
                dataset: root.dataset,
                header,
            }]);
        }
        let mut sources = VecDeque::new();
        let dnodes = [
            (ObjectId(0), Some(&phys.meta_dnode)),
            (ObjectId::USER_USED, phys.user_used.as_ref()),
            (ObjectId::GROUP_USED, phys.group_used.as_ref()),
            (ObjectId::PROJECT_USED, phys.project_used.as_ref()),
        ];
        for (id, dnode) in dnodes {
            if let Some(dnode) = dnode {
                push_dnode(&mut sources, root.dataset, id, root.born_after, dnode);
            }
        }
        self.stack.push([Work::Pointers(sources)]);
    }

    /// Takes some pointers and verifies them together. The remaining ones go back to the stack for other
    /// threads.
    fn pointers(&self, mut sources: VecDeque<Pointers>) {
        let mut taken: Vec<Taken> = vec![];
        while taken.len() < POINTERS_AT_ONCE
            && let Some(source) = sources.front_mut()
        {
            let Some(pointer) = source.block.get(source.next) else {
                sources.pop_front();
                continue;
            };
            let (is_spill, index) = (source.is_spill(), source.next as u64);
            source.next += 1;
            if pointer.is_hole() {
                continue;
            }
            let id = if is_spill {
                SPILL_BLOCK_ID.0
            } else {
                source.first_id.wrapping_add(index)
            };
            taken.extend(self.take(&source.owner, pointer, source.level, id, is_spill));
        }
        if !sources.is_empty() {
            self.stack.push([Work::Pointers(sources)]);
        }
        let mut rest = vec![];
        for taken in taken {
            if taken.pointer.is_embedded() {
                self.embedded(&taken);
            } else if !self.budget.is_spent() && self.charge(&taken.pointer) {
                rest.push(taken);
            }
        }
        let wanted: Vec<(BlockPointer, BlockAddress)> = rest
            .iter()
            .map(|taken| (taken.pointer, taken.address))
            .collect();
        self.store.audit_batch(&wanted, |number, audit| {
            let Some(taken) = rest.get(number) else {
                return;
            };
            let stored = self.judged(&taken.pointer, taken.address, audit);
            if taken.leads_further()
                && let Some(stored) = stored
                && let Some(block) =
                    self.decrypt_and_decompress(&taken.pointer, taken.address, &stored)
            {
                self.follow(taken, block);
            }
        });
    }

    /// Validates a pointer. `None` if there is nothing to verify.
    fn take(
        &self,
        owner: &Arc<Owner>,
        pointer: BlockPointer,
        level: u8,
        id: u64,
        is_spill: bool,
    ) -> Option<Taken> {
        if pointer.allocation_birth() <= owner.born_after {
            return None;
        }
        let address = BlockAddress {
            dataset: owner.dataset,
            object: owner.object,
            level: Level(level),
            block: BlockId(id),
        };
        if pointer.level().0 != level {
            self.invalid(address, "pointer's level contradicts its place");
            return None;
        }
        let expected = if level > 0 {
            owner.indirect_bytes
        } else {
            owner.data_bytes
        };
        if pointer.lsize_bytes() != expected && !is_spill {
            self.invalid(address, "block's size contradicts the dnode");
            return None;
        }
        let is_redacted = pointer.embedded_kind() == Some(EmbeddedKind::Redacted);
        (!is_redacted).then(|| Taken {
            owner: Arc::clone(owner),
            pointer,
            address,
        })
    }

    /// Processes an embedded block.
    fn embedded(&self, taken: &Taken) {
        match self.store.read(&taken.pointer, taken.address, None) {
            Ok(block) if taken.leads_further() => self.follow(taken, (*block).clone()),
            Ok(_) => {}
            Err(error) if error.is_locked() && !taken.leads_further() => {}
            Err(error) => self.invalid(taken.address, &error.to_string()),
        }
    }

    /// Continues with the pointers in a block.
    fn follow(&self, taken: &Taken, block: Block) {
        let (pointer, address) = (&taken.pointer, taken.address);
        let level = address.level.0;
        if level == 0 {
            return self.dnodes(&taken.owner, &block, address);
        }
        if pointer.has_crypt_bit()
            && let Err(error) = verify_indirect_block(pointer, &block.bytes)
        {
            self.invalid(address, &error.to_string());
        }
        let shift = taken.owner.pointers_shift;
        self.stack.push([Work::Pointers(VecDeque::from([Pointers {
            owner: Arc::clone(&taken.owner),
            block: PointerBlock::Indirect(Arc::new(block)),
            level: level - 1,
            first_id: address.block.0.checked_shl(shift).unwrap_or(0),
            next: 0,
        }]))]);
    }

    fn dnodes(&self, owner: &Owner, block: &Block, address: BlockAddress) {
        let per_block = owner.data_bytes / DNODE_SLOT_BYTES as u64;
        let mut sources = VecDeque::new();
        for (slot, bytes) in Dnode::in_block(&block.bytes) {
            let id = ObjectId(address.block.0 * per_block + slot as u64);
            match Dnode::decode(bytes, block.endian) {
                Ok(Some(dnode)) => {
                    push_dnode(&mut sources, owner.dataset, id, owner.born_after, &dnode);
                }
                Ok(None) => {}
                Err(error) => {
                    let address = BlockAddress {
                        object: id,
                        ..address
                    };
                    self.invalid(address, &error.to_string());
                }
            }
        }
        if !sources.is_empty() {
            self.stack.push([Work::Pointers(sources)]);
        }
    }

    /// Verifies a log's blocks. The chain ends at the first block that does not verify.
    fn log(&self, dataset: u64, header: &IntentLogHeader) {
        let mut pointer = header.log;
        for sequence in 0..LOG_BLOCKS_MAX {
            if pointer.is_hole() {
                return;
            }
            let address = log_block_address(dataset, sequence);
            let Ok(block) = self.store.read_log_block(&pointer, address, None) else {
                return;
            };
            self.judge_stored(&pointer, address);
            self.report.lock().log_blocks += 1;
            let Some(form) = IntentLogBlockForm::of(&pointer) else {
                return;
            };
            match IntentLogBlock::parse(&block.bytes, form) {
                Ok(parsed) if parsed.continues(&pointer) => pointer = parsed.header.next,
                _ => return,
            }
        }
    }

    /// Verifies every copy of a block and returns its content.
    fn judge(&self, pointer: &BlockPointer, address: BlockAddress) -> Option<Block> {
        if pointer.is_embedded() {
            let block = self.store.read(pointer, address, None);
            return match block {
                Ok(block) => Some((*block).clone()),
                Err(error) => {
                    self.invalid(address, &error.to_string());
                    None
                }
            };
        }
        let stored = self.judge_stored(pointer, address)?;
        self.decrypt_and_decompress(pointer, address, &stored)
    }

    fn decrypt_and_decompress(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        stored: &[u8],
    ) -> Option<Block> {
        match self.store.decrypt_and_decompress(pointer, address, stored) {
            Ok(block) => Some(block),
            Err(error) => {
                self.invalid(address, &error.to_string());
                None
            }
        }
    }

    /// Verifies every copy of a block that is not embedded, and returns its stored bytes.
    fn judge_stored(&self, pointer: &BlockPointer, address: BlockAddress) -> Option<Vec<u8>> {
        if self.budget.is_spent() || !self.charge(pointer) {
            return None;
        }
        self.judged(pointer, address, self.store.audit(pointer, address))
    }

    /// Records the result of an audit and returns the stored bytes.
    fn judged(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        audit: Result<BlockAudit, BlockError>,
    ) -> Option<Vec<u8>> {
        match audit {
            Ok(audit) => self.note(pointer, address, audit),
            Err(error) => {
                self.invalid(address, &error.to_string());
                None
            }
        }
    }

    /// Whether to verify a block. A shared block is verified only once. Stops the walk if the pool's pointers
    /// refer to more data than fits on its devices.
    fn charge(&self, pointer: &BlockPointer) -> bool {
        // Only data blocks can be shared. Each metadata block has exactly one parent.
        let is_content = pointer.level().0 == 0 && pointer.object_type() != ObjectType::DNODE;
        let is_shared =
            is_content && (pointer.is_dedup() || pointer.physical_birth() < pointer.birth());
        if is_shared {
            let mut shared = self.shared.lock();
            let key = (pointer.words[0], pointer.words[1]);
            return shared.len() >= SHARED_MAX || shared.insert(key);
        }
        // The allocated size in a forged pointer may be less than its physical size.
        let asize = pointer.asize_bytes().max(pointer.psize_bytes());
        if self.budget.charge(asize) == Err(Spent::Now) {
            self.report.lock().gave_up = Some(format!(
                "the pool's pointers claim more than {} bytes, which is more than fits on its devices",
                self.budget.max_bytes()
            ));
            self.stack.stop();
        }
        true
    }

    fn note(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        audit: BlockAudit,
    ) -> Option<Vec<u8>> {
        self.progress.add(pointer.asize_bytes(), audit.read_bytes);
        let topology = self.store.topology();
        let mut words = vec![];
        let mut report = self.report.lock();
        report.blocks += 1;
        report.logical_bytes += pointer.lsize_bytes();
        report.read_bytes += audit.read_bytes;
        for (_, finding) in &audit.findings {
            let leaf = report.leaves.entry(finding.leaf.0).or_default();
            if leaf.name.is_empty() {
                leaf.name = topology.leaf_name(finding.leaf);
            }
            if let Some(text) = count(leaf, finding) {
                words.push(text);
            }
        }
        let kind = if audit.is_readable {
            if words.is_empty() {
                return audit.stored;
            }
            report.repairable += 1;
            ProblemKind::Repairable(words)
        } else {
            report.lost += 1;
            words.extend(audit.troubles.iter().map(|(_, words)| words.clone()));
            ProblemKind::Lost(words)
        };
        drop(report);
        (self.on_problem)(&Problem { address, kind });
        audit.stored
    }

    fn invalid(&self, address: BlockAddress, words: &str) {
        self.report.lock().invalid += 1;
        let kind = ProblemKind::Invalid(words.to_owned());
        (self.on_problem)(&Problem { address, kind });
    }
}

/// Counts a finding, and describes it if it is the fault of the device.
fn count(leaf: &mut LeafReport, finding: &AuditFinding) -> Option<String> {
    let what = match finding.verdict {
        Verdict::Wrong => {
            leaf.wrong += 1;
            leaf.wrong_bytes += finding.length_bytes;
            "wrong bytes".to_owned()
        }
        Verdict::Fault(fault) => {
            leaf.faults += 1;
            fault.to_string()
        }
        Verdict::Absent => {
            leaf.absent += 1;
            return None;
        }
        Verdict::Stale => {
            leaf.stale += 1;
            return None;
        }
        _ => return None,
    };
    let (name, offset, length) = (&leaf.name, finding.offset_bytes, finding.length_bytes);
    Some(format!("{name}: {what} ({length} bytes at byte {offset})"))
}

fn push_dnode(
    sources: &mut VecDeque<Pointers>,
    dataset: u64,
    object: ObjectId,
    born_after: Txg,
    dnode: &Dnode,
) {
    let owner = Arc::new(Owner {
        dataset,
        object,
        born_after,
        pointers_shift: dnode.pointers_shift(),
        indirect_bytes: dnode.indirect_block_bytes(),
        data_bytes: dnode.data_block_bytes(),
        holds_dnodes: object.0 == 0 && dnode.object_type == ObjectType::DNODE,
    });
    if let Some(spill) = dnode.spill.filter(|spill| !spill.is_hole()) {
        sources.push_back(Pointers {
            owner: Arc::clone(&owner),
            block: PointerBlock::Spill(spill),
            level: 0,
            first_id: 0,
            next: 0,
        });
    }
    if dnode
        .block_pointers
        .iter()
        .any(|pointer| !pointer.is_hole())
    {
        sources.push_back(Pointers {
            owner,
            block: PointerBlock::Dnode(dnode.block_pointers.clone()),
            level: dnode.levels.saturating_sub(1),
            first_id: 0,
            next: 0,
        });
    }
}
