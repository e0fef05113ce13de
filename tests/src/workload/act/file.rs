//! Changes of files.

use super::*;

impl Life {
    pub(super) fn file_step(
        &mut self,
        files: &Arc<FileSystem>,
        tree: &mut Tree,
        dataset: &str,
    ) -> Outcome {
        let caller = Caller::root();
        let (directories, all) = tree.survey();
        let (path, directory) = self.rng.pick(&directories).cloned().unwrap_or_default();
        let at = walk(files, &path)?;
        let plain: Vec<_> = all.iter().filter(|named| named.is_file).collect();
        let what = self.rng.below(100);
        let new = self.name("n");
        let name = new.as_bytes();
        if what < 18 || plain.is_empty() {
            // Occasionally many small files at once, so that directories and their tables grow.
            let is_many = self.rng.below(12) == 0 && self.makes_many;
            let count = if is_many { 60 } else { 1 };
            for number in 0..count {
                let name = match (count, self.rng.below(10)) {
                    (1, 0) => format!("{new}-{}", "long".repeat(50)).into_bytes(),
                    (1, 1) => format!("{new}-ünïcödé").into_bytes(),
                    (1, _) => name.to_vec(),
                    _ => format!("{new}-{number}").into_bytes(),
                };
                let length = if count == 1 { self.length() } else { number };
                let content = self.bytes(length);
                let (node, _) = files.create(&caller, &at, &name, NewMode::exactly(0o640), true)?;
                let made = Node::new(Kind::File(Arc::default()), 0o640);
                let id = self.made(dataset, tree, directory, &name, made);
                for (index, piece) in content.chunks(280_000).enumerate() {
                    let at = index * 280_000;
                    files.write(&caller, &node, WriteAt::Offset(at as u64), piece)?;
                    let bytes = Arc::new(piece.to_vec());
                    self.did(dataset, tree, Effect::Bytes { id, at, bytes });
                }
            }
            return Ok(format!("{dataset}: create {new} x{count}"));
        }
        let Some(picked) = self.rng.pick(&plain).copied() else {
            return Ok(String::new());
        };
        let (of_path, of_directory, id) = (Arc::clone(&picked.path), picked.directory, picked.id);
        let of_name = picked.name.to_vec();
        let holder = walk(files, &of_path)?;
        let node = holder.lookup(&of_name)?;
        let shown = String::from_utf8_lossy(&of_name).into_owned();
        let size = match &tree.nodes[&id].kind {
            Kind::File(bytes) => bytes.len(),
            _ => 0,
        };
        match what {
            18..=41 => {
                let offset = match self.rng.below(6) {
                    0 => size,
                    1 => (size + self.rng.below(300_000)).min(self.file_bytes_max),
                    _ => self.rng.below(size + 1),
                };
                let length = 1 + self.length().min(self.file_bytes_max);
                let new = self.bytes(length);
                for (index, piece) in new.chunks(280_000).enumerate() {
                    let at = offset + index * 280_000;
                    files.write(&caller, &node, WriteAt::Offset(at as u64), piece)?;
                    let bytes = Arc::new(piece.to_vec());
                    self.did(dataset, tree, Effect::Bytes { id, at, bytes });
                }
                Ok(format!(
                    "{dataset}: write {shown} {offset}+{length} of {size}"
                ))
            }
            42..=49 => {
                let length = match self.rng.below(3) {
                    0 => 0,
                    1 => self.rng.below(size + 1),
                    _ => self.rng.below(self.file_bytes_max),
                };
                let set = SetAttributes {
                    size_bytes: Some(length as u64),
                    ..SetAttributes::default()
                };
                files.set_attributes(&caller, &node, &set)?;
                self.did(dataset, tree, Effect::Length { id, length });
                Ok(format!("{dataset}: truncate {shown} {size} -> {length}"))
            }
            53..=54 if size > 0 => {
                let offset = self.rng.below(size) as u64;
                let length = 1 + self.rng.below(size - offset as usize) as u64;
                // Pools have the feature for it only if the shape says so.
                let done = match files.rewrite(&node, offset, length, true) {
                    Err(FileError::NotSupported) => files.rewrite(&node, offset, length, false),
                    done => done,
                };
                done?;
                Ok(format!(
                    "{dataset}: rewrite {shown} {offset}+{length} of {size}"
                ))
            }
            50..=52 if size > 0 => {
                let offset = self.rng.below(size);
                let length = 1 + self.rng.below(size - offset);
                files.allocate(&node, Allocate::PunchHole, offset as u64, length as u64)?;
                let at = offset;
                self.did(dataset, tree, Effect::Hole { id, at, length });
                Ok(format!(
                    "{dataset}: punch {shown} {offset}+{length} of {size}"
                ))
            }
            55..=61 => {
                files.unlink(&holder, &of_name)?;
                let removed = Effect::Removed {
                    directory: of_directory,
                    name: of_name,
                };
                self.did(dataset, tree, removed);
                Ok(format!("{dataset}: unlink {shown}"))
            }
            62..=66 => {
                files.link(&node, &at, name)?;
                let linked = Effect::Linked {
                    directory,
                    name: name.to_vec(),
                    id,
                };
                self.did(dataset, tree, linked);
                Ok(format!("{dataset}: link {shown} {new}"))
            }
            67..=70 => {
                files.make_directory(&caller, &at, name, NewMode::exactly(0o755))?;
                let made = Node::new(Kind::Directory(BTreeMap::new()), 0o755);
                self.made(dataset, tree, directory, name, made);
                Ok(format!("{dataset}: mkdir {new}"))
            }
            71..=73 => {
                let target = "target/".repeat(1 + self.rng.below(40)).into_bytes();
                files.make_symlink(&caller, &at, name, &target)?;
                let made = Node::new(Kind::Link(target), 0o777);
                self.made(dataset, tree, directory, name, made);
                Ok(format!("{dataset}: symlink {new}"))
            }
            74 => {
                let mode = NewMode::exactly(0o600);
                files.make_special(&caller, &at, name, SpecialFile::Fifo, mode)?;
                self.made(dataset, tree, directory, name, Node::new(Kind::Fifo, 0o600));
                Ok(format!("{dataset}: fifo {new}"))
            }
            75..=81 => {
                let Some(picked) = self.rng.pick(&all) else {
                    return Ok("nothing".to_owned());
                };
                let (from_path, from_directory) = (Arc::clone(&picked.path), picked.directory);
                let (from_name, moved) = (picked.name.to_vec(), picked.id);
                let mut full = Path::clone(&from_path);
                full.push(from_name.clone());
                if path.starts_with(&full) {
                    return Ok("nothing".to_owned());
                }
                // Sometimes onto an existing file.
                let onto_file =
                    matches!(tree.nodes[&moved].kind, Kind::File(_)) && self.rng.below(3) == 0;
                let source = walk(files, &from_path)?;
                let from = DirEntryRef {
                    directory: &source,
                    name: &from_name,
                };
                if onto_file {
                    let to = DirEntryRef {
                        directory: &holder,
                        name: &of_name,
                    };
                    files.rename(&caller, from, to, RenameMode::Replace)?;
                    if moved != id {
                        self.moved(
                            dataset,
                            tree,
                            (from_directory, from_name),
                            (of_directory, of_name),
                            moved,
                        );
                    }
                    return Ok(format!("{dataset}: rename onto {shown}"));
                }
                let to = DirEntryRef {
                    directory: &at,
                    name,
                };
                files.rename(&caller, from, to, RenameMode::NoReplace)?;
                let to = (directory, name.to_vec());
                self.moved(dataset, tree, (from_directory, from_name), to, moved);
                Ok(format!("{dataset}: rename to {new}"))
            }
            82..=86 => {
                let (mode, uid, gid) = (
                    self.rng.below(0o1000) as u32,
                    self.rng.below(3000) as u32,
                    self.rng.below(3000) as u32,
                );
                let seconds = TICK_S + self.rng.below(1_000_000) as i64;
                let set = SetAttributes {
                    permissions: Some(mode),
                    uid: Some(uid),
                    gid: Some(gid),
                    mtime: Some(SetTime::To(Timestamp {
                        seconds,
                        nanoseconds: self.rng.below(1_000_000_000) as u64,
                    })),
                    ..SetAttributes::default()
                };
                files.set_attributes(&caller, &node, &set)?;
                self.did(dataset, tree, Effect::Owner { id, mode, uid, gid });
                Ok(format!("{dataset}: owner and mode of {shown}"))
            }
            87..=94 => {
                let name = format!("user.x{}", self.rng.below(8)).into_bytes();
                let has_it = tree.nodes[&id].xattrs.contains_key(&name);
                if has_it && self.rng.below(2) == 0 {
                    files.remove_xattr(&node, &name)?;
                    let value = None;
                    self.did(dataset, tree, Effect::Xattr { id, name, value });
                    return Ok(format!("{dataset}: remove xattr of {shown}"));
                }
                let length = match self.rng.below(4) {
                    0 => self.rng.below(20),
                    1 => self.rng.below(300),
                    2 => self.rng.below(3000),
                    _ => self.rng.below(40_000),
                };
                let value = self.bytes(length);
                files.set_xattr(&caller, &node, &name, &value, XattrMode::Set)?;
                let value = Some(value);
                self.did(dataset, tree, Effect::Xattr { id, name, value });
                Ok(format!("{dataset}: set xattr of {shown}, {length}"))
            }
            95..=97 => {
                let empty = directories.iter().skip(1).find(|(_, id)| {
                    matches!(&tree.nodes[id].kind, Kind::Directory(entries) if entries.is_empty())
                });
                let Some((path, _)) = empty else {
                    return Ok("nothing".to_owned());
                };
                let (last, above) = path.split_last().expect("not the root");
                let holder = walk(files, above)?;
                files.remove_directory(&holder, last)?;
                let above = directories.iter().find(|(path, _)| path[..] == *above);
                let removed = Effect::Removed {
                    directory: above.map_or(0, |(_, id)| *id),
                    name: last.clone(),
                };
                self.did(dataset, tree, removed);
                Ok(format!("{dataset}: rmdir"))
            }
            // A whole txg is expensive, so it is rare in tests with another subject.
            _ if !self.syncs_seldom || self.rng.below(8) == 0 => {
                files.sync()?;
                Ok(format!("{dataset}: sync"))
            }
            _ => Ok("nothing".to_owned()),
        }
    }

    pub(super) fn made(
        &mut self,
        dataset: &str,
        tree: &mut Tree,
        directory: u64,
        name: &[u8],
        node: Node,
    ) -> u64 {
        let (id, node) = (tree.next, Arc::new(node));
        let name = name.to_vec();
        let effect = Effect::Made {
            directory,
            name,
            id,
            node,
        };
        self.did(dataset, tree, effect);
        id
    }

    fn moved(
        &mut self,
        dataset: &str,
        tree: &mut Tree,
        from: (u64, Vec<u8>),
        to: (u64, Vec<u8>),
        id: u64,
    ) {
        self.deeds.push((dataset.to_owned(), Deed::Promote(id)));
        self.did(dataset, tree, Effect::Moved { from, to, id });
    }
}
