//! Scrubs and resilvers during a run, and the end of all damage.

use super::*;
use millpond_engine::{RebuildLimits, ScanLimits, Scanner, ScrubRange};
use millpond_ondisk::{Guid, ScanPhase};
use millpond_pool::import::read_labels;

/// The most slices of one scan.
const SLICES_MAX: usize = 20_000;
/// Disks that lose writes in silence need several resilvers; those that work need one.
const RESILVERS_MAX: usize = 3;

impl Lived<'_> {
    fn scanner(seed: &mut Seed) -> Scanner {
        let blocks = [5, 40, 300, 10_000];
        Scanner::new(ScanLimits {
            blocks: seed.choose(&blocks).copied().unwrap_or(40),
            gather_ns: u64::MAX / 2,
            threads: 1,
        })
    }

    /// Starts a resilver or a scrub if none runs, and makes some slices.
    pub(super) fn scan(&mut self, number: u64) -> Result<(), String> {
        self.note(None)?;
        let mut seed = Seed::new(number);
        let scanner = Self::scanner(&mut seed);
        let slices = 1 + seed.below(6);
        let began = self.world.recorded();
        let pool = self.pool()?.inner().clone();
        if !pool.is_scanning() && !pool.is_rebuilding() {
            let started = match pool.needs_resilver() {
                true => pool.start_resilver().map(drop),
                false => pool.start_scrub(ScrubRange::All),
            };
            started.map_err(|error| failure_text("starting a scan", &error))?;
        }
        for _ in 0..slices {
            if !Self::slice(scanner, &pool)? {
                break;
            }
        }
        drop(pool);
        self.stats.slices += slices;
        self.take_deeds(began, true);
        self.life.log.push(format!("{slices} slices of a scan"));
        self.note(None)
    }

    /// All disks work again, the pool is resilvered and scrubbed. Nothing may be wrong on any disk then, and other
    /// disks may fail.
    pub(super) fn mend(&mut self, number: u64) -> Result<(), String> {
        let plain = self.layout.without_redundancy();
        if !self.harmed.is_disjoint(&plain) || !self.absent.is_disjoint(&self.log_disks) {
            return Ok(());
        }
        self.end_checkpoint()?;
        self.note(None)?;
        let mut seed = Seed::new(number);
        for disk in self.world.disks() {
            disk.set_absent(false);
            disk.set_faults(None);
        }
        self.absent.clear();
        let pool = self.pool()?.inner().clone();
        self.take_back(&pool)?;
        if self.has_unlabelled(&pool) {
            // Its position stays harmed.
            self.life.log.push("a disk has lost its labels".to_owned());
            drop(pool);
            return self.note(None);
        }
        pool.sync().map_err(|error| failure_text("sync", &error))?;
        // A device that lost a write again after a failed flush hides it behind the cached page, from every scrub.
        for disk in self.world.disks() {
            disk.evict();
        }
        let scanner = Self::scanner(&mut seed);
        Self::to_the_end(scanner, &pool)?;
        self.finish_replacements()?;
        // The copies of a removal under way are not resilvered.
        self.end_removal(&pool)?;
        for _ in 0..RESILVERS_MAX {
            let started = pool.start_resilver();
            started.map_err(|error| failure_text("starting a resilver", &error))?;
            Self::to_the_end(scanner, &pool)?;
            self.finish_replacements()?;
        }
        if pool.needs_resilver() {
            return Err("leaves lack txgs after a resilver".to_owned());
        }
        if pool.has_finished_replacement() || self.layout.is_replacing() {
            return Err("a replacement is not over after a resilver".to_owned());
        }
        let lost = pool.lost_leaves(true);
        if !lost.is_empty() {
            return Err(format!("leaves that work are not in use: {lost:?}"));
        }
        let scrubbed = pool.start_scrub(ScrubRange::All);
        scrubbed.map_err(|error| failure_text("starting a scrub", &error))?;
        Self::to_the_end(scanner, &pool)?;
        match pool.scan() {
            Some((scan, _)) if scan.phase == ScanPhase::Finished && scan.errors == 0 => {}
            other => return Err(format!("a scrub without faults ended as {other:?}")),
        }
        drop(pool);
        self.life.log.push("all disks are whole".to_owned());
        self.note(None)?;
        let read = self.pool()?.committed();
        let read = read.map_err(|error| failure_text("committed", &error))?;
        verified(&read, &BTreeSet::new(), false)
            .map_err(|error| format!("after resilver and scrub: {error}"))?;
        drop(read);
        self.stats.mended += 1;
        self.harmed.clear();
        self.detach_sides(&mut seed)?;
        self.note(None)?;
        let mut rng = SeededRng::new(seed.bits());
        self.victims = self.layout.victims(self.shape, &mut rng);
        self.forget();
        Ok(())
    }

    /// Gives the pool the disks that were absent when it was opened.
    fn take_back(&self, pool: &millpond_pool::Pool) -> Result<(), String> {
        let lost: Vec<(Guid, String)> = pool.lost_leaves(true);
        for (guid, place) in lost {
            let disks = self.world.disks();
            let disk = disks.iter().find(|disk| path(disk.number()) == place);
            let disk = disk.ok_or_else(|| format!("no disk at {place}"))?;
            let device: Arc<dyn Device> = Arc::clone(disk) as _;
            // The second request is that of a caller who knows that the leaf diverged.
            for _ in 0..2 {
                let taken = pool.reopen_leaf(guid, &device);
                if taken.map_err(|error| failure_text("reopening a leaf", &error))? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether a disk damaged all its labels before it went away. Only a replacement would help.
    fn has_unlabelled(&self, pool: &millpond_pool::Pool) -> bool {
        let lost = pool.lost_leaves(true).into_iter();
        let mut disks = lost.flat_map(|(_, place)| {
            let disks = self.world.disks().into_iter();
            disks.filter(move |disk| path(disk.number()) == place)
        });
        disks.any(|disk| {
            let mut labels = read_labels(disk.as_ref()).into_iter().flatten();
            labels.all(|label| !label.is_verified)
        })
    }

    /// Makes a slice of what runs. Returns whether there was anything to do.
    fn slice(scanner: Scanner, pool: &Arc<millpond_pool::Pool>) -> Result<bool, String> {
        if !pool.is_rebuilding() {
            let moved = scanner.slice(pool);
            return moved.map_err(|error| failure_text("a slice of a scan", &error));
        }
        let limits = RebuildLimits {
            bytes: 256 << 10,
            slice_ns: u64::MAX / 2,
            threads: 1,
        };
        let moved = pool.rebuild_slice(&limits);
        moved.map_err(|error| failure_text("a slice of a sequential resilver", &error))
    }

    fn to_the_end(scanner: Scanner, pool: &Arc<millpond_pool::Pool>) -> Result<(), String> {
        for _ in 0..SLICES_MAX {
            if !Self::slice(scanner, pool)? {
                return Ok(());
            }
        }
        Err(format!("a scan is not over after {SLICES_MAX} slices"))
    }
}
