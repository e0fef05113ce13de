//! Encodes replies and notices into a buffer that the caller provides.

use super::REPLY_HEADER_BYTES;
use std::ops::Range;

/// A reply under construction.
///
/// Bytes that do not fit the buffer are dropped, and [`Reply::finish`] then returns an error reply. A reply
/// is never truncated.
#[derive(Debug)]
pub struct Reply<'b> {
    buffer: &'b mut [u8],
    length: usize,
    is_overfull: bool,
}

/// How long the kernel may cache a reply, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryValidity {
    /// How long the name may be cached as referring to this file.
    pub entry_s: u64,
    /// How long the attributes may be cached.
    pub attributes_s: u64,
}

/// A file's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attributes {
    pub inode: u64,
    pub size_bytes: u64,
    pub sectors: u64,
    pub atime: StatxTime,
    pub mtime: StatxTime,
    pub ctime: StatxTime,
    pub birth: StatxTime,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// The major and minor device number.
    pub device: (u32, u32),
    pub block_bytes: u32,
    /// The bits of `statx`'s `stx_attributes`.
    pub flags: u64,
}

/// Seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatxTime {
    /// May be negative.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Encodes a device number for a reply.
#[must_use]
pub fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

impl<'b> Reply<'b> {
    /// Creates an empty reply in `buffer`, which must be longer than the header.
    #[must_use]
    pub fn new(buffer: &'b mut [u8]) -> Self {
        Self {
            buffer,
            length: REPLY_HEADER_BYTES,
            is_overfull: false,
        }
    }
    /// Removes everything added so far.
    pub fn clear(&mut self) {
        self.length = REPLY_HEADER_BYTES;
        self.is_overfull = false;
    }
    /// The size of the arguments and data so far, in bytes.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.length.saturating_sub(REPLY_HEADER_BYTES)
    }
    /// Adds bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        let room = self.buffer.get_mut(self.length..);
        match room.and_then(|room| room.get_mut(..bytes.len())) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            None => self.is_overfull = true,
        }
    }
    /// Adds a number.
    pub fn put_u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }
    /// Adds a number.
    pub fn put_u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }
    /// Adds a number.
    pub fn put_u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }
    /// Returns up to `length` bytes of the buffer, for the caller to fill.
    ///
    /// The caller reports with [`Reply::filled`] how many bytes it filled.
    pub fn room(&mut self, length: usize) -> &mut [u8] {
        let from = self.length.min(self.buffer.len());
        let room = self.buffer.get_mut(from..).unwrap_or_default();
        let length = length.min(room.len());
        room.get_mut(..length).unwrap_or_default()
    }
    /// Adds the bytes that the caller put into [`Reply::room`].
    pub fn filled(&mut self, length: usize) {
        self.length = self.length.saturating_add(length).min(self.buffer.len());
    }
    /// Completes the reply. With an error (a positive number) the reply holds only the error.
    #[must_use]
    pub fn finish(mut self, unique: u64, error: i32) -> &'b [u8] {
        const EIO: i32 = 5;
        let error = if self.is_overfull { EIO } else { error };
        let length = match error {
            0 => self.length,
            _ => REPLY_HEADER_BYTES,
        };
        self.length = 0;
        self.is_overfull = false;
        self.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        self.put(&error.saturating_neg().to_ne_bytes());
        self.put_u64(unique);
        let Self { buffer, .. } = self;
        buffer.get(..length).unwrap_or_default()
    }

    /// Adds attributes in the older format, without the birth time.
    pub fn put_attributes(&mut self, a: &Attributes) {
        for word in [a.inode, a.size_bytes, a.sectors] {
            self.put_u64(word);
        }
        for time in [a.atime, a.mtime, a.ctime] {
            self.put_u64(time.seconds.cast_unsigned());
        }
        for time in [a.atime, a.mtime, a.ctime] {
            self.put_u32(time.nanoseconds);
        }
        let device = encode_device(a.device.0, a.device.1);
        for word in [a.mode, a.links, a.uid, a.gid, device, a.block_bytes, 0] {
            self.put_u32(word);
        }
    }
    /// Adds the reply to `GETATTR` and `SETATTR`.
    pub fn put_attributes_reply(&mut self, validity: EntryValidity, attributes: &Attributes) {
        self.put_u64(validity.attributes_s);
        self.put_u64(0);
        self.put_attributes(attributes);
    }
    /// Adds the reply to `STATX`.
    pub fn put_statx_reply(&mut self, validity: EntryValidity, a: &Attributes) {
        /// All basic fields, and the birth time.
        const MASK: u32 = 0x7ff | 0x800;
        /// Compressed, immutable, append-only, nodump.
        const KNOWN_FLAGS: u64 = 0x4 | 0x10 | 0x20 | 0x40;
        self.put_u64(validity.attributes_s);
        self.put(&[0; 24]);
        self.put_u32(MASK);
        self.put_u32(a.block_bytes);
        self.put_u64(a.flags);
        for word in [a.links, a.uid, a.gid] {
            self.put_u32(word);
        }
        self.put_u16((a.mode & 0xffff) as u16);
        self.put_u16(0);
        for word in [a.inode, a.size_bytes, a.sectors, KNOWN_FLAGS] {
            self.put_u64(word);
        }
        for time in [a.atime, a.birth, a.ctime, a.mtime] {
            self.put_u64(time.seconds.cast_unsigned());
            self.put_u32(time.nanoseconds);
            self.put_u32(0);
        }
        for word in [a.device.0, a.device.1, 0, 0] {
            self.put_u32(word);
        }
        self.put(&[0; 112]);
    }
    /// Adds a directory entry that was found or created.
    pub fn put_entry(
        &mut self,
        node: u64,
        generation: u64,
        validity: EntryValidity,
        attributes: &Attributes,
    ) {
        for word in [node, generation, validity.entry_s, validity.attributes_s] {
            self.put_u64(word);
        }
        self.put_u64(0);
        self.put_attributes(attributes);
    }
    /// Adds a negative entry: the kernel caches that the name does not exist.
    pub fn put_absence(&mut self, entry_s: u64) {
        self.put_u64(0);
        self.put_u64(0);
        self.put_u64(entry_s);
        self.put(&[0; 104]);
    }
    /// Adds an open file. There is no handle, because nodes identify files.
    pub fn put_open(&mut self, flags: u32) {
        self.put_u64(0);
        self.put_u32(flags);
        self.put_u32(0);
    }
}

/// Fills a reply with directory entries, up to the requested size.
#[derive(Debug)]
pub struct DirectoryWriter {
    left: usize,
}

/// The size of an entry without its name, in bytes.
const ENTRY_BYTES: usize = 24;
/// The size of the file's attributes before an entry that includes them, in bytes.
const DESCRIPTION_BYTES: usize = 128;

impl DirectoryWriter {
    /// A writer for up to `length` bytes.
    #[must_use]
    pub fn new(length: u32) -> Self {
        Self {
            left: length as usize,
        }
    }
    /// Whether an entry with this name fits.
    #[must_use]
    pub fn fits(&self, name: &[u8], with_attributes: bool) -> bool {
        let description = if with_attributes {
            DESCRIPTION_BYTES
        } else {
            0
        };
        description + (ENTRY_BYTES + name.len()).next_multiple_of(8) <= self.left
    }
    /// Adds an entry. If it includes attributes, they must already be in the reply.
    pub fn put(
        &mut self,
        reply: &mut Reply<'_>,
        name: &[u8],
        (inode, cookie, kind): (u64, u64, u32),
        with_attributes: bool,
    ) {
        reply.put_u64(inode);
        reply.put_u64(cookie);
        reply.put_u32(u32::try_from(name.len()).unwrap_or(u32::MAX));
        reply.put_u32(kind);
        reply.put(name);
        let bytes = (ENTRY_BYTES + name.len()).next_multiple_of(8);
        let padding = [0; 8];
        reply.put(&padding[..bytes - ENTRY_BYTES - name.len()]);
        let description = if with_attributes {
            DESCRIPTION_BYTES
        } else {
            0
        };
        self.left = self.left.saturating_sub(bytes + description);
    }
}

/// A notice that the kernel's cached attributes and content of a file are invalid.
#[must_use]
pub fn notify_invalidate_inode(node: u64) -> Vec<u8> {
    invalidate_inode(node, 0, 0)
}
/// A notice that the kernel's cached attributes of a file are invalid. Its content stays.
#[must_use]
pub fn notify_invalidate_attributes(node: u64) -> Vec<u8> {
    // A negative offset.
    invalidate_inode(node, u64::MAX, 0)
}
/// A notice that the kernel's cached attributes of a file are invalid, and its pages with these bytes. The kernel writes
/// those that were changed before it drops them. For an empty range, all pages are meant.
#[must_use]
pub fn notify_invalidate_pages(node: u64, bytes: Range<u64>) -> Vec<u8> {
    let signed_max = u64::MAX >> 1;
    let start = bytes.start.min(signed_max);
    let end = bytes.end.min(signed_max);
    invalidate_inode(node, start, end.saturating_sub(start))
}
fn invalidate_inode(node: u64, offset: u64, length: u64) -> Vec<u8> {
    let mut notice = notice(2, 24);
    notice.extend(node.to_ne_bytes());
    notice.extend(offset.to_ne_bytes());
    notice.extend(length.to_ne_bytes());
    notice
}
/// A notice that a name in a directory may refer to another file now.
#[must_use]
pub fn notify_invalidate_entry(directory: u64, name: &[u8]) -> Vec<u8> {
    let mut notice = notice(3, 17 + name.len());
    notice.extend(directory.to_ne_bytes());
    notice.extend(u32::try_from(name.len()).unwrap_or(u32::MAX).to_ne_bytes());
    notice.extend(0u32.to_ne_bytes());
    notice.extend(name);
    notice.push(0);
    notice
}
/// A notice that any name may refer to another file now (7.44).
#[must_use]
pub fn notify_epoch() -> Vec<u8> {
    notice(8, 0)
}

/// The start of a notice: a reply to request 0, with the notice type in the error field.
fn notice(code: i32, body_bytes: usize) -> Vec<u8> {
    let length = REPLY_HEADER_BYTES + body_bytes;
    let mut notice = Vec::with_capacity(length);
    notice.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    notice.extend(code.to_ne_bytes());
    notice.extend(0u64.to_ne_bytes());
    notice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> Attributes {
        let time = StatxTime {
            seconds: -1,
            nanoseconds: 5,
        };
        Attributes {
            inode: 34,
            size_bytes: 3,
            sectors: 1,
            atime: time,
            mtime: time,
            ctime: time,
            birth: time,
            mode: 0o100_644,
            links: 1,
            uid: 1000,
            gid: 100,
            device: (0, 0),
            block_bytes: 131_072,
            flags: 0,
        }
    }
    const LONG: EntryValidity = EntryValidity {
        entry_s: 60,
        attributes_s: 60,
    };

    #[test]
    fn structures_have_the_lengths_that_the_kernel_expects() {
        let mut buffer = [0; 1024];
        let mut length = |put: &dyn Fn(&mut Reply<'_>)| {
            let mut reply = Reply::new(&mut buffer);
            put(&mut reply);
            reply.body_bytes()
        };
        assert_eq!(length(&|r| r.put_attributes(&attributes())), 88);
        assert_eq!(
            length(&|r| r.put_attributes_reply(LONG, &attributes())),
            104
        );
        assert_eq!(length(&|r| r.put_statx_reply(LONG, &attributes())), 288);
        assert_eq!(length(&|r| r.put_entry(2, 1, LONG, &attributes())), 128);
        assert_eq!(length(&|r| r.put_absence(1)), 128);
        assert_eq!(length(&|r| r.put_open(0)), 16);
    }

    #[test]
    fn a_reply_that_does_not_fit_becomes_an_error() {
        let mut buffer = [0; 40];
        let mut reply = Reply::new(&mut buffer);
        reply.put_attributes(&attributes());
        let bytes = reply.finish(9, 0).to_vec();
        assert_eq!(bytes.len(), 16);
        assert_eq!(bytes[4..8], (-5i32).to_ne_bytes());
        let mut reply = Reply::new(&mut buffer);
        reply.put(b"half");
        let bytes = reply.finish(9, 2).to_vec();
        assert_eq!(
            (bytes.len(), &bytes[4..8]),
            (16, &(-2i32).to_ne_bytes()[..])
        );
    }

    #[test]
    fn entries_of_directories_are_padded_to_eight_bytes() {
        let mut buffer = [0xff; 256];
        let mut reply = Reply::new(&mut buffer);
        let mut writer = DirectoryWriter::new(64);
        assert!(writer.fits(b"abcde", false));
        writer.put(&mut reply, b"abcde", (7, 9, 8), false);
        assert_eq!(reply.body_bytes(), 32);
        assert!(writer.fits(b"12345678", false));
        assert!(!writer.fits(b"123456789", false));
        assert!(!writer.fits(b"a", true));
    }

    #[test]
    fn notifications_have_their_length() {
        for notice in [
            notify_invalidate_inode(5),
            notify_invalidate_attributes(5),
            notify_invalidate_entry(1, b"name"),
            notify_epoch(),
        ] {
            let length = u32::from_ne_bytes(*notice.first_chunk().unwrap());
            assert_eq!(length as usize, notice.len());
        }
    }
}
