//! Files of pools as sources.
//!
//! They are either in a pool opened for reading, or in the destination pool in its current state.

use super::source::{Entry, Facts, Source, Xattrs};
use crate::verbs::content::Content;
use millpond::{
    FileError, FileKind, FileSystem, LiveFileSystem, LiveNode, Node, ObjectId, Seek, Stat,
};
use millpond_env::sync::Arc;

/// A file of a pool opened for reading, or of a snapshot.
pub struct ReadFile {
    /// Number of its dataset.
    pub source: u64,
    pub files: Arc<FileSystem>,
    pub node: Node,
    facts: Facts,
}

impl ReadFile {
    /// Reads the attributes of a file.
    ///
    /// # Errors
    /// If the attributes cannot be read.
    pub fn new(source: u64, files: Arc<FileSystem>, node: Node) -> Result<Self, String> {
        let stat = node.stat().map_err(|error| error.to_string())?;
        Ok(Self {
            facts: facts(source, &stat),
            source,
            files,
            node,
        })
    }
}

fn facts(source: u64, stat: &Stat) -> Facts {
    Facts {
        kind: stat.kind,
        permissions: stat.permissions,
        uid: stat.uid,
        gid: stat.gid,
        size_bytes: stat.size_bytes,
        atime: stat.atime,
        mtime: stat.mtime,
        device: stat.device,
        links: stat.links,
        id: (source, stat.id.0),
    }
}

impl Source for ReadFile {
    fn facts(&self) -> Facts {
        self.facts
    }
    fn entries(&self) -> Result<Vec<Entry>, String> {
        let mut entries = vec![];
        for entry in self.node.entries().map_err(|error| error.to_string())? {
            let entry = entry.map_err(|error| format!("its names cannot be read: {error}"))?;
            entries.push(Entry {
                name: entry.name,
                kind: entry.kind,
                number: entry.id.0,
            });
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }
    fn child(&self, entry: &Entry) -> Result<Arc<dyn Source>, String> {
        let node = self.files.node(ObjectId(entry.number));
        let node = node.map_err(|error| error.to_string())?;
        let child = Self::new(self.source, Arc::clone(&self.files), node)?;
        Ok(Arc::new(child))
    }
    fn link_target(&self) -> Result<Vec<u8>, String> {
        let target = self.node.link_target().map_err(|error| error.to_string())?;
        Ok(target.ok_or("the link leads nowhere")?)
    }
    fn xattrs(&self) -> Result<Xattrs, String> {
        let mut xattrs = vec![];
        for name in self.node.xattr_names().map_err(|error| error.to_string())? {
            let value = self.node.xattr(&name).map_err(|error| error.to_string())?;
            xattrs.extend(value.map(|value| (name, value)));
        }
        Ok(xattrs)
    }
    fn next_data(&self, from_bytes: u64) -> Result<Option<(u64, u64)>, String> {
        let Some(piece) = Content::from(&self.node).next_piece(from_bytes) else {
            return Ok(None);
        };
        match piece.lost {
            Some(reason) => Err(reason),
            None => {
                let end = piece.offset_bytes + piece.length_bytes;
                Ok(Some((piece.offset_bytes, end)))
            }
        }
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<usize, String> {
        let left = self.facts.size_bytes.saturating_sub(offset_bytes);
        let count = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = self.node.read(offset_bytes, &mut buffer[..count]);
        read.map_err(|error| error.to_string())?;
        Ok(count)
    }
}

/// A file of the destination pool.
pub struct OpenFile {
    pub files: Arc<LiveFileSystem>,
    pub node: LiveNode,
    /// Number of its dataset.
    pub source: u64,
}

fn told(error: FileError) -> String {
    error.to_string()
}

impl Source for OpenFile {
    fn facts(&self) -> Facts {
        facts(self.source, &self.files.stat(&self.node))
    }
    fn entries(&self) -> Result<Vec<Entry>, String> {
        let mut entries = vec![];
        let mut cookie = 0;
        loop {
            let listed = self.files.list(&self.node, cookie, BATCH).map_err(told)?;
            let Some(last) = listed.last() else { break };
            cookie = last.cookie;
            entries.extend(
                listed
                    .into_iter()
                    .map(|listed| listed.entry)
                    .filter(|entry| entry.name != b"." && entry.name != b"..")
                    .map(|entry| Entry {
                        name: entry.name,
                        kind: entry.kind,
                        number: entry.id.0,
                    }),
            );
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }
    fn child(&self, entry: &Entry) -> Result<Arc<dyn Source>, String> {
        Ok(Arc::new(Self {
            files: Arc::clone(&self.files),
            node: self.files.node(ObjectId(entry.number)).map_err(told)?,
            source: self.source,
        }))
    }
    fn link_target(&self) -> Result<Vec<u8>, String> {
        self.files.link_target(&self.node).map_err(told)
    }
    fn xattrs(&self) -> Result<Xattrs, String> {
        let mut xattrs = vec![];
        for name in self.files.xattr_names(&self.node).map_err(told)? {
            let value = self.files.xattr(&self.node, &name).map_err(told)?;
            xattrs.push((name, value));
        }
        Ok(xattrs)
    }
    fn next_data(&self, from_bytes: u64) -> Result<Option<(u64, u64)>, String> {
        if self.node.kind() != FileKind::Regular {
            return Ok(None);
        }
        let seek = |what, from| self.files.seek(&self.node, what, from);
        let start = match seek(Seek::Data, from_bytes) {
            Ok(start) => start,
            Err(FileError::NoData) => return Ok(None),
            Err(error) => return Err(told(error)),
        };
        let end = seek(Seek::Hole, start).map_err(told)?;
        Ok(Some((start, end)))
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<usize, String> {
        self.files
            .read(&self.node, offset_bytes, buffer)
            .map_err(told)
    }
}

/// Number of names per listing request.
const BATCH: usize = 1024;
