//! Changes of datasets.

use super::*;
use millpond_engine::{KeyRefusal, Refusal};

impl Life {
    /// Takes a snapshot of a file system or volume, and returns its name after the `@`.
    ///
    /// # Errors
    /// Those of the library. The model is then unchanged.
    pub fn snapshot(&mut self, pool: &Pool, name: &str) -> Result<String, Error> {
        let new = self.name("s");
        let full = format!("{name}@{new}");
        pool.datasets().snapshot(&[&full], &[])?;
        self.model.next_snapshot += 1;
        let id = self.model.next_snapshot;
        let head = self.head(name);
        let content = head.content.clone();
        head.snapshots.push(Snapshot {
            id,
            name: new.clone(),
            content,
        });
        Ok(new)
    }

    pub(super) fn dataset_step(&mut self, pool: &Pool) -> Outcome {
        let datasets = pool.datasets();
        let names: Vec<String> = self.model.heads.keys().cloned().collect();
        let name = self.rng.pick(&names).cloned().unwrap_or_default();
        let snapshots: Vec<(String, u64, String)> = self
            .model
            .heads
            .iter()
            .flat_map(|(head, holds)| {
                let all = holds.snapshots.iter();
                all.map(move |s| (head.clone(), s.id, s.name.clone()))
            })
            .collect();
        let snapshot = self.rng.pick(&snapshots).cloned();
        match self.rng.below(100) {
            0..=24 => {
                let new = self.snapshot(pool, &name)?;
                Ok(format!("snapshot {name}@{new}"))
            }
            25..=36 => {
                let Some((head, id, short)) = snapshot else {
                    return Ok("nothing".to_owned());
                };
                let full = format!("{head}@{short}");
                let outcome = datasets.destroy_snapshots(&[&full], Default::default());
                if self.model.has_clones(id) {
                    return must_fail(outcome, &format!("destroy {full}, which has clones"));
                }
                outcome?;
                self.head(&head).snapshots.retain(|s| s.id != id);
                Ok(format!("destroy {full}"))
            }
            37..=46 if self.model.heads.len() < 12 => {
                let Some((head, id, short)) = snapshot else {
                    return Ok("nothing".to_owned());
                };
                let at = self.model.heads[&head]
                    .snapshots
                    .iter()
                    .find(|s| s.id == id);
                let content = at.map(|s| s.content.clone());
                let full = format!("{head}@{short}");
                let new = self.new_dataset("c");
                datasets.clone_snapshot(&full, &new, &[])?;
                let mut made = Head::new(content.expect("it was picked"));
                made.origin = Some(id);
                self.model.heads.insert(new.clone(), made);
                Ok(format!("clone {full} {new}"))
            }
            47..=54 => {
                let outcome = datasets.promote(&name);
                let Some(origin) = self.model.heads[&name].origin else {
                    return must_fail(outcome, &format!("promote {name}, no clone"));
                };
                // A clone of a file system that is not below its encryption root any more, after that was promoted away.
                if let Err(DatasetError::Refused {
                    why: Refusal::Key(KeyRefusal::PromotedOutside),
                    ..
                }) = &outcome
                    && self.is_encrypted
                {
                    return Ok(format!("refused: promote {name}"));
                }
                outcome?;
                let (from, at) = self.model.snapshot(origin).expect("a clone's origin");
                let from = from.to_owned();
                let old = self.head(&from);
                let rest = old.snapshots.split_off(at + 1);
                let mut moved = std::mem::replace(&mut old.snapshots, rest);
                let inherited = old.origin.replace(origin);
                let head = self.head(&name);
                moved.append(&mut head.snapshots);
                head.snapshots = moved;
                head.origin = inherited;
                Ok(format!("promote {name} over {from}"))
            }
            55..=62 => {
                let Some(last) = self.model.heads[&name].snapshots.last().cloned() else {
                    return Ok("nothing".to_owned());
                };
                let full = format!("{name}@{}", last.name);
                datasets.rollback(&full)?;
                self.set_content(&name, last.content);
                Ok(format!("rollback {full}"))
            }
            63..=67 if self.model.heads.len() < 12 => {
                let new = self.new_dataset("fs");
                let mut properties = vec![];
                if self.makes_old_file_systems {
                    let newest = self.pool_version.file_system_version_max() as usize;
                    properties.push(number("version", 1 + self.rng.below(newest) as u64));
                }
                datasets.create_filesystem(&new, &properties)?;
                let content = Content::Files(Arc::new(Tree::default()));
                self.model.heads.insert(new.clone(), Head::new(content));
                Ok(format!("create {properties:?} {new}"))
            }
            68..=70 if self.model.heads.len() < 12 => {
                let new = self.new_dataset("vol");
                let block = 512u64 << self.rng.below(9);
                let size = (1 + self.rng.below(self.file_bytes_max) as u64).div_ceil(block) * block;
                let properties = [
                    number("volsize", size),
                    number("volblocksize", block),
                    // Sparse, because this test does not cover reservations.
                    number("refreservation", 0),
                ];
                datasets.create_volume(&new, &properties)?;
                let content = Content::Volume(Arc::new(vec![0; size as usize]));
                self.model.heads.insert(new.clone(), Head::new(content));
                Ok(format!("create -V {size} -b {block} {new}"))
            }
            71..=74 if name != self.pool => {
                let head = &self.model.heads[&name];
                let is_refused = !head.snapshots.is_empty() || self.model.has_children(&name);
                let outcome = datasets.destroy(&name, Default::default());
                if is_refused {
                    return must_fail(outcome, &format!("destroy {name}, in use"));
                }
                outcome?;
                self.model.heads.remove(&name);
                Ok(format!("destroy {name}"))
            }
            75..=78 if name != self.pool && !self.model.has_children(&name) => {
                let new = self.new_dataset("r");
                datasets.rename(&name, &new)?;
                let head = self.model.heads.remove(&name).expect("it was picked");
                self.model.heads.insert(new.clone(), head);
                Ok(format!("rename {name} {new}"))
            }
            79..=88 if self.sets_synchrony => {
                let values = [
                    ("standard", Synchrony::Standard),
                    ("always", Synchrony::Always),
                    ("disabled", Synchrony::Disabled),
                ];
                let (value, synchrony) = *self.rng.pick(&values).unwrap_or(&values[0]);
                datasets.set_properties(&name, &[text("sync", value)])?;
                self.head(&name).synchrony = Some(synchrony);
                Ok(format!("set sync={value} {name}"))
            }
            89..=92 if self.sets_synchrony => {
                let value = self
                    .rng
                    .pick(&["latency", "throughput"])
                    .unwrap_or(&"latency");
                datasets.set_properties(&name, &[text("logbias", value)])?;
                Ok(format!("set logbias={value} {name}"))
            }
            _ => {
                let is_volume = matches!(self.model.heads[&name].content, Content::Volume(_));
                let property = match self.rng.below(if is_volume { 4 } else { 9 }) {
                    0 => text("compression", self.fitting(COMPRESSIONS)),
                    1 => text("checksum", self.fitting(CHECKSUMS)),
                    2 => match self.fitting(&["1", "2", "3"]) {
                        _ if !self.pool_version.has_copies() => text("compression", "off"),
                        "3" if self.is_encrypted => text("copies", "2"),
                        picked => text("copies", picked),
                    },
                    3 => text(
                        "redundant_metadata",
                        self.rng
                            .pick(&["all", "most", "some", "none"])
                            .unwrap_or(&"all"),
                    ),
                    4 | 5 => {
                        let last =
                            RECORD_BYTES.len() - usize::from(!self.pool_version.has_features());
                        let sizes = &RECORD_BYTES[..last];
                        number("recordsize", *self.rng.pick(sizes).unwrap_or(&4096))
                    }
                    6 if self.pool_version.has_features() => text(
                        "dnodesize",
                        self.rng
                            .pick(&["legacy", "auto", "1k", "4k", "16k"])
                            .unwrap_or(&"auto"),
                    ),
                    7 => text("xattr", self.rng.pick(&["on", "sa"]).unwrap_or(&"sa")),
                    _ => number(
                        "special_small_blocks",
                        *self.rng.pick(&[0, 4096, 131_072]).unwrap_or(&0),
                    ),
                };
                let shown = format!("set {}={:?} {name}", property.0, property.1);
                datasets.set_properties(&name, &[property])?;
                Ok(shown)
            }
        }
    }
}
