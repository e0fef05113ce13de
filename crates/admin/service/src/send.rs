//! Sends streams of imported pools, and of pools opened for one command.

use crate::imported::ImportedPools;
use crate::local::LocalPools;
use millpond_control::{ControlError, SendPlan, SendProblem, SendStep, SendStream};
use millpond_dataset::DatasetError;
use millpond_engine::{Error, PackageOptions, ResumeFrom, SendError, SendFlags, SendRequest};
use std::io::{self, BufWriter, Write};

/// The buffer in front of the reader of a stream, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

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

/// Stops when the caller is gone, although the reader of the stream may still be there.
struct Watched<'a, W> {
    output: W,
    is_abandoned: IsAbandoned<'a>,
}

impl<W: Write> Write for Watched<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (self.is_abandoned)() {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => self.output.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

fn buffered<'a, W: Write + 'a>(
    output: W,
    is_abandoned: IsAbandoned<'a>,
) -> BufWriter<Watched<'a, W>> {
    let watched = Watched {
        output,
        is_abandoned,
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
        output: impl Write + Send,
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
        output: impl Write + Send,
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
