//! Sends streams of imported pools, and of pools opened for one command.

use crate::imported::ImportedPools;
use crate::local::LocalPools;
use millpond_control::{ControlError, SendPlan, SendProblem, SendStep, SendStream};
use millpond_dataset::DatasetError;
use millpond_engine::{Error, PackageOptions, ResumeFrom, SendError, SendFlags, SendRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::io::{self, BufWriter, IoSlice, Write};
use std::os::fd::AsFd;

/// The buffer in front of the reader of a stream, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// How often a send or receive that waits for the other end of the stream looks whether its caller is still there.
pub(crate) const LOOKS_EVERY: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// A pipe or socket that can be written to has room for this many bytes: `PIPE_BUF`.
const ROOM_BYTES: usize = 4096;
/// The offset that means the position of the descriptor, in bytes.
const AT_POSITION: u64 = u64::MAX;

/// Whether the caller of a request is gone.
pub type IsAbandoned<'a> = &'a (dyn Fn() -> bool + Sync);

fn request_of(stream: &SendStream) -> SendRequest {
    SendRequest {
        name: stream.name.clone(),
        from: stream.from.clone(),
        has_between: stream.has_between,
        is_unfinished: stream.is_unfinished,
        flags: SendFlags {
            large_blocks: stream.large_blocks,
            embedded: stream.embedded,
            compressed: stream.compressed,
            raw: stream.raw,
        },
        package: PackageOptions {
            is_recursive: stream.package.is_recursive,
            has_properties: stream.package.has_properties,
            only_received: stream.package.only_received,
            has_holds: stream.package.has_holds,
            skips_missing: stream.package.skips_missing,
            excluded: stream.package.excluded.clone(),
        },
        redaction: stream.redaction.clone(),
        resume: stream
            .resume
            .map(|(object, offset)| ResumeFrom { object, offset }),
        received_bytes: stream.received_bytes,
        guids: stream.guids,
        redacted: stream.redacted.clone(),
        redacted_from: stream.redacted_from.clone(),
    }
}

fn pool_of(stream: &SendStream) -> &str {
    stream.name.split(['/', '@']).next().unwrap_or_default()
}

fn problem(stream: &SendStream, error: Error) -> SendProblem {
    match error {
        Error::Dataset(DatasetError::NotFound { name }) => {
            if Some(&name) == stream.from.as_ref() {
                SendProblem::NoSource
            } else if Some(&name) == stream.redaction.as_ref() {
                SendProblem::NoRedactionBookmark
            } else {
                SendProblem::NoDataset
            }
        }
        Error::Send(SendError::NotPartlyReceived(_)) => SendProblem::NotPartlyReceived,
        Error::Send(SendError::Locked) => SendProblem::Locked,
        Error::Send(SendError::Replaced) => SendProblem::Replaced,
        Error::Send(SendError::SourceGone(guid)) => SendProblem::SourceGone(guid.0),
        Error::Send(SendError::NotEarlier) => SendProblem::NotEarlier,
        Error::Send(SendError::NotSnapshot) => SendProblem::NotSnapshot,
        Error::Send(SendError::MissingSnapshot { dataset, snapshot }) => {
            SendProblem::MissingSnapshot(dataset, snapshot)
        }
        Error::Send(SendError::EncryptedProperties(name)) => SendProblem::EncryptedProperties(name),
        Error::Send(SendError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            SendProblem::NoReader
        }
        other => SendProblem::Failed(other.to_string()),
    }
}

/// Stops when the caller is gone, although the reader of the stream may still be there. It may not read for hours.
struct Watched<'a, W> {
    output: W,
    is_abandoned: IsAbandoned<'a>,
    /// Whether its reader can make a write wait: it is not a file.
    has_reader: bool,
}

impl<W: Write + AsFd> Watched<'_, W> {
    /// Waits for room, or until the caller is gone.
    fn wait(&self) -> io::Result<()> {
        loop {
            if (self.is_abandoned)() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if !self.has_reader {
                return Ok(());
            }
            let mut waited = [PollFd::new(&self.output, PollFlags::OUT)];
            match poll(&mut waited, Some(&LOOKS_EVERY)) {
                Ok(0) | Err(Errno::INTR) => {}
                // An error shows in the write.
                Ok(_) | Err(_) => return Ok(()),
            }
        }
    }
}

impl<W: Write + AsFd> Write for Watched<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait()?;
        if !self.has_reader {
            return self.output.write(bytes);
        }
        // Others may have the same descriptor, so it stays as it is: a write waits unless it says otherwise.
        let all = [IoSlice::new(bytes)];
        match pwritev2(&self.output, &all, AT_POSITION, ReadWriteFlags::NOWAIT) {
            Ok(count) => Ok(count),
            Err(Errno::PIPE) => Err(io::ErrorKind::BrokenPipe.into()),
            // Not every kernel can do so here. What there is room for does not wait.
            Err(_) => {
                let room = bytes.len().min(ROOM_BYTES);
                self.output.write(bytes.get(..room).unwrap_or_default())
            }
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

fn buffered<'a, W: Write + AsFd + 'a>(
    output: W,
    is_abandoned: IsAbandoned<'a>,
) -> BufWriter<Watched<'a, W>> {
    let stat = fstat(&output);
    let has_reader = stat.map_or(true, |stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        !matches!(kind, FileType::RegularFile | FileType::BlockDevice)
    });
    let watched = Watched {
        output,
        is_abandoned,
        has_reader,
    };
    BufWriter::with_capacity(BUFFER_BYTES, watched)
}

impl ImportedPools {
    /// Answers [`millpond_control::Request::Send`].
    ///
    /// # Errors
    /// [`SendProblem`].
    pub fn send(
        &self,
        stream: &SendStream,
        output: impl Write + AsFd + Send,
        is_abandoned: IsAbandoned<'_>,
    ) -> Result<u64, SendProblem> {
        let pool = self.get(pool_of(stream)).ok_or(SendProblem::NoDataset)?;
        let request = request_of(stream);
        let output = buffered(output, is_abandoned);
        let sent = match pool.live() {
            Some(live) => live.send(&request, output),
            None => {
                let view = pool.view();
                view.and_then(|view| view.send(&request, output))
            }
        };
        sent.map_err(|error| problem(stream, error))
    }

    /// Answers [`millpond_control::Request::SendPlan`].
    ///
    /// # Errors
    /// [`SendProblem`].
    pub fn send_plan(&self, stream: &SendStream) -> Result<SendPlan, SendProblem> {
        let pool = self.get(pool_of(stream)).ok_or(SendProblem::NoDataset)?;
        let view = pool.view();
        let plan = view.and_then(|view| view.send_plan(&request_of(stream)));
        plan.map(told).map_err(|error| problem(stream, error))
    }
}

impl LocalPools {
    /// Answers [`millpond_control::Request::Send`].
    ///
    /// # Errors
    /// [`SendProblem`].
    pub fn send(
        &self,
        stream: &SendStream,
        output: impl Write + AsFd + Send,
        is_abandoned: IsAbandoned<'_>,
    ) -> Result<u64, SendProblem> {
        let view = self.view(pool_of(stream)).map_err(not_open)?;
        let output = buffered(output, is_abandoned);
        view.send(&request_of(stream), output)
            .map_err(|error| problem(stream, error))
    }

    /// Answers [`millpond_control::Request::SendPlan`].
    ///
    /// # Errors
    /// [`SendProblem`].
    pub fn send_plan(&self, stream: &SendStream) -> Result<SendPlan, SendProblem> {
        let view = self.view(pool_of(stream)).map_err(not_open)?;
        let plan = view.send_plan(&request_of(stream));
        plan.map(told).map_err(|error| problem(stream, error))
    }
}

fn told(plan: millpond_engine::SendPlan) -> SendPlan {
    let steps = plan.steps.into_iter().map(|step| SendStep {
        name: step.name,
        from: step.from,
        bytes: step.bytes,
    });
    SendPlan {
        steps: steps.collect(),
        skipped: plan.skipped,
    }
}

fn not_open(error: ControlError) -> SendProblem {
    match error {
        ControlError::NoSuchPool => SendProblem::NoDataset,
        other => SendProblem::Failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Writes until the caller is gone, and returns the count of bytes that were taken.
    fn sent_until_abandoned(output: impl Write + AsFd) -> usize {
        let looks = AtomicU32::new(0);
        let is_full = || looks.fetch_add(1, Ordering::Relaxed) >= 1000;
        let mut stream = buffered(output, &is_full).into_parts().0;
        let mut sent = 0;
        loop {
            match stream.write(&[7; 3 << 20]) {
                Ok(count) => sent += count,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
                    return sent;
                }
            }
            // It is full: there are few more looks.
            looks.fetch_max(998, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_send_ends_with_its_caller_although_the_reader_is_idle() {
        let (reader, output) = std::io::pipe().unwrap();
        assert!(sent_until_abandoned(output) > 0);
        drop(reader);
        let (reader, output) = UnixStream::pair().unwrap();
        assert!(sent_until_abandoned(output) > 0);
        drop(reader);
    }

    #[test]
    fn all_bytes_arrive_at_a_slow_reader_and_in_a_file() {
        let bytes: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
        let (mut reader, output) = std::io::pipe().unwrap();
        let taken = std::thread::spawn(move || {
            let mut taken = vec![];
            reader.read_to_end(&mut taken).unwrap();
            taken
        });
        let mut stream = buffered(output, &|| false);
        stream.write_all(&bytes).unwrap();
        stream.flush().unwrap();
        drop(stream);
        assert!(taken.join().unwrap() == bytes);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stream");
        let mut stream = buffered(File::create(&path).unwrap(), &|| false);
        stream.write_all(&bytes).unwrap();
        stream.flush().unwrap();
        assert!(std::fs::read(path).unwrap() == bytes);
    }

    #[test]
    fn a_reader_that_is_gone_ends_a_send() {
        let (reader, output) = std::io::pipe().unwrap();
        drop(reader);
        let mut stream = buffered(output, &|| false).into_parts().0;
        let error = stream.write(b"bytes").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
