//! Hot spares during a run.

use super::*;
use millpond_ondisk::Guid;
use millpond_pool::AttachError;

/// A pool lists at most as many.
const SPARES_MAX: usize = 2;

impl Lived<'_> {
    /// Lists a spare, lets spares step in, or takes one off the list.
    pub(super) fn spare(&mut self, number: u64) -> Result<(), String> {
        self.end_checkpoint()?;
        let mut seed = Seed::new(number);
        self.note(None)?;
        let began = self.world.recorded();
        let listed = self.listed_spares()?;
        match seed.below(8) {
            0 | 1 if listed.len() < SPARES_MAX => self.list_spare(&mut seed)?,
            2 => self.unlist_spare(&listed, &mut seed)?,
            _ => self.step_in(&listed)?,
        }
        self.take_deeds(began, true);
        self.note(None)
    }

    /// The guids and disks of the spares that the pool lists.
    pub(super) fn listed_spares(&self) -> Result<Vec<(Guid, usize)>, String> {
        let read = self.pool()?.committed();
        let read = read.map_err(|error| failure_text("committed", &error))?;
        let spares = read.inner().spares().iter();
        let disks = spares.filter_map(|spare| {
            let number = spare.string("path").ok()?.strip_prefix("/sim/d")?;
            Some((Guid(spare.u64("guid").ok()?), number.parse().ok()?))
        });
        Ok(disks.collect())
    }

    fn list_spare(&mut self, seed: &mut Seed) -> Result<(), String> {
        let Some(disk) = self.unused_disk(seed) else {
            return Ok(());
        };
        let place = path(disk.number());
        let device = NewDevice::file(&place, Arc::clone(&disk) as Arc<dyn Device>);
        let new = NewVdevs {
            spares: vec![device],
            ..NewVdevs::default()
        };
        let options = NewVdevOptions {
            ashift: None,
            force: true,
        };
        let added = self.pool()?.inner().add_vdevs(&new, options, &|_| false);
        added.map_err(|error| failure_text("adding a spare", &error))?;
        let text = format!("disk {} is a spare", disk.number());
        self.life.log.push(text);
        Ok(())
    }

    fn unlist_spare(&mut self, listed: &[(Guid, usize)], seed: &mut Seed) -> Result<(), String> {
        let ours = self.layout.all();
        let free = listed.iter().filter(|(_, disk)| !ours.contains(disk));
        let free: Vec<_> = free.collect();
        let Some((guid, disk)) = seed.choose(&free).copied() else {
            return Ok(());
        };
        let removed = self.pool()?.inner().remove_auxiliary(*guid);
        removed.map_err(|error| failure_text("removing a spare", &error))?;
        let _ = millpond_pool::clear_labels(self.disk(*disk).as_ref());
        self.life.log.push(format!("disk {disk} is no spare"));
        Ok(())
    }

    /// Spares that are not in use work; so they may take any place.
    fn step_in(&mut self, listed: &[(Guid, usize)]) -> Result<(), String> {
        let ours = self.layout.all();
        let pool = self.pool()?.inner().clone();
        for (guid, disk) in listed {
            if !ours.contains(disk) && !self.absent.contains(disk) {
                let disk = self.disk(*disk);
                disk.set_faults(None);
                pool.offer_spare(*guid, disk);
            }
        }
        let count = match pool.step_in_spares(0) {
            Ok(count) => count as u64,
            // A resilver of the other kind runs.
            Err(AttachError::Attach(_)) => 0,
            Err(error) => return Err(failure_text("a spare", &error)),
        };
        drop(pool);
        if count > 0 {
            self.stats.spared += count;
            self.life.log.push(format!("{count} spares step in"));
        }
        self.read_layout()
    }
}
