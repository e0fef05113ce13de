//! Disk faults in a simulated run.

use super::*;
use millpond_ondisk::VdevId;
use millpond_vdev::LeafId;

/// Labels and uberblocks are before this offset; other tests damage these.
const DATA_START_BYTES: u64 = 4 << 20;

impl Lived<'_> {
    pub(super) fn victim(&mut self, seed: u64) -> Option<usize> {
        let mut rng = SeededRng::new(seed);
        let position = rng.pick(&self.victims).copied()?;
        let victim = rng.pick(self.layout.disks(position)).copied()?;
        self.stats.faults += 1;
        Some(victim)
    }

    pub(super) fn disk(&self, number: usize) -> Arc<millpond_sim::SimDisk> {
        Arc::clone(&self.world.disks()[number])
    }

    pub(super) fn rot(&mut self, seed: u64) {
        let Some(victim) = self
            .victim(seed)
            .filter(|disk| !self.layout.is_moving(*disk))
        else {
            return;
        };
        let mut rng = Seed::new(seed);
        self.harmed.insert(victim);
        let disk = self.disk(victim);
        // Only where data exists.
        let content = disk.content();
        let positions: Vec<u64> = content
            .pages()
            .map(|(offset, _)| offset)
            .filter(|offset| (DATA_START_BYTES..DISK_BYTES - DATA_START_BYTES).contains(offset))
            .collect();
        for _ in 0..1 + rng.below(8) {
            let Some(start) = rng.choose(&positions).copied() else {
                return;
            };
            let length = 512 << rng.below(8);
            let mut noise = vec![0; length];
            rng.fill(&mut noise);
            disk.rot(start, &noise);
        }
        self.life.log.push(format!("disk {victim} rots"));
    }

    pub(super) fn err(&mut self, seed: u64) {
        let Some(victim) = self
            .victim(seed)
            .filter(|disk| !self.layout.is_moving(*disk))
        else {
            return;
        };
        self.harmed.insert(victim);
        let mut rng = Seed::new(seed);
        let kinds = [
            (Scope::Writes, Fault::Fail),
            (Scope::Writes, Fault::Lose),
            (Scope::Writes, Fault::Corrupt),
            (Scope::Writes, Fault::Misdirect),
            (Scope::Reads, Fault::Fail),
            (Scope::Reads, Fault::Corrupt),
            (Scope::Reads, Fault::Misdirect),
            (Scope::Flushes, Fault::Fail),
            (Scope::Flushes, Fault::Lose),
        ];
        let mut plan = FaultPlan::new(rng.fork());
        for _ in 0..1 + rng.below(3) {
            let rate = [10_000, 100_000, 1_000_000];
            let rate = rng.choose(&rate).copied().unwrap_or(10_000);
            if let Some((scope, fault)) = rng.choose(&kinds).copied() {
                plan = plan.with(scope, fault, rate);
            }
        }
        self.life.log.push(format!("disk {victim} errs: {plan:?}"));
        self.disk(victim).set_faults(Some(plan));
    }

    /// Whether the other leaves of a vdev have all its data. A side that was just attached has none.
    fn others_have_all(&self, position: Position) -> bool {
        let Some(pool) = &self.pool else { return false };
        let (topology, own) = (
            pool.inner().store().topology(),
            self.layout.leaves(position),
        );
        let is_lost = |leaf: LeafId| {
            let path = topology
                .tree
                .leaf(leaf)
                .and_then(|node| node.config.path.clone());
            path.is_none_or(|path| own.contains(&path)) || !topology.health.missed(leaf).is_empty()
        };
        u32::try_from(position.top).is_ok_and(|top| topology.tree.survives(VdevId(top), &is_lost))
    }

    /// Commits a txg while a disk refuses writes.
    ///
    /// The txg may be committed or not; no older data may be lost.
    pub(super) fn refuse(&mut self, seed: u64) -> Result<Goes, String> {
        self.note(None)?;
        let mut rng = Seed::new(seed);
        let disks = self.world.disks();
        let ours: Vec<usize> = self.layout.all().into_iter().collect();
        let number = rng.choose(&ours).copied().unwrap_or(0);
        let position = self.layout.position_of(number);
        let is_victim = position.is_some_and(|position| self.victims.contains(&position));
        // One faulty disk more than the redundancy tolerates. Only this txg may be affected.
        let is_alone = self.harmed.is_empty() || is_victim;
        if !is_alone {
            return Ok(Goes::On);
        }
        self.stats.faults += 1;
        let rates = [20_000, 300_000, 1_000_000];
        let rate = rng.choose(&rates).copied().unwrap_or(1_000_000);
        let scope = if rng.below(4) == 0 {
            Scope::Flushes
        } else {
            Scope::Writes
        };
        let plan = FaultPlan::new(rng.fork()).with(scope, Fault::Fail, rate);
        // In half of the cases an intent log write is refused first, and the log falls back to the txg.
        let is_commit = rng.below(2) == 0;
        let began = self.world.recorded();
        disks[number].set_faults(Some(plan));
        let synced = match is_commit {
            true => self.commit(rng.bits()),
            false => self.pool()?.sync().map(drop),
        };
        disks[number].set_faults(None);
        self.take_deeds(began, synced.is_ok());
        let shown = synced.as_ref().err().map(ToString::to_string);
        self.life.log.push(format!(
            "disk {number} refused {scope:?} ({rate} of a million): {shown:?}"
        ));
        if synced.is_ok() {
            self.note(None)?;
            // Writes that the disk lost are not repeated here.
            if disks[number].broken_promises() > 0 {
                self.harmed.insert(number);
                if !is_victim && !self.victims.is_empty() {
                    // Together with the disks that may fail, this would exceed the redundancy. A log device
                    // without redundancy holds promises that its loss takes along (`Op::LoseLog`).
                    let can_go = |position: &Position| self.others_have_all(*position);
                    self.victims = position.filter(can_go).into_iter().collect();
                }
            }
            return Ok(Goes::On);
        }
        // Some disks may hold uberblocks of the failed txg.
        for txg in 1..=3 {
            let txg = Txg(self.committed.0 + txg);
            let state = State::of(txg, self.life.model.clone(), self.next);
            self.states.push(state);
        }
        self.committed = Txg(self.committed.0 + 3);
        self.harmed.insert(number);
        // A long journal must not be cleared here: the txgs in doubt are none that were acknowledged.
        self.cut_now(rng.bits(), false)
    }
}
