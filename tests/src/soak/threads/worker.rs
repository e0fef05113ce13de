//! One thread of the workload.

use super::*;

pub(super) struct Worker {
    pub(super) number: usize,
    pub(super) rng: SeededRng,
    pub(super) files: Files,
    pub(super) stripe: Vec<u8>,
    pub(super) next: u64,
    /// Its operations in this iteration.
    pub(super) deeds: Deeds,
}

impl Worker {
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let word = self.rng.word();
        let is_noise = word.is_multiple_of(3);
        (0..length)
            .map(|at| {
                if is_noise && at % 16 == 0 {
                    return self.rng.word() as u8;
                }
                (word >> (at % 8)) as u8
            })
            .collect()
    }

    pub(super) fn work(&mut self, pool: &Pool, steps: usize, clock: &Clock) -> Result<(), Error> {
        let mut files = pool.file_system(POOL)?;
        for _ in 0..steps {
            // As far as this thread can tell, the power fails only between two steps.
            clock.set(self.number, self.deeds.step());
            // Opened again occasionally, so that snapshots and property changes happen while handles are
            // opened.
            if self.rng.below(8) == 0 {
                files = pool.file_system(POOL)?;
            }
            self.step(pool, &files, clock)?;
        }
        clock.set(self.number, self.deeds.step());
        Ok(())
    }

    /// Records the current content of this file as a new step of this thread.
    fn did(&mut self, key: &Key) {
        let content = self.files.get(key).cloned();
        self.deeds.file(key, content);
    }

    fn step(&mut self, pool: &Pool, files: &Arc<FileSystem>, clock: &Clock) -> Result<(), Error> {
        let (root, caller) = (files.root()?, Caller::root());
        let own = format!("t{}", self.number);
        let place = if self.rng.below(3) == 0 {
            SHARED.to_owned()
        } else {
            own
        };
        let directory = root.lookup(place.as_bytes())?;
        let mine: Vec<(String, String)> = self.files.keys().cloned().collect();
        let picked = self.rng.pick(&mine).cloned();
        let what = self.rng.below(22);
        let Some((of, name)) = picked.filter(|_| what > 3) else {
            self.next += 1;
            let name = format!("f{}-{}", self.number, self.next);
            let length = self.rng.below(12_000);
            let content = self.bytes(length);
            let mode = NewMode::exactly(0o644);
            let (node, _) = files.create(&caller, &directory, name.as_bytes(), mode, true)?;
            let key = (place, name);
            self.files.insert(key.clone(), vec![]);
            self.did(&key);
            files.write(&caller, &node, WriteAt::Offset(0), &content)?;
            self.files.insert(key.clone(), content);
            self.did(&key);
            return Ok(());
        };
        let holder = root.lookup(of.as_bytes())?;
        let node = holder.lookup(name.as_bytes())?;
        let key = (of, name);
        match what {
            4..=9 => {
                let offset = self.rng.below(20_000);
                let length = 1 + self.rng.below(6000);
                let new = self.bytes(length);
                files.write(&caller, &node, WriteAt::Offset(offset as u64), &new)?;
                if let Some(content) = self.files.get_mut(&key) {
                    let end = offset + new.len();
                    content.resize(content.len().max(end), 0);
                    content[offset..end].copy_from_slice(&new);
                }
                self.did(&key);
            }
            10 => {
                let size = self.rng.below(20_000);
                let set = SetAttributes {
                    size_bytes: Some(size as u64),
                    ..SetAttributes::default()
                };
                files.set_attributes(&caller, &node, &set)?;
                if let Some(content) = self.files.get_mut(&key) {
                    content.resize(size, 0);
                }
                self.did(&key);
            }
            11..=13 => {
                files.unlink(&holder, key.1.as_bytes())?;
                self.files.remove(&key);
                self.did(&key);
            }
            14 | 15 => {
                self.next += 1;
                let name = format!("f{}-{}", self.number, self.next);
                let from = DirEntryRef {
                    directory: &holder,
                    name: key.1.as_bytes(),
                };
                let to = DirEntryRef {
                    directory: &directory,
                    name: name.as_bytes(),
                };
                files.rename(&caller, from, to, RenameMode::NoReplace)?;
                let new = (place, name);
                if let Some(content) = self.files.remove(&key) {
                    self.files.insert(new.clone(), content);
                }
                self.deeds.moved(&key, &new);
            }
            16 => {
                let mut there = vec![0; 40_000];
                let count = node.read(0, &mut there)?;
                let expected = &self.files[&key];
                assert!(
                    there[..count] == **expected,
                    "{key:?} reads otherwise while open"
                );
            }
            17 | 18 => {
                let shared = root.lookup(SHARED.as_bytes())?;
                let common = shared.lookup(COMMON.as_bytes())?;
                let start = self.rng.below(STRIPE_BYTES);
                let length = 1 + self.rng.below(STRIPE_BYTES - start);
                let new = self.bytes(length);
                let offset = (self.number * STRIPE_BYTES + start) as u64;
                files.write(&caller, &common, WriteAt::Offset(offset), &new)?;
                self.stripe[start..start + length].copy_from_slice(&new);
                self.deeds.stripe(self.stripe.clone());
            }
            19 | 20 => {
                let aim = clock.aim(self.number, self.deeds.step());
                files.fsync(&node)?;
                clock.keep(aim, Some(self.number), self.deeds.file_number(&key));
            }
            _ if self.rng.below(8) == 0 => {
                let aim = clock.aim(self.number, self.deeds.step());
                pool.sync()?;
                clock.keep(aim, None, None);
            }
            _ if self.rng.below(4) == 0 => {
                let aim = clock.aim(self.number, self.deeds.step());
                files.commit_log()?;
                clock.keep(aim, None, None);
            }
            _ => {}
        }
        Ok(())
    }
}
