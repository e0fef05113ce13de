//! Verifies every copy of every block that a traversal visits.

use super::report::{LeafReport, Problem, ProblemKind};
use super::{Progress, VerifyReport};
use crate::shared::{LostShared, SharedKey};
use millpond_block::{Block, BlockAddress, BlockAudit, BlockError, BlockStore, LogBlock};
use millpond_crypt::verify_indirect_block;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{BlockPointer, EmbeddedKind};
use millpond_traverse::{Budget, Fault, LogVisit, Spent, Step, Visit, Visitor};
use millpond_vdev::{AuditFinding, LeafBytes, Verdict};
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Upper bound of the shared blocks (by dedup or cloning) that are remembered, so that each is verified once.
/// The set takes at most 32 MiB; beyond that, some blocks are verified again.
const SHARED_MAX: usize = 1 << 20;

/// The state that all threads share.
pub(super) struct BlockVerifier<'a> {
    pub(super) store: &'a BlockStore,
    pub(super) progress: &'a Progress,
    pub(super) report: &'a Mutex<VerifyReport, rank::Leaf>,
    pub(super) on_problem: &'a (dyn Fn(&Problem) + Sync),
    pub(super) shared: Mutex<HashSet<SharedKey>, rank::Leaf>,
    pub(super) lost_shared: Mutex<LostShared, rank::Leaf>,
    /// Bounds the bytes of blocks that are not shared.
    pub(super) budget: Budget,
}

impl Visitor for BlockVerifier<'_> {
    type Tree = ();
    type Object = ();
    const READS_DATA: bool = true;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        if let Some(words) = block.contradiction() {
            self.invalid(block.address(), block.pointer, words);
            return Step::Skip;
        }
        let pointer = block.pointer;
        if pointer.embedded_kind() == Some(EmbeddedKind::Redacted) {
            return Step::Skip;
        }
        if pointer.is_embedded() || self.charge(pointer) {
            return Step::Descend;
        }
        match self.budget.is_spent() {
            true => Step::Stop,
            false => Step::Skip,
        }
    }

    /// [`BlockVerifier::visit`] did this already.
    fn accept(&self, _: &Visit<'_, Self>) -> Step {
        Step::Descend
    }

    fn read(
        &self,
        store: &BlockStore,
        blocks: &[Visit<'_, Self>],
        found: &mut dyn FnMut(usize, Arc<Block>),
    ) -> ControlFlow<()> {
        let mut wanted = vec![];
        let mut stored_blocks = vec![];
        for (number, block) in blocks.iter().enumerate() {
            if !block.pointer.is_embedded() {
                wanted.push((*block.pointer, block.address()));
                stored_blocks.push((number, block));
                continue;
            }
            match store.read(block.pointer, block.address(), None) {
                Ok(content) if block.leads_on() => found(number, content),
                Ok(_) => {}
                Err(error) if error.is_locked() && !block.leads_on() => {}
                Err(error) => self.invalid(block.address(), block.pointer, &error.to_string()),
            }
        }
        store.audit_batch(&wanted, |at, audit| {
            let Some((number, block)) = stored_blocks.get(at) else {
                return;
            };
            let (pointer, address) = (block.pointer, block.address());
            let stored = self.judged(pointer, address, audit);
            let Some(stored) = stored.filter(|_| block.leads_on()) else {
                return;
            };
            match store.decrypt_and_decompress(pointer, address, &stored) {
                Ok(content) => found(*number, Arc::new(content)),
                Err(error) => self.invalid(address, pointer, &error.to_string()),
            }
        });
        ControlFlow::Continue(())
    }

    fn content(&self, block: &Visit<'_, Self>, content: &Block) {
        let is_indirect = block.level.0 > 0 && !block.is_root();
        if is_indirect
            && block.pointer.has_crypt_bit()
            && let Err(error) = verify_indirect_block(block.pointer, &content.bytes)
        {
            self.invalid(block.address(), block.pointer, &error.to_string());
        }
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        let mut address = block.address();
        match fault {
            Fault::Dnode { object, error, .. } => {
                address.object = object;
                self.invalid(address, block.pointer, &error.to_string());
            }
            fault => self.invalid(address, block.pointer, &fault.to_string()),
        }
        Step::Skip
    }

    fn log_block(&self, _: &LogVisit<'_, ()>) -> Step {
        match self.budget.is_spent() {
            true => Step::Stop,
            false => Step::Descend,
        }
    }

    /// The chain ends at the first block that does not verify.
    fn log_content(&self, block: &LogVisit<'_, ()>, content: Option<&LogBlock>) {
        if content.is_some() {
            let (pointer, address) = (block.pointer, block.address);
            if self.charge(pointer) {
                self.judged(pointer, address, self.store.audit(pointer, address));
            }
            self.report.lock().log_blocks += 1;
        }
    }
}

impl BlockVerifier<'_> {
    /// Records the result of an audit and returns the stored bytes.
    fn judged(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        audit: Result<BlockAudit, BlockError>,
    ) -> Option<Arc<LeafBytes>> {
        match audit {
            Ok(audit) => self.note(pointer, address, audit),
            Err(error) => {
                self.invalid(address, pointer, &error.to_string());
                None
            }
        }
    }

    /// Whether to verify a block. A shared block is verified only once, and none after the pool's pointers
    /// referred to more data than fits on its devices.
    fn charge(&self, pointer: &BlockPointer) -> bool {
        if pointer.is_shared() {
            let mut shared = self.shared.lock();
            return shared.len() >= SHARED_MAX || shared.insert(pointer.first_address());
        }
        // The allocated size in a forged pointer may be less than its physical size.
        let asize = pointer.asize_bytes().max(pointer.psize_bytes());
        let charged = self.budget.charge(asize);
        if charged == Err(Spent::Now) {
            self.report.lock().gave_up = Some(format!(
                "the pool's pointers claim more than {} bytes, which is more than fits on its devices",
                self.budget.max_bytes()
            ));
        }
        charged.is_ok()
    }

    fn note(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        audit: BlockAudit,
    ) -> Option<Arc<LeafBytes>> {
        self.progress.add_block(pointer.asize_bytes());
        self.progress.add_read(audit.read_bytes);
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
        if !audit.is_readable && pointer.is_shared() {
            self.lost_shared.lock().add(pointer, address);
        }
        (self.on_problem)(&Problem {
            address,
            birth: Some(pointer.physical_birth()),
            kind,
        });
        audit.stored
    }

    fn invalid(&self, address: BlockAddress, pointer: &BlockPointer, words: &str) {
        self.report.lock().invalid += 1;
        (self.on_problem)(&Problem {
            address,
            birth: Some(pointer.physical_birth()),
            kind: ProblemKind::Invalid(words.to_owned()),
        });
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
