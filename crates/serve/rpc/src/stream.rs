//! Messages on a stream: each ends with a zero byte.

use std::io::{self, Read, Write};

/// The longest message, in bytes: a pool of some ten thousand devices, or a reply's share of a list.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// How much is read at once, in bytes.
const READ_BYTES: usize = 64 << 10;

/// Why there is no next message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It ended inside a message.
    #[error("the other end hung up in the middle of a message")]
    CutOff,
    /// It goes on without an end.
    #[error("a message of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// It is not what was agreed.
    #[error("not a message of this protocol: {0}")]
    Malformed(String),
}

/// A stream cut into messages. Memory is bounded by the longest message and one read.
#[derive(Debug)]
pub struct Messages<S> {
    stream: S,
    /// Bytes that were read and not given out yet.
    rest: Vec<u8>,
    /// So many of them hold no end.
    searched: usize,
}

impl<S> Messages<S> {
    /// Around a stream.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            rest: vec![],
            searched: 0,
        }
    }

    /// The stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S: Read> Messages<S> {
    /// The next message without its zero byte; `None` at the end of the stream.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn read(&mut self) -> Result<Option<Vec<u8>>, StreamError> {
        loop {
            let fresh = self.rest.get(self.searched..).unwrap_or_default();
            if let Some(at) = fresh.iter().position(|byte| *byte == 0) {
                let end = self.searched.saturating_add(at);
                let tail = self.rest.split_off(end.saturating_add(1));
                let mut message = std::mem::replace(&mut self.rest, tail);
                message.truncate(end);
                self.searched = 0;
                return Ok(Some(message));
            }
            self.searched = self.rest.len();
            if self.searched > MESSAGE_BYTES_MAX {
                return Err(StreamError::TooLong);
            }
            let mut buffer = vec![0; READ_BYTES];
            let read = match self.stream.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                outcome => outcome?,
            };
            if read == 0 {
                return match self.rest.is_empty() {
                    true => Ok(None),
                    false => Err(StreamError::CutOff),
                };
            }
            self.rest
                .extend_from_slice(buffer.get(..read).unwrap_or_default());
        }
    }
}

impl<S: Write> Messages<S> {
    /// Sends a message.
    ///
    /// # Errors
    /// [`StreamError::TooLong`] for one that the other end would not take; [`StreamError::Io`].
    pub fn write(&mut self, message: &impl serde::Serialize) -> Result<(), StreamError> {
        let mut bytes = serde_json::to_vec(message)
            .map_err(|error| StreamError::Malformed(error.to_string()))?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(StreamError::TooLong);
        }
        // JSON has no zero byte: in texts it is written as an escape.
        bytes.push(0);
        self.stream.write_all(&bytes)?;
        self.stream.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives a few bytes at a time.
    struct Drops<'a>(&'a [u8], usize);

    impl Read for Drops<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let take = self.1.min(self.0.len()).min(buffer.len());
            let (now, later) = self.0.split_at(take);
            buffer[..take].copy_from_slice(now);
            self.0 = later;
            Ok(take)
        }
    }

    #[test]
    fn messages_end_where_their_zero_byte_is() {
        let mut messages = Messages::new(Drops(b"one\0\0three\0", 2));
        assert_eq!(messages.read().unwrap().unwrap(), b"one");
        assert_eq!(messages.read().unwrap().unwrap(), b"");
        assert_eq!(messages.read().unwrap().unwrap(), b"three");
        assert!(messages.read().unwrap().is_none());
    }

    #[test]
    fn a_stream_that_ends_inside_a_message_is_an_error() {
        let mut messages = Messages::new(Drops(b"one", 2));
        assert!(matches!(messages.read(), Err(StreamError::CutOff)));
    }

    #[test]
    fn a_message_without_an_end_is_given_up_in_bounded_memory() {
        let mut messages = Messages::new(io::repeat(b'x'));
        assert!(matches!(messages.read(), Err(StreamError::TooLong)));
        assert!(messages.rest.len() <= MESSAGE_BYTES_MAX + READ_BYTES);
    }

    proptest! {
        #[test]
        fn texts_come_as_they_went(texts in proptest::collection::vec(".{0,20}", 0..8), at_once in 1usize..9) {
            let mut sent = Messages::new(Vec::new());
            for text in &texts {
                sent.write(text).unwrap();
            }
            let mut received = Messages::new(Drops(&sent.stream, at_once));
            for text in &texts {
                let bytes = received.read().unwrap().unwrap();
                prop_assert_eq!(&serde_json::from_slice::<String>(&bytes).unwrap(), text);
            }
            prop_assert!(received.read().unwrap().is_none());
        }
    }
}
