//! `zfs rewrite`: asks mounted file systems through the kernel to store files again.

use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_service::RewriteRange;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The length of one request in bytes. A person can stop the command between two of them.
const PIECE_BYTES: u64 = 64 << 20;

/// What to do with each file.
struct Task {
    offset_bytes: u64,
    /// 0 reaches to the end of each file.
    length_bytes: u64,
    keeps_births: bool,
    is_recursive: bool,
    stays_in_file_system: bool,
    is_verbose: bool,
}

/// Rewrites the named files, and with `-r` those below the named directories. The status is the number of the last error.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let number = |option| number(parsed.value(option).unwrap_or("0"));
    let task = Task {
        offset_bytes: number("o"),
        length_bytes: number("l"),
        keeps_births: parsed.has("P"),
        is_recursive: parsed.has("r"),
        stays_in_file_system: parsed.has("x"),
        is_verbose: parsed.has("v"),
    };
    let mut last = None;
    for operand in &parsed.operands {
        last = task.visit(session, Path::new(operand))?.or(last);
    }
    Ok(last.map_or(0, |error| u8::try_from(error.raw_os_error()).unwrap_or(1)))
}

impl Task {
    /// Rewrites one operand and what is below it. Returns the last error, which is printed already.
    fn visit(&self, session: &mut Session, top: &Path) -> Result<Option<Errno>, Failure> {
        let mut last = None;
        let mut device = None;
        // The files of a directory come before what is in the directories below it.
        let mut queue = VecDeque::from([vec![top.to_owned()]]);
        while let Some(paths) = queue.pop_front() {
            for path in paths {
                let stat = match std::fs::symlink_metadata(&path) {
                    Ok(stat) => stat,
                    Err(error) => {
                        last = Some(tell(session, "stat", &path, errno(&error))?);
                        continue;
                    }
                };
                if self.stays_in_file_system && *device.get_or_insert(stat.dev()) != stat.dev() {
                    continue;
                }
                if stat.is_file() {
                    last = self.rewrite(session, &path, stat.len())?.or(last);
                } else if stat.is_dir() && self.is_recursive {
                    match entries(&path) {
                        Ok(below) => queue.push_back(below),
                        Err(error) => last = Some(tell(session, "opendir", &path, error)?),
                    }
                }
            }
        }
        Ok(last)
    }

    fn rewrite(
        &self,
        session: &mut Session,
        path: &Path,
        size_bytes: u64,
    ) -> Result<Option<Errno>, Failure> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let file = match opened {
            Ok(file) => file,
            Err(error) => return tell(session, "open", path, error).map(Some),
        };
        // The name may lead to something else by now.
        let is_file = rustix::fs::fstat(&file)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        if !is_file {
            return Ok(None);
        }
        for (offset_bytes, length_bytes) in self.pieces(size_bytes) {
            let range = RewriteRange {
                offset_bytes,
                length_bytes,
                flags: match self.keeps_births {
                    true => RewriteRange::KEEPS_BIRTHS,
                    false => 0,
                },
                argument: 0,
            };
            if let Err(error) = range.apply_to(&file) {
                return tell(session, "rewrite", path, error).map(Some);
            }
        }
        if self.is_verbose {
            writeln!(session.out, "{}", path.display())?;
        }
        Ok(None)
    }

    /// The requests for a file of this size: offsets and lengths in bytes. One at least, so that a file system that cannot
    /// do it says so.
    fn pieces(&self, size_bytes: u64) -> Vec<(u64, u64)> {
        let end = match self.length_bytes {
            0 => size_bytes,
            length => self.offset_bytes.saturating_add(length).min(size_bytes),
        };
        let mut pieces = vec![];
        let mut from = self.offset_bytes;
        loop {
            let to = from.saturating_add(PIECE_BYTES).min(end);
            // A length of 0 would reach to the end.
            pieces.push((from, to.saturating_sub(from).max(1)));
            if to >= end {
                return pieces;
            }
            from = to;
        }
    }
}

/// The files and directories in a directory.
fn entries(path: &Path) -> Result<Vec<PathBuf>, Errno> {
    let entries = std::fs::read_dir(path).and_then(|entries| {
        let paths = entries.map(|entry| Ok(entry?.path()));
        paths.collect::<std::io::Result<Vec<PathBuf>>>()
    });
    entries.map_err(|error| errno(&error))
}

fn errno(error: &std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}

fn tell(session: &mut Session, what: &str, path: &Path, error: Errno) -> Result<Errno, Failure> {
    let why = std::io::Error::from(error);
    writeln!(session.err, "failed to {what} {}: {why}", path.display())?;
    Ok(error)
}

/// A number as C's `strtoull` with base 0 reads it: with an octal or hexadecimal prefix, up to the first other character.
fn number(text: &str) -> u64 {
    let text = text.trim_start();
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (base, digits) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None if text.starts_with('0') => (8, text),
        None => (10, text),
    };
    let digits = digits.chars().map_while(|digit| digit.to_digit(base));
    let value = digits.fold(0u64, |value, digit| {
        let value = value.saturating_mul(u64::from(base));
        value.saturating_add(u64::from(digit))
    });
    match is_negative {
        true => value.wrapping_neg(),
        false => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_in_c() {
        assert_eq!(number("4096"), 4096);
        assert_eq!(number("0x1000"), 4096);
        assert_eq!(number("010"), 8);
        assert_eq!(number("12k"), 12);
        assert_eq!(number("abc"), 0);
        assert_eq!(number("-1"), u64::MAX);
        assert_eq!(number("99999999999999999999"), u64::MAX);
    }

    #[test]
    fn the_pieces_cover_the_range_and_no_more() {
        let task = |offset_bytes, length_bytes| Task {
            offset_bytes,
            length_bytes,
            keeps_births: false,
            is_recursive: false,
            stays_in_file_system: false,
            is_verbose: false,
        };
        let piece = PIECE_BYTES;
        assert_eq!(task(0, 0).pieces(10), [(0, 10)]);
        assert_eq!(task(0, 0).pieces(0), [(0, 1)]);
        assert_eq!(task(0, 0).pieces(piece), [(0, piece)]);
        assert_eq!(
            task(5, 0).pieces(2 * piece + 7),
            [(5, piece), (5 + piece, piece), (5 + 2 * piece, 2)]
        );
        assert_eq!(task(5, 3).pieces(100), [(5, 3)]);
        assert_eq!(task(500, 0).pieces(100), [(500, 1)]);
        assert_eq!(task(u64::MAX, u64::MAX).pieces(100), [(u64::MAX, 1)]);
    }
}
