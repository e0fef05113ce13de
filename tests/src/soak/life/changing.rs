//! Disks that are attached, replaced and detached during a run.

use super::layout::Position;
use super::*;
use millpond_engine::ResilverKind;
use millpond_ondisk::Guid;
use millpond_pool::{AttachError, AttachKind, AttachRefusal, DetachRefusal, find_use};

/// A run adds no more disks than this, to limit its memory.
const NEW_DISKS_MAX: usize = 8;
/// A mirror has at most as many sides.
const SIDES_MAX: usize = 4;

impl Lived<'_> {
    /// The positions and disks of the open pool.
    pub(super) fn read_layout(&mut self) -> Result<(), String> {
        self.layout = Layout::of(&self.pool()?.inner().config().root)?;
        // Another vdev may take the place of a removed one.
        let layout = &self.layout;
        self.victims
            .retain(|position| layout.siblings(*position) > 0);
        Ok(())
    }

    /// The leaf at a path.
    fn leaf(&self, path: &str) -> Result<Guid, String> {
        let topology = self.pool()?.inner().store().topology();
        let mut leaves = topology.tree.leaves();
        let found = leaves.find(|(_, node)| node.config.path.as_deref() == Some(path));
        let (_, node) = found.ok_or_else(|| format!("no leaf at {path}"))?;
        Ok(node.config.guid)
    }

    /// A disk that belongs to no pool: one that was used before, or a new one.
    pub(super) fn unused_disk(&self, seed: &mut Seed) -> Option<Arc<millpond_sim::SimDisk>> {
        let ours = self.layout.all();
        let disks = self.world.disks();
        let used = disks.iter().filter(|disk| {
            let number = disk.number();
            !ours.contains(&number)
                && !self.absent.contains(&number)
                && find_use(disk.as_ref(), &|_| false).is_none()
        });
        let used: Vec<_> = used.cloned().collect();
        if let Some(disk) = seed.choose(&used)
            && seed.below(3) > 0
        {
            disk.set_faults(None);
            // As `zpool labelclear`: it may have refused this when it was detached.
            let _ = millpond_pool::clear_labels(disk.as_ref());
            return Some(Arc::clone(disk));
        }
        let added = disks.len().saturating_sub(self.shape.disks());
        let size = DISK_BYTES << seed.below(3).saturating_sub(1);
        (added < NEW_DISKS_MAX).then(|| self.world.disk(size, 512))
    }

    /// A sequential resilver copies what it finds. So it may only copy to a position that may fail itself, or become a further
    /// side, unless all sides are right for sure.
    fn resilver_kind(&self, position: Position, is_side: bool, seed: &mut Seed) -> ResilverKind {
        let is_safe = is_side || self.victims.contains(&position) || self.are_all_right(position);
        match self.layout.takes_sides(position) && is_safe && seed.below(2) == 0 {
            true => ResilverKind::Sequential,
            false => ResilverKind::Healing,
        }
    }

    /// Whether nothing is wrong on the disks of a vdev, and they may not fail.
    fn are_all_right(&self, position: Position) -> bool {
        self.layout.vdev(position).all(|position| {
            let mut disks = self.layout.disks(position).iter();
            !self.victims.contains(&position) && disks.all(|disk| !self.harmed.contains(disk))
        })
    }

    /// Attaches a disk to a position: as its replacement, or as a new side of a mirror.
    pub(super) fn attach(&mut self, number: u64) -> Result<(), String> {
        self.end_checkpoint()?;
        let mut seed = Seed::new(number);
        let is_side = seed.below(3) == 0;
        let positions = self.layout.positions().into_iter().filter(|position| {
            let is_whole = self.layout.leaves(*position).len() == 1;
            let fits = !is_side
                || self.layout.takes_sides(*position)
                    && self.layout.siblings(*position) < SIDES_MAX;
            is_whole && fits && !self.layout.is_single_log(*position)
        });
        let positions: Vec<Position> = positions.collect();
        let Some(position) = seed.choose(&positions).copied() else {
            return Ok(());
        };
        let Some(old) = self.layout.leaves(position).first().cloned() else {
            return Ok(());
        };
        let Some(disk) = self.unused_disk(&mut seed) else {
            return Ok(());
        };
        self.note(None)?;
        let kind = match is_side {
            true => AttachKind::Mirror,
            false => AttachKind::Replacement,
        };
        let new = disk.number();
        let (leaf, began) = (self.leaf(&old)?, self.world.recorded());
        let device = NewDevice::file(&path(new), Arc::clone(&disk) as Arc<dyn Device>);
        let options = NewVdevOptions {
            ashift: None,
            force: true,
        };
        let how = self.resilver_kind(position, is_side, &mut seed);
        let pool = self.pool()?.inner().clone();
        match pool.attach_leaf_as(how, leaf, &device, kind, options, &|_| false) {
            // The vdev has grown, a resilver of the other kind runs, or a vdev moves.
            Err(AttachError::Attach(
                AttachRefusal::TooSmall
                | AttachRefusal::Resilvering
                | AttachRefusal::Rebuilding
                | AttachRefusal::Removing
                | AttachRefusal::Expanding,
            )) => return self.note(None),
            attached => attached
                .map_err(|error| format!("attaching disk {new} to {old} ({how:?}): {error}"))?,
        };
        drop(pool);
        self.take_deeds(began, true);
        self.stats.attached += 1;
        self.stats.rebuilt += u64::from(how == ResilverKind::Sequential);
        // What is wrong on a disk without redundancy, its replacement may inherit.
        let mut disks = self.layout.disks(position).iter();
        let is_harmed = disks.any(|disk| self.harmed.contains(disk));
        let is_plain = is_harmed && !self.layout.is_redundant(position);
        if is_plain || how == ResilverKind::Sequential && !self.are_all_right(position) {
            self.harmed.insert(new);
        }
        let what = ["replaces", "is a side beside"][usize::from(is_side)];
        let log = &mut self.life.log;
        log.push(format!("disk {new} {what} {old} ({how:?})"));
        self.read_layout()?;
        self.note(None)
    }

    /// Ends replacements that are complete, or gives one up.
    pub(super) fn detach(&mut self, number: u64) -> Result<(), String> {
        self.end_checkpoint()?;
        let mut seed = Seed::new(number);
        self.note(None)?;
        let began = self.world.recorded();
        if seed.below(2) == 0 {
            self.finish_replacements()?;
        } else {
            let positions = self.layout.positions().into_iter();
            let positions = positions.filter(|position| self.layout.leaves(*position).len() > 1);
            let positions: Vec<Position> = positions.collect();
            let Some(position) = seed.choose(&positions).copied() else {
                return Ok(());
            };
            // Of a disk that may not fail the pool cannot know whether the others are whole: some rot unseen.
            let leaves = self.layout.leaves(position);
            let leaf = match self.victims.contains(&position) {
                true => seed.choose(&leaves),
                false => leaves.last(),
            };
            if let Some(leaf) = leaf {
                self.detach_leaf(leaf)?;
            }
        }
        self.take_deeds(began, true);
        self.note(None)
    }

    /// Takes complete replacements into use.
    pub(super) fn finish_replacements(&mut self) -> Result<(), String> {
        let pool = self.pool()?.inner().clone();
        // Nor is a scrub waited for that was due after copies.
        let _ = pool.take_scrub_due();
        let count = pool.finish_replacements();
        let count = count.map_err(|error| failure_text("ending a replacement", &error))?;
        drop(pool);
        if count > 0 {
            self.stats.replaced += count as u64;
            self.life.log.push(format!("{count} disks are replaced"));
        }
        self.read_layout()
    }

    /// Takes sides out of mirrors. All disks must be complete.
    pub(super) fn detach_sides(&mut self, seed: &mut Seed) -> Result<(), String> {
        for position in self.layout.positions() {
            if !self.layout.takes_sides(position)
                || self.layout.siblings(position) < 2
                || self.layout.is_log(position)
                || seed.below(6) > 0
            {
                continue;
            }
            if let Some(disk) = self.layout.disks(position).first().copied() {
                self.detach_leaf(&path(disk))?;
                self.stats.detached += 1;
            }
            // The positions behind it have moved.
            break;
        }
        Ok(())
    }

    fn detach_leaf(&mut self, path: &str) -> Result<(), String> {
        let leaf = self.leaf(path)?;
        let outcome = self.pool()?.inner().detach_leaf(leaf);
        let text = match outcome {
            Ok(()) => format!("{path} is detached"),
            Err(AttachError::Detach(DetachRefusal::Required)) => {
                format!("{path} is not detached: it is needed")
            }
            Err(AttachError::Detach(DetachRefusal::Removing)) => {
                format!("{path} is not detached: its vdev is being removed")
            }
            Err(error) => return Err(format!("detaching {path}: {error}")),
        };
        self.life.log.push(text);
        self.read_layout()
    }
}
