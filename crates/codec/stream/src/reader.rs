//! Reads streams.

use crate::HEADER_BYTES;
use crate::begin::{MAGIC, MAGIC_AT};
use crate::error::StreamError;
use crate::field::{Field, Header};
use crate::record::{CHECKSUM_AT, Record};
use millpond_checksum::Fletcher4;
use millpond_ondisk::Endian;
use std::io::Read;

/// A payload is read in pieces of this size, so that a lying length costs no more memory than the input has.
const PIECE_BYTES: usize = 1 << 20;

/// A record whose header and payload have the right checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The record.
    pub record: Record,
    /// Its payload.
    pub payload: Vec<u8>,
    /// The byte order of the stream.
    pub endian: Endian,
    /// Where it begins, in bytes from the start of the input.
    pub at: u64,
}

/// A source of verified records, in the order of a stream or package.
pub trait RecordSource {
    /// The next record; `None` after the end of the stream or package.
    ///
    /// # Errors
    /// [`StreamError`]. Nothing can be read after it.
    fn take(&mut self) -> Result<Option<Taken>, StreamError>;
}

/// Reads records in order.
///
/// The checksum of a record's payload is in the header after it. So a record is returned only when the next header
/// was read.
#[derive(Debug)]
pub struct StreamReader<R> {
    input: R,
    at: u64,
    endian: Endian,
    sum: Fletcher4,
    /// Whether checksums are verified.
    verifies: bool,
    /// The next record, whose payload is not covered yet, with the checksum in its header.
    next: Option<(Taken, [u64; 4])>,
    /// The checksum in the header of the record that was returned last.
    stored_checksum: [u64; 4],
    /// Whether a stream, or the header of a package, has begun and not ended.
    is_within: bool,
    /// Whether packages began whose end was not read.
    is_package: bool,
}

impl<R: Read> RecordSource for StreamReader<R> {
    fn take(&mut self) -> Result<Option<Taken>, StreamError> {
        StreamReader::take(self)
    }
}

impl<R: Read> StreamReader<R> {
    /// Reads from the start of a stream or package.
    pub fn new(input: R) -> Self {
        Self {
            input,
            at: 0,
            endian: Endian::Little,
            sum: Fletcher4::new(),
            verifies: true,
            next: None,
            stored_checksum: [0; 4],
            is_within: false,
            is_package: false,
        }
    }

    /// Like [`Self::new`], but checksums are not verified: to look at a damaged stream, not to use it.
    pub fn without_checksums(input: R) -> Self {
        Self {
            verifies: false,
            ..Self::new(input)
        }
    }

    /// The checksum in the header of the record that was returned last. Zeros if it has none.
    pub fn stored_checksum(&self) -> [u64; 4] {
        self.stored_checksum
    }

    /// The next record; `None` after the end of the stream or package.
    ///
    /// # Errors
    /// [`StreamError`]. Nothing can be read after it.
    pub fn take(&mut self) -> Result<Option<Taken>, StreamError> {
        let (taken, stored) = match self.next.take() {
            Some(next) => next,
            None => match self.read_next()? {
                Some(next) => next,
                None => return Ok(None),
            },
        };
        // The end of a stream has no payload, and what follows has a checksum of its own.
        if !matches!(taken.record, Record::End(_)) {
            self.next = self.read_next()?;
            if self.next.is_none() {
                return Err(StreamError::Truncated { at: self.at });
            }
        }
        self.stored_checksum = stored;
        Ok(Some(taken))
    }

    /// Reads a record. Its header is verified, its payload is not.
    fn read_next(&mut self) -> Result<Option<(Taken, [u64; 4])>, StreamError> {
        let at = self.at;
        let invalid = |reason| StreamError::Invalid { at, reason };
        let is_last = !self.is_within && !self.is_package && at > 0;
        if is_last {
            return Ok(None);
        }
        let mut header: Header = [0; HEADER_BYTES];
        self.fill(&mut header)?;
        if !self.is_within {
            self.sum = Fletcher4::new();
            let kind = u32::load(&header, 0, self.endian);
            if self.is_package && kind == 5 {
                // The last record of a package has no checksum.
                self.is_package = false;
                let record = Record::load(&header, self.endian).map_err(invalid)?;
                return Ok(Some((self.taken(record, vec![], at), [0; 4])));
            }
            self.endian = match u64::load(&header, MAGIC_AT, Endian::Little) {
                MAGIC => Endian::Little,
                magic if magic.swap_bytes() == MAGIC => Endian::Big,
                _ => return Err(StreamError::Magic),
            };
        }
        let record = Record::load(&header, self.endian).map_err(invalid)?;
        match (&record, self.is_within) {
            (Record::Begin(begin), false) => {
                self.is_package |= begin.kind == crate::StreamKind::Package;
            }
            (Record::Begin(_), true) => return Err(invalid("a stream begins within another")),
            (_, false) => return Err(invalid("the stream has not begun")),
            (_, true) => {}
        }
        self.verify(&header, &record)?;
        self.is_within = !matches!(record, Record::End(_));
        let length = record.payload_bytes().map_err(invalid)?;
        let payload = self.payload(length)?;
        let stored = match record {
            Record::Begin(_) => [0; 4],
            _ => <[u64; 4]>::load(&header, CHECKSUM_AT, self.endian),
        };
        Ok(Some((self.taken(record, payload, at), stored)))
    }

    fn taken(&self, record: Record, payload: Vec<u8>, at: u64) -> Taken {
        Taken {
            record,
            payload,
            endian: self.endian,
            at,
        }
    }

    /// Verifies the checksums in a header, which also cover the payload before it.
    fn verify(&mut self, header: &Header, record: &Record) -> Result<(), StreamError> {
        let before = self.sum.words();
        let (covered, stored) = header.split_at(CHECKSUM_AT);
        self.cover(covered)?;
        if !matches!(record, Record::Begin(_)) {
            let found = <[u64; 4]>::load(header, CHECKSUM_AT, self.endian);
            // Four zeros mean that there is none.
            let is_right = found == self.sum.words() || found == [0; 4];
            let ends_right = match record {
                Record::End(end) => end.checksum == before,
                _ => true,
            };
            if self.verifies && !(is_right && ends_right) {
                return Err(StreamError::Checksum { at: self.at });
            }
        }
        self.cover(stored)
    }

    fn cover(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        let covered = self.sum.update(bytes, self.endian);
        covered.map_err(|_| StreamError::Invalid {
            at: self.at,
            reason: "a payload of broken words",
        })
    }

    fn payload(&mut self, length: u64) -> Result<Vec<u8>, StreamError> {
        let mut left = usize::try_from(length).unwrap_or(usize::MAX);
        let mut payload = vec![];
        while left > 0 {
            let from = payload.len();
            let more = left.min(PIECE_BYTES);
            payload.resize(from.saturating_add(more), 0);
            self.fill(payload.get_mut(from..).unwrap_or_default())?;
            left = left.saturating_sub(more);
        }
        self.cover(&payload)?;
        Ok(payload)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), StreamError> {
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) => return Err(StreamError::Truncated { at: self.at }),
                Ok(count) => {
                    done = done.saturating_add(count);
                    self.at = self.at.saturating_add(count as u64);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
