//! Replays intent logs when a pool is opened.

use super::pool::Pool;
use crate::Error;
use millpond_dataset::HeadDataset;
use millpond_env::mark;
use millpond_intent::{ReplayStep, replay};
use millpond_object::ObjectError;
use millpond_ondisk::ObjectSetKind;
use millpond_pool::{HistoryEvent, ImportNotes};
use millpond_posix::{FileError, FileSystem};
use millpond_volume::{Volume, VolumeError};

impl Pool {
    /// Replays the logs that were claimed when the pool was opened, and ends them. The datasets are not in
    /// use yet. As in OpenZFS, replay of a log ends at a record that cannot be replayed; this is recorded in
    /// the pool's history.
    pub(super) fn replay_logs(&self, notes: &ImportNotes) -> Result<(), Error> {
        let names = self.datasets().logs_to_replay();
        for (number, name) in names.iter().enumerate() {
            let (number, count) = (number + 1, names.len());
            notes.note(&format!(
                "Replaying the intent log of {name} ({number} of {count})"
            ));
            self.replay_log(name, notes)?;
        }
        Ok(())
    }

    /// Replays the claimed log of a dataset that is not in use, and ends it.
    pub(super) fn replay_log(&self, name: &str, notes: &ImportNotes) -> Result<(), Error> {
        self.datasets().pass_claimed_births()?;
        let head = self.datasets().open_head(name)?;
        let replayed = match head.kind() {
            ObjectSetKind::Volume => {
                let volume = self.open_volume(name)?;
                replay(&head, &mut |step| {
                    tell(notes, step);
                    self.again_in_volume(name, &volume, step)
                })
            }
            _ => {
                let (files, _) = self.open_files(name)?;
                files.begin_replay();
                let replayed = self.replay_files(name, &head, &files, notes);
                files.end_replay();
                replayed
            }
        };
        match replayed {
            // Later records may depend on the one that cannot be replayed, so the log ends there.
            Err(error @ Error::Replay { .. }) if self.inner().suspension().is_none() => {
                mark::hit("log-ends-at-bad-record");
                let event = HistoryEvent::of_pool("log replay failed", error.to_string());
                self.inner().sync_task(|ctx| ctx.history(&event))?;
            }
            outcome => outcome?,
        }
        Ok(self.datasets().finish_replay(&head)?)
    }

    fn replay_files(
        &self,
        name: &str,
        head: &HeadDataset,
        files: &FileSystem,
        notes: &ImportNotes,
    ) -> Result<(), Error> {
        // Free unlinked files first, because a record may reuse their object ids. Large files are skipped,
        // because they would delay the import; the id of a file that was only just freed is rarely reused.
        files.free_small_unlinked()?;
        self.sync()?;
        replay(head, &mut |step| {
            tell(notes, step);
            let again = || -> Result<(), FileError> {
                let record = step.record.decode();
                let record = record.map_err(|_| FileError::Invalid {
                    reason: "a record of the intent log that cannot be decoded",
                })?;
                let endian = step.record.frame().endian;
                files.replay_record(&record, endian, step.header, &mut |pointer, id, offset| {
                    step.read(pointer, id, offset)
                })
            };
            // An object id may be in use until its previous object is completely freed.
            let outcome = match again() {
                Ok(()) => Ok(()),
                Err(_) => {
                    files.free_unlinked()?;
                    self.sync()?;
                    again()
                }
            };
            outcome.map_err(|error| failed(name, step, &error, error.needs_devices()))
        })
    }

    fn again_in_volume(
        &self,
        name: &str,
        volume: &Volume,
        step: &ReplayStep<'_>,
    ) -> Result<(), Error> {
        let again = || -> Result<(), VolumeError> {
            let record = step.record.decode();
            let record = record.map_err(|_| VolumeError::Refused {
                name: name.to_owned(),
                reason: "a record of the intent log that cannot be decoded",
            })?;
            volume.replay_record(&record, step.header, &mut |pointer, id, offset| {
                step.read(pointer, id, offset)
            })
        };
        again().map_err(|error| failed(name, step, &error, error.needs_devices()))
    }
}

fn tell(notes: &ImportNotes, step: &ReplayStep<'_>) {
    if step.total > 0 {
        notes.done(step.number, step.total);
    }
}

fn failed(
    name: &str,
    step: &ReplayStep<'_>,
    error: &dyn std::error::Error,
    needs_devices: bool,
) -> Error {
    if needs_devices {
        return Error::ReplayNeedsDevices {
            name: name.to_owned(),
            reason: error.to_string(),
        };
    }
    Error::Replay {
        name: name.to_owned(),
        sequence: step.record.sequence,
        type_name: step.record.type_name(),
        reason: error.to_string(),
    }
}

impl From<ObjectError> for Error {
    fn from(error: ObjectError) -> Self {
        Self::File(error.into())
    }
}
