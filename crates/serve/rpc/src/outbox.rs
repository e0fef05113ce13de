//! An answer that waits to be sent.
//!
//! It is complete before its first byte is sent, so the server holds nothing of a pool while the other end
//! reads.

use crate::stream::{Messages, StreamError, encode};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// The most bytes of an answer that stay in memory. The rest goes into an unnamed file.
const MEMORY_BYTES_MAX: usize = 1 << 20;
/// How many bytes of the file are sent at once.
const PIECE_BYTES: usize = 256 << 10;

/// Encoded messages, in order.
pub struct Outbox<'a> {
    memory: Vec<u8>,
    file: Option<File>,
    scratch: &'a dyn Fn() -> io::Result<File>,
    bytes: u64,
    bytes_max: u64,
}

impl<'a> Outbox<'a> {
    /// An empty outbox. `scratch` creates its file on demand.
    pub fn new(scratch: &'a dyn Fn() -> io::Result<File>, bytes_max: u64) -> Self {
        Self {
            memory: vec![],
            file: None,
            scratch,
            bytes: 0,
            bytes_max,
        }
    }

    /// Adds a message.
    ///
    /// # Errors
    /// A message for the caller, to be sent instead of the answer: the answer is too long, or there is no
    /// space for it.
    pub fn add(&mut self, message: &impl Serialize) -> Result<(), String> {
        let bytes = encode(message).map_err(|error| match error {
            StreamError::TooLong(_) => "the answer is too long".to_owned(),
            other => other.to_string(),
        })?;
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > self.bytes_max {
            return Err("the answer is too long: ask for less at once".into());
        }
        if self.file.is_none() && self.memory.len().saturating_add(bytes.len()) <= MEMORY_BYTES_MAX
        {
            self.memory.extend_from_slice(&bytes);
            return Ok(());
        }
        self.spill(&bytes)
            .map_err(|error| format!("there is no space for the answer: {error}"))
    }

    fn spill(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some((self.scratch)()?);
        }
        match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => Ok(()),
        }
    }

    /// Removes everything that was added.
    pub fn clear(&mut self) {
        self.memory.clear();
        self.file = None;
        self.bytes = 0;
    }

    /// Sends everything.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn send<S: Write>(self, messages: &mut Messages<S>) -> Result<(), StreamError> {
        messages.write_bytes(&self.memory)?;
        let Some(mut file) = self.file else {
            return Ok(());
        };
        file.seek(SeekFrom::Start(0))?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(()),
                count => messages.write_bytes(piece.get(..count).unwrap_or_default())?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_is_sent_in_order_through_a_file() {
        let scratch = || tempfile::tempfile();
        let mut outbox = Outbox::new(&scratch, 64 << 20);
        let texts: Vec<String> = (0..40).map(|n| format!("{n}").repeat(60_000)).collect();
        for text in &texts {
            outbox.add(text).unwrap();
        }
        assert!(outbox.memory.len() <= MEMORY_BYTES_MAX);
        let mut sent = Messages::new(Vec::new());
        outbox.send(&mut sent).unwrap();
        let mut received = Messages::new(sent.stream().as_slice());
        for text in &texts {
            let bytes = received.read().unwrap().unwrap();
            assert_eq!(&serde_json::from_slice::<String>(&bytes).unwrap(), text);
        }
        assert!(received.read().unwrap().is_none());
    }

    #[test]
    fn an_answer_has_a_longest_length_and_needs_space() {
        let scratch = || Err(io::ErrorKind::StorageFull.into());
        let mut outbox = Outbox::new(&scratch, 100);
        let error = outbox.add(&"x".repeat(200)).unwrap_err();
        assert!(error.contains("too long"), "{error}");
        let mut outbox = Outbox::new(&scratch, u64::MAX);
        let error = outbox.add(&"x".repeat(MEMORY_BYTES_MAX + 1)).unwrap_err();
        assert!(error.contains("no space"), "{error}");
        outbox.clear();
        outbox.add(&1).unwrap();
        assert_eq!(outbox.memory, b"1\0");
    }
}
