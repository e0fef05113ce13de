//! Writes streams.

use crate::begin::Begin;
use crate::field::Field;
use crate::record::{CHECKSUM_AT, End, Record};
use millpond_checksum::Fletcher4;
use millpond_ondisk::Endian;
use std::io::{self, Write};

/// Writes records with their running checksum.
#[derive(Debug)]
pub struct StreamWriter<W> {
    output: W,
    sum: Fletcher4,
    written_bytes: u64,
}

impl<W: Write> StreamWriter<W> {
    /// Writes to `output`, with many small writes: it should be buffered.
    pub fn new(output: W) -> Self {
        Self {
            output,
            sum: Fletcher4::new(),
            written_bytes: 0,
        }
    }

    /// The output.
    pub fn output(self) -> W {
        self.output
    }

    /// The bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Begins a stream or a package. The payload is padded to whole words.
    ///
    /// # Errors
    /// Those of the output.
    pub fn begin(&mut self, begin: Begin, payload: &[u8]) -> io::Result<()> {
        self.sum = Fletcher4::new();
        let mut payload = payload.to_vec();
        payload.resize(payload.len().next_multiple_of(4), 0);
        let begin = Begin {
            payload_length: u32::try_from(payload.len()).map_err(io::Error::other)?,
            ..begin
        };
        let header = Record::Begin(Box::new(begin)).header();
        self.put(&header)?;
        self.put(&payload)
    }

    /// Writes a record with its payload, which must have the length that the record says.
    ///
    /// # Errors
    /// Those of the output.
    pub fn record(&mut self, record: &Record, payload: &[u8]) -> io::Result<()> {
        debug_assert_eq!(record.payload_bytes(), Ok(payload.len() as u64));
        let mut header = record.header();
        let (covered, _) = header.split_at(CHECKSUM_AT);
        self.cover(covered)?;
        let words = self.sum.words();
        words.store(&mut header, CHECKSUM_AT);
        let (_, stored) = header.split_at(CHECKSUM_AT);
        self.cover(stored)?;
        self.output.write_all(&header)?;
        self.written_bytes = self.written_bytes.saturating_add(header.len() as u64);
        self.put(payload)
    }

    /// Ends a stream.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end(&mut self, to_guid: u64) -> io::Result<()> {
        let end = End {
            checksum: self.sum.words(),
            to_guid,
        };
        self.record(&Record::End(end), &[])?;
        self.sum = Fletcher4::new();
        Ok(())
    }

    /// Ends the header of a package, or the package. These records have no checksum of their own.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end_package(&mut self) -> io::Result<()> {
        let end = End {
            checksum: self.sum.words(),
            to_guid: 0,
        };
        self.sum = Fletcher4::new();
        let header = Record::End(end).header();
        self.output.write_all(&header)?;
        self.written_bytes = self.written_bytes.saturating_add(header.len() as u64);
        Ok(())
    }

    /// Passes on what the output holds back.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn cover(&mut self, bytes: &[u8]) -> io::Result<()> {
        let covered = self.sum.update(bytes, Endian::Little);
        covered.map_err(io::Error::other)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.cover(bytes)?;
        self.output.write_all(bytes)?;
        self.written_bytes = self.written_bytes.saturating_add(bytes.len() as u64);
        Ok(())
    }
}
