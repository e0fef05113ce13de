//! Files of pools as sources: of pools opened for reading, of snapshots, and of the destination pool in its
//! current state.

use super::source::{Entry, Facts, Source, Xattrs};
use crate::verbs::content::Content;
use millpond_engine::{Extent, FileError, Node, ObjectId};
use millpond_env::sync::Arc;

/// A file of a pool.
pub struct PoolFile {
    /// Number of its dataset.
    source: u64,
    node: Node,
    facts: Facts,
}

impl PoolFile {
    /// Reads the attributes of a file.
    ///
    /// # Errors
    /// If the attributes cannot be read.
    pub fn new(source: u64, node: Node) -> Result<Self, String> {
        let stat = node.stat().map_err(error_text)?;
        let facts = Facts {
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
        };
        Ok(Self {
            source,
            node,
            facts,
        })
    }
}

fn error_text(error: FileError) -> String {
    error.to_string()
}

impl Source for PoolFile {
    fn facts(&self) -> Facts {
        self.facts
    }
    fn entries(&self) -> Result<Vec<Entry>, String> {
        let mut entries = vec![];
        for entry in self.node.entries().map_err(error_text)? {
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
        let node = self.node.file_system().node(ObjectId(entry.number));
        let child = Self::new(self.source, node.map_err(error_text)?)?;
        Ok(Arc::new(child))
    }
    fn link_target(&self) -> Result<Vec<u8>, String> {
        let target = self.node.link_target().map_err(error_text)?;
        Ok(target.ok_or("the link leads nowhere")?)
    }
    fn xattrs(&self) -> Result<Xattrs, String> {
        let mut xattrs = vec![];
        for name in self.node.xattr_names().map_err(error_text)? {
            let value = self.node.xattr(&name).map_err(error_text)?;
            xattrs.extend(value.map(|value| (name, value)));
        }
        Ok(xattrs)
    }
    fn next_data(&self, from_bytes: u64) -> Result<Option<(u64, u64)>, String> {
        if self.node.object().committed().is_none() {
            // It may change meanwhile.
            let extent = self.node.next_extent(from_bytes).map_err(error_text)?;
            let end = |extent: Extent| extent.offset_bytes + extent.length_bytes;
            return Ok(extent.map(|extent| (extent.offset_bytes, end(extent))));
        }
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
        self.node.read(offset_bytes, buffer).map_err(error_text)
    }
}
