//! Messages on a stream. Each ends with a zero byte.

use millpond_env::Env;
use std::io::{self, Read, Write};
use zeroize::Zeroizing;

/// The longest message in bytes: enough for a pool of ten thousand devices, or for one reply of a list.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The longest message of a user who only has what was delegated, in bytes.
pub const DELEGATED_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// How many bytes are read at once.
const READ_BYTES: usize = 64 << 10;
/// How many bytes are written before the time limit starts again.
const WRITE_BYTES: usize = 1 << 20;

/// Why a message could not be received or sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The stream ended inside a message.
    #[error("the other end hung up in the middle of a message")]
    CutOff,
    /// The message exceeds the maximum length.
    #[error("a message of more than {0} bytes")]
    TooLong(usize),
    /// The other end sends nothing, or does not read what is sent.
    #[error("the other end took too long")]
    TooSlow,
    /// The message cannot be decoded or encoded.
    #[error("not a message of this protocol: {0}")]
    Malformed(String),
}

/// How long the other end may take.
///
/// The clock is checked between reads and writes. The stream itself must therefore time out from time to time
/// (`SO_RCVTIMEO`, `SO_SNDTIMEO`); [`io::ErrorKind::WouldBlock`] is then not an error.
#[derive(Clone)]
pub struct TimeLimits {
    /// Provides the clock.
    pub env: Env,
    /// The limit from the end of one message to the first byte of the next; `None` for no limit.
    pub idle_ns: Option<u64>,
    /// The limit from a message's first byte to its last.
    pub message_ns: u64,
    /// The limit for each MiB that is written.
    pub write_ns: u64,
}

impl std::fmt::Debug for TimeLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TimeLimits")
            .field("idle_ns", &self.idle_ns)
            .field("message_ns", &self.message_ns)
            .field("write_ns", &self.write_ns)
            .finish_non_exhaustive()
    }
}

impl TimeLimits {
    fn check(&self, since_ns: u64, limit_ns: u64) -> Result<(), StreamError> {
        let taken_ns = self.env.clock.monotonic_ns().saturating_sub(since_ns);
        match taken_ns <= limit_ns {
            true => Ok(()),
            false => Err(StreamError::TooSlow),
        }
    }
}

/// Splits a stream into messages. Its memory use is bounded by the longest message plus one read.
#[derive(Debug)]
pub struct Messages<S> {
    stream: S,
    /// Bytes that were read and not returned yet.
    rest: Zeroizing<Vec<u8>>,
    /// How many of these bytes are known to contain no end of a message.
    searched: usize,
    bytes_max: usize,
    times: Option<TimeLimits>,
}

impl<S> Messages<S> {
    /// Wraps a stream.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            rest: Zeroizing::default(),
            searched: 0,
            bytes_max: MESSAGE_BYTES_MAX,
            times: None,
        }
    }

    /// Sets another length limit for received messages.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Sets time limits.
    #[must_use]
    pub fn with_times(mut self, times: Option<TimeLimits>) -> Self {
        self.times = times;
        self
    }

    /// The stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    pub(crate) fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    fn now_ns(&self) -> u64 {
        let times = self.times.as_ref();
        times.map_or(0, |times| times.env.clock.monotonic_ns())
    }
}

fn is_wait(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Appends bytes. If the buffer must grow, the old one is wiped, because it may contain a key.
fn append(to: &mut Zeroizing<Vec<u8>>, bytes: &[u8]) {
    let length = to.len().saturating_add(bytes.len());
    if length > to.capacity() {
        let capacity = length.max(to.capacity().saturating_mul(2));
        let mut larger = Zeroizing::new(Vec::with_capacity(capacity));
        larger.extend_from_slice(to);
        *to = larger;
    }
    to.extend_from_slice(bytes);
}

impl<S: Read> Messages<S> {
    /// The next message without its zero byte; `None` at the end of the stream. Dropping the message wipes
    /// it.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn read(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, StreamError> {
        let mut began_ns = self.now_ns();
        loop {
            let fresh = self.rest.get(self.searched..).unwrap_or_default();
            if let Some(at) = fresh.iter().position(|byte| *byte == 0) {
                let end = self.searched.saturating_add(at);
                if end > self.bytes_max {
                    return Err(StreamError::TooLong(self.bytes_max));
                }
                let tail = Zeroizing::new(self.rest.split_off(end.saturating_add(1)));
                let mut message = std::mem::replace(&mut self.rest, tail);
                message.truncate(end);
                self.searched = 0;
                return Ok(Some(message));
            }
            self.searched = self.rest.len();
            if self.searched > self.bytes_max {
                return Err(StreamError::TooLong(self.bytes_max));
            }
            if let Some(times) = &self.times {
                match (self.rest.is_empty(), times.idle_ns) {
                    (true, Some(idle_ns)) => times.check(began_ns, idle_ns)?,
                    (true, None) => {}
                    (false, _) => times.check(began_ns, times.message_ns)?,
                }
            }
            let mut buffer = Zeroizing::new(vec![0; READ_BYTES]);
            let read = match self.stream.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_wait(&error) && self.times.is_some() => continue,
                outcome => outcome?,
            };
            if read == 0 {
                return match self.rest.is_empty() {
                    true => Ok(None),
                    false => Err(StreamError::CutOff),
                };
            }
            if self.rest.is_empty() {
                began_ns = self.now_ns();
            }
            append(&mut self.rest, buffer.get(..read).unwrap_or_default());
        }
    }
}

/// The buffer for a message being encoded. If it must grow, the old memory is wiped.
struct Encoded(Zeroizing<Vec<u8>>);

impl Write for Encoded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        append(&mut self.0, bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Encodes a message with its zero byte.
///
/// # Errors
/// [`StreamError::TooLong`] for a message that the other end would reject.
pub(crate) fn encode(message: &impl serde::Serialize) -> Result<Zeroizing<Vec<u8>>, StreamError> {
    let mut encoded = Encoded(Zeroizing::default());
    serde_json::to_writer(&mut encoded, message)
        .map_err(|error| StreamError::Malformed(error.to_string()))?;
    let mut bytes = encoded.0;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(StreamError::TooLong(MESSAGE_BYTES_MAX));
    }
    // JSON text contains no zero byte: strings escape it.
    append(&mut bytes, &[0]);
    Ok(bytes)
}

impl<S: Write> Messages<S> {
    /// Sends a message.
    ///
    /// # Errors
    /// [`StreamError::TooLong`] for a message that the other end would reject; [`StreamError::Io`].
    pub fn write(&mut self, message: &impl serde::Serialize) -> Result<(), StreamError> {
        let bytes = encode(message)?;
        self.write_bytes(&bytes)
    }

    /// Sends messages that are already encoded.
    ///
    /// # Errors
    /// [`StreamError::TooSlow`], [`StreamError::Io`].
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        for mut piece in bytes.chunks(WRITE_BYTES) {
            let began_ns = self.now_ns();
            while !piece.is_empty() {
                if let Some(times) = &self.times {
                    times.check(began_ns, times.write_ns)?;
                }
                let written = match self.stream.write(piece) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if is_wait(&error) && self.times.is_some() => continue,
                    Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                    outcome => outcome?,
                };
                piece = piece.get(written..).unwrap_or_default();
            }
        }
        self.stream.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a few bytes at a time.
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
        assert_eq!(messages.read().unwrap().unwrap().as_slice(), b"one");
        assert_eq!(messages.read().unwrap().unwrap().as_slice(), b"");
        assert_eq!(messages.read().unwrap().unwrap().as_slice(), b"three");
        assert!(messages.read().unwrap().is_none());
    }

    #[test]
    fn a_stream_that_ends_inside_a_message_is_an_error() {
        let mut messages = Messages::new(Drops(b"one", 2));
        assert!(matches!(messages.read(), Err(StreamError::CutOff)));
    }

    #[test]
    fn an_endless_message_is_refused_in_bounded_memory() {
        let mut messages = Messages::new(io::repeat(b'x'));
        assert!(matches!(messages.read(), Err(StreamError::TooLong(_))));
        assert!(messages.rest.len() <= MESSAGE_BYTES_MAX + READ_BYTES);
        let mut messages =
            Messages::new(io::repeat(b'x')).with_bytes_max(DELEGATED_MESSAGE_BYTES_MAX);
        assert!(matches!(
            messages.read(),
            Err(StreamError::TooLong(DELEGATED_MESSAGE_BYTES_MAX))
        ));
        assert!(messages.rest.capacity() <= 4 * DELEGATED_MESSAGE_BYTES_MAX);
    }

    /// A clock that advances by one second at each reading.
    struct Ticking(millpond_env::sync::atomic::AtomicU64);

    impl millpond_env::Clock for Ticking {
        fn wall_ns(&self) -> u64 {
            self.monotonic_ns()
        }
        fn monotonic_ns(&self) -> u64 {
            use millpond_env::sync::atomic::Ordering;
            self.0.fetch_add(1_000_000_000, Ordering::Relaxed)
        }
    }

    fn times(idle_ns: Option<u64>) -> TimeLimits {
        TimeLimits {
            env: Env {
                clock: millpond_env::sync::Arc::new(Ticking(0.into())),
                ..Env::real()
            },
            idle_ns,
            message_ns: 5_000_000_000,
            write_ns: 5_000_000_000,
        }
    }

    /// Returns the bytes one at a time, then would block; accepts no writes.
    struct Dawdler(&'static [u8]);

    impl Read for Dawdler {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.split_first() {
                None => Err(io::ErrorKind::WouldBlock.into()),
                Some((first, rest)) => {
                    buffer[0] = *first;
                    self.0 = rest;
                    Ok(1)
                }
            }
        }
    }

    impl Write for Dawdler {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn idle_and_slow_peers_are_disconnected() {
        let idle = Dawdler(b"");
        let mut messages = Messages::new(idle).with_times(Some(times(Some(3_000_000_000))));
        assert!(matches!(messages.read(), Err(StreamError::TooSlow)));
        // Each byte arrives in time, but the whole message does not.
        let drip = Dawdler(b"{\"method\":\"org.millpond.Pools\"}\0");
        let mut messages = Messages::new(drip).with_times(Some(times(None)));
        assert!(matches!(messages.read(), Err(StreamError::TooSlow)));
        let mut messages = Messages::new(Dawdler(b"")).with_times(Some(times(None)));
        assert!(matches!(messages.write(&1), Err(StreamError::TooSlow)));
        let mut messages = Messages::new(Dawdler(b"1\0")).with_times(Some(times(None)));
        assert_eq!(messages.read().unwrap().unwrap().as_slice(), b"1");
    }

    proptest! {
        #[test]
        fn texts_round_trip(texts in proptest::collection::vec(".{0,20}", 0..8), at_once in 1usize..9) {
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
