//! Copies between files.

use super::{WriteAt, check_regular};
use crate::error::FileError;
use crate::settings::Caller;
use crate::{FileSystem, Node};
use millpond_env::sync::Arc;

impl FileSystem {
    /// Copies a range from one file to another, or within one file if the ranges do not overlap.
    ///
    /// Returns how many bytes were copied, which is less if the source ends before. Holes are not preserved.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for overlapping ranges of one file; otherwise as for reads and writes.
    pub fn copy_range(
        &self,
        caller: &Caller,
        from: (&Node, u64),
        to: (&Node, u64),
        length_bytes: u64,
    ) -> Result<u64, FileError> {
        let ((source, from), (target, to)) = (from, to);
        check_regular(source.kind())?;
        check_regular(target.kind())?;
        let changed = target.for_change()?;
        // A file of a snapshot is another file, even with the same object id.
        let is_same =
            (source.open_node()).is_some_and(|from| Arc::ptr_eq(&from.inner, &changed.inner));
        // The current end of the source: copying within one file may move it.
        let length_bytes = length_bytes.min(source.size_bytes().saturating_sub(from));
        let overlaps =
            from < to.saturating_add(length_bytes) && to < from.saturating_add(length_bytes);
        if is_same && overlaps {
            return Err(FileError::invalid("the ranges overlap"));
        }
        let piece = u64::from(self.record_bytes())
            .max(1 << 20)
            .min(length_bytes);
        let mut buffer = vec![0u8; piece as usize];
        let mut done = 0;
        while done < length_bytes {
            let wanted = piece.min(length_bytes - done) as usize;
            let offset = from.checked_add(done).ok_or(FileError::TooLarge)?;
            let count = source.read(offset, &mut buffer[..wanted])?;
            if count == 0 {
                break;
            }
            let offset = to.checked_add(done).ok_or(FileError::TooLarge)?;
            let written = self.write(caller, target, WriteAt::Offset(offset), &buffer[..count]);
            match written {
                Err(_) if done > 0 => break,
                written => written?,
            };
            done += count as u64;
        }
        Ok(done)
    }
}
