//! Vdevs that are removed and added, and RAID-Z vdevs that are expanded, during a run.

use super::*;
use millpond_engine::NewLayout;
use millpond_ondisk::Guid;
use millpond_pool::{AttachError, AttachRefusal, CopyLimits, RemoveError};
use millpond_vdev::AllocationClass;

/// A pool gets no more data vdevs than this.
const TOPS_MAX: usize = 4;
/// A RAID-Z vdev gets no more children than this.
const CHILDREN_MAX: usize = 8;

impl Lived<'_> {
    /// Continues a removal or an expansion. If there is none: removes or adds a vdev, or expands one. A mirrored log may
    /// be removed or added at any time.
    pub(super) fn reshape(&mut self, number: u64) -> Result<(), String> {
        self.end_checkpoint()?;
        self.note(None)?;
        let mut seed = Seed::new(number);
        let began = self.world.recorded();
        let pool = self.pool()?.inner().clone();
        let has_log = self.shape.has_mirrored_log();
        if has_log && seed.below(6) == 0 {
            self.change_log(&pool, &mut seed)?;
        } else if pool.is_removing() {
            self.copy_more(&pool, &mut seed)?;
        } else if pool.is_expanding() {
            self.move_more(&pool, &mut seed)?;
        } else if self.layout.raidz().is_empty() {
            let tops = self.layout.removable().len();
            match tops < 2 || tops < TOPS_MAX && seed.below(2) == 0 {
                true => self.add(&pool, AllocationClass::Normal, &mut seed)?,
                false => self.remove_top(&pool, &mut seed)?,
            }
        } else {
            self.expand(&pool, &mut seed)?;
        }
        drop(pool);
        self.take_deeds(began, true);
        self.read_layout()?;
        self.note(None)
    }

    /// Whether nothing is wrong on the disks of a vdev.
    fn is_sound(&self, top: usize) -> bool {
        let position = Position { top, slot: 0 };
        self.layout.vdev(position).all(|position| {
            let mut disks = self.layout.disks(position).iter();
            disks.all(|disk| !self.harmed.contains(disk))
        })
    }

    fn guid_of(&self, top: usize) -> Result<Guid, String> {
        let config = self.pool()?.inner().config();
        let found = config.root.children.get(top);
        found
            .map(|top| top.guid)
            .ok_or_else(|| format!("no vdev {top}"))
    }

    fn slices(seed: &mut Seed) -> (CopyLimits, u64) {
        let bytes = [12 << 10, 256 << 10, 4 << 20, 64 << 20];
        let limits = CopyLimits {
            bytes: seed.choose(&bytes).copied().unwrap_or(256 << 10),
            slice_ns: u64::MAX / 2,
        };
        (limits, 1 + seed.below(8))
    }

    /// Ends a removal under way. All disks must work.
    pub(super) fn end_removal(&mut self, pool: &millpond_pool::Pool) -> Result<(), String> {
        let limits = CopyLimits {
            bytes: 16 << 20,
            slice_ns: u64::MAX / 2,
        };
        while pool.is_removing() {
            let moved = pool.removal_slice(&limits);
            if moved.map_err(|error| failure_text("a slice of a removal", &error))? {
                continue;
            }
            self.cancel(pool)?;
        }
        self.read_layout()
    }

    fn cancel(&mut self, pool: &millpond_pool::Pool) -> Result<(), String> {
        let cancelled = pool.cancel_removal();
        cancelled.map_err(|error| failure_text("cancelling a removal", &error))?;
        self.stats.cancelled += 1;
        self.life.log.push("the removal is cancelled".to_owned());
        Ok(())
    }

    fn copy_more(&mut self, pool: &millpond_pool::Pool, seed: &mut Seed) -> Result<(), String> {
        if seed.below(20) == 0 {
            return self.cancel(pool);
        }
        let (limits, count) = Self::slices(seed);
        let text = format!("{count} slices of {} bytes of a removal", limits.bytes);
        self.life.log.push(text);
        for _ in 0..count {
            let moved = pool.removal_slice(&limits);
            if !moved.map_err(|error| failure_text("a slice of a removal", &error))? {
                break;
            }
            if !pool.is_removing() {
                self.stats.removed += 1;
                self.life.log.push("the vdev is removed".to_owned());
                break;
            }
        }
        Ok(())
    }

    fn move_more(&mut self, pool: &millpond_pool::Pool, seed: &mut Seed) -> Result<(), String> {
        let (limits, count) = Self::slices(seed);
        let text = format!("{count} slices of {} bytes of an expansion", limits.bytes);
        self.life.log.push(text);
        for _ in 0..count {
            let moved = pool.expansion_slice(&limits);
            if !moved.map_err(|error| failure_text("a slice of an expansion", &error))? {
                break;
            }
            if !pool.is_expanding() {
                self.stats.expanded += 1;
                self.life.log.push("the vdev is expanded".to_owned());
                break;
            }
        }
        Ok(())
    }

    /// Removes the mirrored log vdev, or adds one.
    fn change_log(&mut self, pool: &millpond_pool::Pool, seed: &mut Seed) -> Result<(), String> {
        let Some(top) = self.layout.mirrored_log() else {
            return self.add(pool, AllocationClass::Log, seed);
        };
        let text = match pool.remove_log(self.guid_of(top)?) {
            Ok(()) => "the log vdev is removed".to_owned(),
            Err(refusal @ RemoveError::InUse) => format!("the log vdev stays: {refusal}"),
            Err(error) => return Err(failure_text("removing the log vdev", &error)),
        };
        self.life.log.push(text);
        Ok(())
    }

    /// Adds a vdev: a mirror, or for data a single disk.
    fn add(
        &mut self,
        pool: &millpond_pool::Pool,
        class: AllocationClass,
        seed: &mut Seed,
    ) -> Result<(), String> {
        let mut disks = vec![];
        disks.extend(self.unused_disk(seed));
        let is_mirror = class == AllocationClass::Log || seed.below(2) == 0;
        if is_mirror
            && let Some(other) = self.unused_disk(seed)
            && disks.iter().all(|disk| disk.number() != other.number())
        {
            disks.push(other);
        }
        let layout = match (disks.len(), class) {
            (0, _) | (1, AllocationClass::Log) => return Ok(()),
            (1, _) => NewLayout::Single,
            _ => NewLayout::Mirror,
        };
        let devices = disks
            .iter()
            .map(|disk| NewDevice::file(&path(disk.number()), Arc::clone(disk) as Arc<dyn Device>));
        let new = NewVdevs::of(vec![NewTop {
            layout,
            class,
            devices: devices.collect(),
        }]);
        let options = NewVdevOptions {
            ashift: Some(self.shape.ashift),
            force: true,
        };
        let added = pool.add_vdevs(&new, options, &|_| false);
        added.map_err(|error| failure_text("adding a vdev", &error))?;
        let numbers: Vec<usize> = disks.iter().map(|disk| disk.number()).collect();
        self.life.log.push(format!("a vdev of disks {numbers:?}"));
        Ok(())
    }

    fn remove_top(&mut self, pool: &millpond_pool::Pool, seed: &mut Seed) -> Result<(), String> {
        let tops = self.layout.removable().into_iter();
        let tops: Vec<usize> = tops.filter(|top| self.is_sound(*top)).collect();
        let Some(top) = seed.choose(&tops).copied() else {
            return Ok(());
        };
        let text = match pool.remove_data(self.guid_of(top)?) {
            Ok(()) => format!("vdev {top} is being removed"),
            // A disk is absent or not complete, or the others are too small.
            Err(
                refusal @ (RemoveError::InUse
                | RemoveError::Unsupported
                | RemoveError::OutOfSpace
                | RemoveError::Layout),
            ) => format!("vdev {top} is not removed: {refusal}"),
            Err(error) => return Err(format!("removing vdev {top}: {error}")),
        };
        self.life.log.push(text);
        Ok(())
    }

    fn expand(&mut self, pool: &millpond_pool::Pool, seed: &mut Seed) -> Result<(), String> {
        let tops = self.layout.raidz().into_iter().filter(|top| {
            let position = Position { top: *top, slot: 0 };
            self.is_sound(*top) && self.layout.siblings(position) < CHILDREN_MAX
        });
        let tops: Vec<usize> = tops.collect();
        let Some(top) = seed.choose(&tops).copied() else {
            return Ok(());
        };
        let Some(disk) = self.unused_disk(seed) else {
            return Ok(());
        };
        let device = NewDevice::file(&path(disk.number()), Arc::clone(&disk) as Arc<dyn Device>);
        let options = NewVdevOptions {
            ashift: None,
            force: true,
        };
        let text = match pool.expand_raidz(self.guid_of(top)?, &device, options, &|_| false) {
            Ok(_) => format!("vdev {top} gets disk {}", disk.number()),
            // The vdev has grown, or a disk is absent or being replaced.
            Err(AttachError::Attach(
                refusal @ (AttachRefusal::TooSmall
                | AttachRefusal::NotWhole
                | AttachRefusal::Resilvering
                | AttachRefusal::Rebuilding),
            )) => format!("vdev {top} is not expanded: {refusal}"),
            Err(error) => return Err(format!("expanding vdev {top}: {error}")),
        };
        self.life.log.push(text);
        Ok(())
    }
}
