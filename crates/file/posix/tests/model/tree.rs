//! The model: a file system as a plain tree in memory.

use millpond_ondisk::ObjectId;
use millpond_posix::{Errno, FileKind, RenameMode};
use std::collections::BTreeMap;

pub const ROOT: u64 = 0;

#[derive(Debug, Clone)]
pub struct File {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u64,
    pub parent: u64,
    pub content: Vec<u8>,
    pub target: Vec<u8>,
    pub entries: BTreeMap<Vec<u8>, u64>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The object id in the real file system.
    pub id: ObjectId,
}

#[derive(Debug, Clone)]
pub struct Tree {
    pub files: BTreeMap<u64, File>,
    next: u64,
}

type Outcome<T> = Result<T, Errno>;

impl Tree {
    pub fn new(root: ObjectId) -> Self {
        let mut tree = Self {
            files: BTreeMap::new(),
            next: 0,
        };
        tree.make(FileKind::Directory, 0o755, ROOT, root);
        tree
    }
    pub fn file(&self, number: u64) -> &File {
        &self.files[&number]
    }
    pub fn file_mut(&mut self, number: u64) -> &mut File {
        self.files.get_mut(&number).unwrap()
    }
    pub fn find(&self, directory: u64, name: &[u8]) -> Outcome<u64> {
        let found = self.file(directory).entries.get(name);
        found.copied().ok_or(Errno::ENOENT)
    }
    fn make(&mut self, kind: FileKind, mode: u32, parent: u64, id: ObjectId) -> u64 {
        let number = self.next;
        self.next += 1;
        let file = File {
            kind,
            mode,
            uid: 0,
            gid: 0,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            parent,
            content: vec![],
            target: vec![],
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            id,
        };
        self.files.insert(number, file);
        number
    }
    /// Checks that a name is free.
    pub fn check_free(&self, directory: u64, name: &[u8]) -> Outcome<()> {
        match self.find(directory, name) {
            Ok(_) => Err(Errno::EEXIST),
            Err(_) => Ok(()),
        }
    }
    pub fn add(
        &mut self,
        directory: u64,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        id: ObjectId,
    ) -> u64 {
        let number = self.make(kind, mode, directory, id);
        self.attach(directory, name, number);
        number
    }
    pub fn add_unnamed(&mut self, directory: u64, mode: u32, id: ObjectId) -> u64 {
        let number = self.make(FileKind::Regular, mode, directory, id);
        self.file_mut(number).links = 0;
        number
    }
    fn attach(&mut self, directory: u64, name: &[u8], number: u64) {
        let is_directory = self.file(number).kind == FileKind::Directory;
        self.file_mut(number).parent = directory;
        let parent = self.file_mut(directory);
        parent.entries.insert(name.to_vec(), number);
        parent.links += u64::from(is_directory);
    }
    fn detach(&mut self, directory: u64, name: &[u8]) -> u64 {
        let number = self.file_mut(directory).entries.remove(name).unwrap();
        let is_directory = self.file(number).kind == FileKind::Directory;
        self.file_mut(directory).links -= u64::from(is_directory);
        number
    }

    pub fn link(&mut self, number: u64, directory: u64, name: &[u8]) -> Outcome<()> {
        if self.file(number).kind == FileKind::Directory {
            return Err(Errno::EPERM);
        }
        self.check_free(directory, name)?;
        self.file_mut(number).links += 1;
        self.attach(directory, name, number);
        Ok(())
    }

    /// Returns the file that lost a name.
    pub fn unlink(&mut self, directory: u64, name: &[u8]) -> Outcome<u64> {
        let number = self.find(directory, name)?;
        if self.file(number).kind == FileKind::Directory {
            return Err(Errno::EISDIR);
        }
        self.detach(directory, name);
        self.file_mut(number).links -= 1;
        Ok(number)
    }

    pub fn remove_directory(&mut self, directory: u64, name: &[u8]) -> Outcome<u64> {
        let number = self.find(directory, name)?;
        let file = self.file(number);
        if file.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if !file.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.detach(directory, name);
        self.file_mut(number).links = 0;
        Ok(number)
    }

    fn is_above(&self, ancestor: u64, mut at: u64) -> bool {
        loop {
            if at == ancestor {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.file(at).parent;
        }
    }

    /// Returns the file that lost its name, and whether a whiteout must appear under the old name.
    pub fn rename(
        &mut self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: RenameMode,
    ) -> Outcome<(Option<u64>, bool)> {
        let source = self.find(from.0, from.1)?;
        let target = self.find(to.0, to.1).ok();
        let is_directory = |number: u64| self.file(number).kind == FileKind::Directory;
        let is_exchange = mode == RenameMode::Exchange;
        if is_exchange && target.is_none() {
            return Err(Errno::ENOENT);
        }
        let is_move = from.0 != to.0;
        let exchanged = target.filter(|target| is_exchange && is_directory(*target));
        if is_move
            && (is_directory(source) && self.is_above(source, to.0)
                || exchanged.is_some_and(|target| self.is_above(target, from.0)))
        {
            return Err(Errno::EINVAL);
        }
        let refuses = matches!(mode, RenameMode::NoReplace | RenameMode::WhiteoutNoReplace);
        if refuses && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if target == Some(source) {
            return Ok((None, false));
        }
        if let Some(target) = target {
            if is_exchange {
                self.detach(from.0, from.1);
                self.detach(to.0, to.1);
                self.attach(to.0, to.1, source);
                self.attach(from.0, from.1, target);
                return Ok((None, false));
            }
            match (is_directory(source), is_directory(target)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.file(target).entries.is_empty() => {
                    return Err(Errno::ENOTEMPTY);
                }
                _ => {}
            }
            self.detach(to.0, to.1);
            let lost = self.file_mut(target);
            lost.links = match lost.kind {
                FileKind::Directory => 0,
                _ => lost.links - 1,
            };
        }
        self.detach(from.0, from.1);
        self.attach(to.0, to.1, source);
        let whiteout = matches!(mode, RenameMode::Whiteout | RenameMode::WhiteoutNoReplace);
        Ok((target, whiteout))
    }

    pub fn write(&mut self, number: u64, offset: usize, bytes: &[u8]) {
        let content = &mut self.file_mut(number).content;
        let end = offset + bytes.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset..end].copy_from_slice(bytes);
    }
    pub fn zero(&mut self, number: u64, offset: usize, length: usize, extends: bool) {
        let content = &mut self.file_mut(number).content;
        let end = offset + length;
        if extends && content.len() < end {
            content.resize(end, 0);
        }
        let end = end.min(content.len());
        if offset < end {
            content[offset..end].fill(0);
        }
    }

    /// All reachable directories, with their paths.
    pub fn directories(&self) -> Vec<(u64, Vec<Vec<u8>>)> {
        let mut found = vec![(ROOT, vec![])];
        let mut at = 0;
        while let Some((number, path)) = found.get(at).cloned() {
            at += 1;
            for (name, child) in &self.file(number).entries {
                if self.file(*child).kind == FileKind::Directory {
                    let mut path = path.clone();
                    path.push(name.clone());
                    found.push((*child, path));
                }
            }
        }
        found
    }
}
