//! Admission control: whether a change may start, given quotas, reservations, the pool's space and
//! unfinished transactions.
//!
//! The usage of the open heads and their ancestor directories is cached here, so that a check reads only
//! memory. Page `docs/format/space-accounting.md`, "Admission".

use crate::heads::space::signed;
use millpond_alloc::SlopShare;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_ondisk::{DslDatasetPhys, DslDirectoryPhys, ObjectId, Txg};
use millpond_pool::Pool;
use std::collections::BTreeMap;

/// At most four txgs are active at a time.
const SLOTS: usize = 4;

/// Bytes promised to transactions that are not written yet, per txg.
#[derive(Debug, Clone, Copy, Default)]
struct Pending([u64; SLOTS]);

impl Pending {
    fn sum(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
    /// Adds a promise; returns whether it is the first one in `txg`.
    fn add(&mut self, txg: Txg, bytes: u64) -> bool {
        let slot = &mut self.0[slot(txg)];
        let is_first = *slot == 0;
        *slot = slot.saturating_add(bytes);
        is_first && bytes > 0
    }
    fn clear(&mut self, txg: Txg) {
        self.0[slot(txg)] = 0;
    }
}

fn slot(txg: Txg) -> usize {
    (txg.0 % SLOTS as u64) as usize
}

#[derive(Debug, Clone, Default)]
struct DirectoryUsage {
    used: u64,
    reserved: u64,
    quota: u64,
    parent: Option<ObjectId>,
    pending: Pending,
}

#[derive(Debug, Clone, Default)]
struct HeadUsage {
    directory: ObjectId,
    unique: u64,
    referenced: u64,
    ref_reserved: u64,
    ref_quota: u64,
    pending: Pending,
}

#[derive(Debug, Default)]
struct CachedUsage {
    directories: BTreeMap<ObjectId, DirectoryUsage>,
    heads: BTreeMap<ObjectId, HeadUsage>,
    /// The heads and directories with promises, per txg. Settling a txg visits only these.
    promised: [Vec<ObjectId>; SLOTS],
    /// Bytes of all blocks that are cloned in txgs that are not written.
    cloned: Pending,
}

/// The result of an admission check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The change may start.
    Admitted,
    /// Unfinished transactions might use up the remaining space. Retry after they are written.
    Later,
    /// A quota is exhausted.
    OverQuota,
    /// The pool is full.
    NoSpace,
}

/// A request for space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    /// The most bytes that it can allocate, including copies and parity.
    pub(crate) bytes: u64,
    /// How many of them are certain, because stored blocks are cloned. Quotas must hold them.
    pub(crate) cloned_bytes: u64,
    /// It frees more than it allocates, so quotas do not apply.
    pub(crate) is_freeing: bool,
    /// The pool's limit for this kind of request, in bytes.
    pub(crate) pool_limit: u64,
    /// The most bytes that all unfinished work in the pool can allocate: dirty data of finished
    /// transactions and estimates of running ones. Promises stay until their txg is written, but most
    /// transactions dirty far less than they estimate.
    pub(crate) under_way_max: u64,
}

/// The cached usage, shared with all code that changes it.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    usage: Mutex<CachedUsage, rank::Leaf>,
    /// The pool's limits as of the last txg: for requests that allocate, and for requests that free.
    limits: [AtomicU64; 2],
    /// The newest txg in which a change frees space.
    freeing_txg: AtomicU64,
    /// Whether what datasets use counts blocks of the txg that is being written, but the limits do not yet count what
    /// clones and dedup save of them.
    lacks_savings: AtomicBool,
}

impl Admission {
    pub(crate) fn directory_changed(&self, id: ObjectId, phys: &DslDirectoryPhys) {
        if let Some(known) = self.usage.lock().directories.get_mut(&id) {
            known.update(phys);
        }
    }
    pub(crate) fn dataset_changed(&self, id: ObjectId, phys: &DslDatasetPhys) {
        if let Some(known) = self.usage.lock().heads.get_mut(&id) {
            known.unique = phys.unique_bytes;
            known.referenced = phys.referenced_bytes;
        }
    }
    pub(crate) fn directory_gone(&self, id: ObjectId) {
        self.usage.lock().directories.remove(&id);
    }

    /// Registers a directory; its ancestors must be registered too.
    pub(crate) fn learn_directory(&self, id: ObjectId, phys: &DslDirectoryPhys) {
        let mut usage = self.usage.lock();
        usage.directories.entry(id).or_default().update(phys);
    }
    pub(crate) fn knows_directory(&self, id: ObjectId) -> bool {
        self.usage.lock().directories.contains_key(&id)
    }
    /// Registers a head, or updates its refquota and refreservation.
    pub(crate) fn learn_head(
        &self,
        id: ObjectId,
        phys: &DslDatasetPhys,
        ref_quota: u64,
        ref_reserved: u64,
    ) {
        let mut usage = self.usage.lock();
        let head = usage.heads.entry(id).or_default();
        head.directory = phys.directory;
        head.unique = phys.unique_bytes;
        head.referenced = phys.referenced_bytes;
        (head.ref_quota, head.ref_reserved) = (ref_quota, ref_reserved);
    }
    pub(crate) fn forget_head(&self, id: ObjectId) {
        self.usage.lock().heads.remove(&id);
    }

    /// Updates the pool's current limits.
    pub(crate) fn set_limits(&self, pool: &Pool) {
        for (limit, share) in self.limits.iter().zip([SlopShare::All, SlopShare::Half]) {
            limit.store(pool.limit(share).limit_bytes, Ordering::Relaxed);
        }
        let used = self.usage.lock().root_used_bytes();
        pool.set_room_bytes(self.limit(false).saturating_sub(used));
    }
    pub(crate) fn limit(&self, is_freeing: bool) -> u64 {
        self.limits[usize::from(is_freeing)].load(Ordering::Relaxed)
    }

    /// Says whether the limits count what clones and dedup save.
    pub(crate) fn set_savings_known(&self, are_known: bool) {
        self.lacks_savings.store(!are_known, Ordering::Relaxed);
    }
    /// Whether the limits may rise when the txg that is being written is complete.
    pub(crate) fn may_rise(&self) -> bool {
        self.lacks_savings.load(Ordering::Relaxed)
    }

    /// Checks a request of a head.
    pub(crate) fn judge(&self, head: ObjectId, request: Request) -> Verdict {
        self.usage.lock().judge(head, request)
    }

    /// Records that a change frees space in `txg`.
    pub(crate) fn note_freeing(&self, txg: Txg) {
        self.freeing_txg.fetch_max(txg.0, Ordering::Relaxed);
    }
    /// Whether a change frees space in a txg that is not written yet.
    pub(crate) fn is_freeing(&self, synced: Txg) -> bool {
        self.freeing_txg.load(Ordering::Relaxed) > synced.0
    }

    /// Records a promise in `txg` to a head and its ancestor directories.
    pub(crate) fn promise(&self, id: ObjectId, txg: Txg, bytes: u64) {
        let mut usage = self.usage.lock();
        let usage = &mut *usage;
        let Some(head) = usage.heads.get_mut(&id) else {
            return;
        };
        let promised = &mut usage.promised[slot(txg)];
        if head.pending.add(txg, bytes) {
            promised.push(id);
        }
        let mut at = Some(head.directory);
        let mut steps = 0;
        while let Some(id) = at
            && let Some(directory) = usage.directories.get_mut(&id)
        {
            if directory.pending.add(txg, bytes) {
                promised.push(id);
            }
            at = directory.parent;
            steps += 1;
            if steps > crate::directory::DEPTH_MAX {
                return;
            }
        }
    }

    /// Records that blocks of `bytes` bytes altogether are cloned in `txg`.
    pub(crate) fn promise_clones(&self, txg: Txg, bytes: u64) {
        if bytes > 0 {
            self.usage.lock().cloned.add(txg, bytes);
        }
    }
    /// The bytes of all blocks that are cloned in txgs that are not written.
    pub(crate) fn cloned_bytes(&self) -> u64 {
        self.usage.lock().cloned.sum()
    }

    /// Clears the promises of `txg`, whose changes are now part of the cached usage.
    pub(crate) fn settle(&self, txg: Txg) {
        let mut usage = self.usage.lock();
        let usage = &mut *usage;
        usage.cloned.clear(txg);
        for id in std::mem::take(&mut usage.promised[slot(txg)]) {
            // Object ids are unique in the MOS: an id is either a head's or a directory's.
            if let Some(head) = usage.heads.get_mut(&id) {
                head.pending.clear(txg);
            } else if let Some(directory) = usage.directories.get_mut(&id) {
                directory.pending.clear(txg);
            }
        }
    }
}

impl DirectoryUsage {
    fn update(&mut self, phys: &DslDirectoryPhys) {
        self.used = phys.used_bytes;
        self.reserved = phys.reserved_bytes;
        self.quota = phys.quota_bytes;
        self.parent = phys.parent;
    }
}

impl CachedUsage {
    /// What all datasets use together.
    fn root_used_bytes(&self) -> u64 {
        let mut directories = self.directories.values();
        let root = directories.find(|directory| directory.parent.is_none());
        root.map_or(0, |root| root.used)
    }

    fn judge(&self, head: ObjectId, request: Request) -> Verdict {
        let Some(head) = self.heads.get(&head) else {
            return Verdict::Admitted;
        };
        if !request.is_freeing {
            let verdict = against(
                head.ref_quota,
                head.referenced,
                head.pending.sum().min(request.under_way_max),
                request.cloned_bytes,
                Verdict::OverQuota,
            );
            if verdict != Verdict::Admitted {
                return verdict;
            }
        }
        // Space within the refreservation is already charged to the directory. Space within a directory's
        // reservation is already charged to its parent.
        let mut bytes = rise(
            head.unique
                .saturating_add(head.pending.sum().min(request.under_way_max)),
            request.bytes,
            head.ref_reserved,
        );
        // Promises are worst cases. If a limit above would refuse a request that exceeds a reservation with
        // its promises, wait for the unfinished transactions. Once they are written the reservation
        // applies, and its last request may exceed it.
        let mut shelter = None;
        if head.unique < head.ref_reserved {
            shelter = Some(head.pending.sum());
        }
        let sheltered = |verdict, shelter: Option<u64>| match (verdict, shelter) {
            (Verdict::NoSpace | Verdict::OverQuota, Some(0)) => {
                mark::hit("reservation-overshot");
                Verdict::Admitted
            }
            (Verdict::NoSpace | Verdict::OverQuota, Some(_)) => Verdict::Later,
            (verdict, _) => verdict,
        };
        let mut at = Some(head.directory);
        for _ in 0..=crate::directory::DEPTH_MAX {
            let Some(directory) = at.and_then(|id| self.directories.get(&id)) else {
                return Verdict::Admitted;
            };
            if bytes == 0 {
                return Verdict::Admitted;
            }
            let pending = directory.pending.sum().min(request.under_way_max);
            let is_root = directory.parent.is_none();
            if !request.is_freeing {
                let verdict = against(
                    directory.quota,
                    directory.used,
                    pending,
                    request.cloned_bytes,
                    Verdict::OverQuota,
                );
                if verdict != Verdict::Admitted {
                    return sheltered(verdict, shelter);
                }
            }
            if is_root {
                let limit = request.pool_limit.max(1);
                let verdict = against(limit, directory.used, pending, 0, Verdict::NoSpace);
                return sheltered(verdict, shelter);
            }
            if directory.used < directory.reserved {
                shelter = Some(pending);
            }
            let now = directory.used.saturating_add(pending);
            bytes = rise(now, bytes, directory.reserved);
            at = directory.parent;
        }
        Verdict::Admitted
    }
}

/// The increase of usage above `reserved` when `bytes` are added to `now`.
fn rise(now: u64, bytes: u64, reserved: u64) -> u64 {
    let after = signed(now.saturating_add(bytes).max(reserved));
    let before = signed(now.max(reserved));
    u64::try_from(after.saturating_sub(before)).unwrap_or(0)
}

/// Checks a limit; 0 is no limit. The last request may exceed it, but not by what is `certain`, and promises may exceed
/// it by 1/32.
fn against(limit: u64, used: u64, pending: u64, certain: u64, refusal: Verdict) -> Verdict {
    if limit == 0 {
        return Verdict::Admitted;
    }
    if used >= limit || used.saturating_add(certain) > limit {
        return refusal;
    }
    let slack = limit.saturating_add(limit / 32);
    if pending > 0 && used.saturating_add(pending).saturating_add(certain) >= slack {
        return Verdict::Later;
    }
    Verdict::Admitted
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: ObjectId = ObjectId(9);

    fn admission(
        root_used: u64,
        child: DslDirectoryPhys,
        head: DslDatasetPhys,
        ref_quota: u64,
        ref_reserved: u64,
    ) -> Admission {
        let admission = Admission::default();
        let root = DslDirectoryPhys {
            used_bytes: root_used,
            ..DslDirectoryPhys::default()
        };
        admission.learn_directory(ObjectId(1), &root);
        admission.learn_directory(
            ObjectId(2),
            &DslDirectoryPhys {
                parent: Some(ObjectId(1)),
                ..child
            },
        );
        admission.learn_head(
            HEAD,
            &DslDatasetPhys {
                directory: ObjectId(2),
                ..head
            },
            ref_quota,
            ref_reserved,
        );
        admission
    }
    fn ask(bytes: u64) -> Request {
        Request {
            bytes,
            cloned_bytes: 0,
            is_freeing: false,
            pool_limit: 1000,
            under_way_max: u64::MAX,
        }
    }

    #[test]
    fn a_used_up_quota_refuses_and_promises_make_wait() {
        let child = DslDirectoryPhys {
            used_bytes: 99,
            quota_bytes: 100,
            ..DslDirectoryPhys::default()
        };
        let admission = admission(99, child, DslDatasetPhys::default(), 0, 0);
        assert_eq!(
            admission.judge(HEAD, ask(500)),
            Verdict::Admitted,
            "one may overshoot"
        );
        admission.promise(HEAD, Txg(7), 500);
        assert_eq!(admission.judge(HEAD, ask(1)), Verdict::Later);
        admission.settle(Txg(7));
        assert_eq!(admission.judge(HEAD, ask(1)), Verdict::Admitted);
        let full = DslDirectoryPhys {
            used_bytes: 100,
            quota_bytes: 100,
            parent: Some(ObjectId(1)),
            ..DslDirectoryPhys::default()
        };
        admission.directory_changed(ObjectId(2), &full);
        assert_eq!(admission.judge(HEAD, ask(1)), Verdict::OverQuota);
        let freeing = Request {
            is_freeing: true,
            ..ask(1)
        };
        assert_eq!(admission.judge(HEAD, freeing), Verdict::Admitted);
    }

    #[test]
    fn promises_weigh_no_more_than_all_that_is_under_way() {
        let admission = admission(
            500,
            DslDirectoryPhys::default(),
            DslDatasetPhys::default(),
            0,
            0,
        );
        admission.promise(HEAD, Txg(7), 5000);
        assert_eq!(admission.judge(HEAD, ask(1)), Verdict::Later);
        let ended = Request {
            under_way_max: 100,
            ..ask(1)
        };
        assert_eq!(admission.judge(HEAD, ended), Verdict::Admitted);
        let busy = Request {
            under_way_max: 600,
            ..ask(1)
        };
        assert_eq!(admission.judge(HEAD, busy), Verdict::Later);
    }

    #[test]
    fn a_full_pool_admits_only_reserved_space() {
        let _mark = mark::expect("reservation-overshot");
        let child = DslDirectoryPhys {
            used_bytes: 10,
            reserved_bytes: 600,
            ..DslDirectoryPhys::default()
        };
        let reserved = admission(1000, child, DslDatasetPhys::default(), 0, 0);
        assert_eq!(reserved.judge(HEAD, ask(500)), Verdict::Admitted);
        assert_eq!(
            reserved.judge(HEAD, ask(591)),
            Verdict::Admitted,
            "the last may overshoot"
        );
        reserved.promise(HEAD, Txg(7), 500);
        assert_eq!(reserved.judge(HEAD, ask(90)), Verdict::Admitted);
        assert_eq!(reserved.judge(HEAD, ask(91)), Verdict::Later);
        let full = DslDirectoryPhys {
            used_bytes: 600,
            reserved_bytes: 600,
            ..DslDirectoryPhys::default()
        };
        let used_up = admission(1000, full, DslDatasetPhys::default(), 0, 0);
        assert_eq!(used_up.judge(HEAD, ask(1)), Verdict::NoSpace);
        let head = DslDatasetPhys {
            unique_bytes: 5,
            ..DslDatasetPhys::default()
        };
        let ref_reserved = admission(1000, DslDirectoryPhys::default(), head, 0, 50);
        assert_eq!(ref_reserved.judge(HEAD, ask(45)), Verdict::Admitted);
        assert_eq!(ref_reserved.judge(HEAD, ask(46)), Verdict::Admitted);
        ref_reserved.promise(HEAD, Txg(7), 40);
        assert_eq!(ref_reserved.judge(HEAD, ask(6)), Verdict::Later);
        let head = DslDatasetPhys {
            unique_bytes: 50,
            ..DslDatasetPhys::default()
        };
        let used_up = admission(1000, DslDirectoryPhys::default(), head, 0, 50);
        assert_eq!(used_up.judge(HEAD, ask(1)), Verdict::NoSpace);
    }

    #[test]
    fn a_refquota_limits_referenced_bytes() {
        let head = DslDatasetPhys {
            referenced_bytes: 70,
            ..DslDatasetPhys::default()
        };
        assert_eq!(
            admission(0, DslDirectoryPhys::default(), head.clone(), 70, 0).judge(HEAD, ask(1)),
            Verdict::OverQuota
        );
        assert_eq!(
            admission(0, DslDirectoryPhys::default(), head, 71, 0).judge(HEAD, ask(1)),
            Verdict::Admitted
        );
    }
}
