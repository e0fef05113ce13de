//! Lists directories.

use super::{Answered, Handler, Refusal};
use crate::abi::{DATA_BYTES_MAX, DirectoryWriter, OPEN_CACHE_DIR, OPEN_KEEP_CACHE, Reply};
use millpond_posix::vfs::{VfsEntry, VfsNode};

/// The most entries listed in one call. It matches an ordinary reply, because a directory whose table is
/// unordered is sorted anew for each call.
const BATCH: usize = 1024;
/// The minimum size of an entry in a reply, without and with attributes, in bytes.
const ENTRY_BYTES: usize = 32;
const ENTRY_BYTES_WITH_ATTRIBUTES: usize = 160;

impl Handler<'_> {
    /// Replies to opening a directory. Unlike for files, this request is needed: only its reply can say which
    /// listings the kernel may cache.
    pub(super) fn open_directory(&self, node: u64, reply: &mut Reply<'_>) -> Answered {
        let node = self.node(node)?;
        // The root directory lists `.zfs` or not, as the property `snapdir` says.
        let changes_by_itself = node.is_virtual() || node.number() == self.session.root();
        reply.put_open(match changes_by_itself {
            true => 0,
            false => OPEN_KEEP_CACHE | OPEN_CACHE_DIR,
        });
        Ok(())
    }

    pub(super) fn read_directory(
        &self,
        node: u64,
        cookie: u64,
        length: u32,
        with_attributes: bool,
        reply: &mut Reply<'_>,
    ) -> Answered {
        let node = self.node(node)?;
        if cookie == 0 {
            self.vfs.touch_atime(&node);
        }
        let length = length.min(DATA_BYTES_MAX as u32);
        let mut writer = DirectoryWriter::new(length);
        let mut cookie = cookie;
        let smallest = match with_attributes {
            true => ENTRY_BYTES_WITH_ATTRIBUTES,
            false => ENTRY_BYTES,
        };
        loop {
            let left = (length as usize).saturating_sub(reply.body_bytes());
            let count = (left / smallest).clamp(1, BATCH);
            let entries = match self.vfs.list(&node, cookie, count) {
                Ok(entries) => entries,
                // Return the entries before the error first. The next request reports the error.
                Err(_) if reply.body_bytes() > 0 => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                if !writer.fits(&entry.name, with_attributes) {
                    return match reply.body_bytes() {
                        0 => Err(Refusal::Number(super::EINVAL)),
                        _ => Ok(()),
                    };
                }
                cookie = entry.cookie;
                if with_attributes {
                    self.describe(&node, &entry, reply);
                }
                let kind = entry.kind.map_or(0, |kind| kind.entry_type() as u32);
                let line = (entry.number.0, entry.cookie, kind);
                writer.put(reply, &entry.name, line, with_attributes);
            }
        }
    }

    /// Adds the attributes of an entry's file before the entry. Without them the kernel looks the name up.
    fn describe(&self, directory: &VfsNode, entry: &VfsEntry, reply: &mut Reply<'_>) {
        let is_described = !directory.is_virtual() && !matches!(&*entry.name, b"." | b"..");
        let found = is_described
            .then(|| self.vfs.node(entry.number, 0).ok())
            .flatten();
        let found_attributes = found.and_then(|node| Some((self.attributes_of(&node).ok()?, node)));
        let Some(((validity, attributes), node)) = found_attributes else {
            reply.put_absence(0);
            return;
        };
        let number = self.session.node_number(node.number());
        reply.put_entry(number, node.generation(), validity, &attributes);
        self.session.inodes.add(&node);
    }
}
