//! Receives streams into imported pools, and into pools opened for one command.

use crate::change::root_key;
use crate::imported::ImportedPools;
use crate::local::LocalChanges;
use crate::send::{IsAbandoned, LOOKS_EVERY};
use millpond_control::{
    ChangeError, IncomingKind, ReceiveFailure, ReceiveNaming, ReceiveProblem, ReceiveStep,
    ReceiveStream, Received, Value,
};
use millpond_engine::{
    Naming, Pool, PropertyValue, ReceiveRequest, ReceiveWatch, ReceivingUser, RootKey, Unwatched,
    receive_nowhere,
};
use millpond_pool::HistoryCommand;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;

/// The buffer behind the writer of a stream, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

fn request_of<'u>(
    stream: &ReceiveStream,
    root_key: Option<RootKey>,
    user: Option<ReceivingUser<'u>>,
) -> ReceiveRequest<'u> {
    let value = |value: &Value| match value {
        Value::Number(number) => PropertyValue::Number(*number),
        Value::Text(text) => PropertyValue::Text(text.clone()),
    };
    ReceiveRequest {
        name: stream.name.clone(),
        naming: match stream.naming {
            ReceiveNaming::Given => Naming::Given,
            ReceiveNaming::WithoutPool => Naming::WithoutPool,
            ReceiveNaming::LastComponent => Naming::LastComponent,
        },
        origin: stream.origin.clone(),
        is_forced: stream.is_forced,
        is_dry: stream.is_dry,
        is_resumable: stream.is_resumable,
        is_corrective: stream.is_corrective,
        without_holds: stream.without_holds,
        properties: stream
            .properties
            .iter()
            .map(|(name, one)| (name.clone(), value(one)))
            .collect(),
        root_key,
        excluded: stream.excluded.clone(),
        user,
    }
}

fn pool_of(stream: &ReceiveStream) -> &str {
    stream.name.split(['/', '@']).next().unwrap_or_default()
}

/// Ends when the caller is gone, although the writer of the stream may still be there. It may not write for hours.
struct Watched<'a, R> {
    input: R,
    is_abandoned: IsAbandoned<'a>,
}

impl<R: Read + AsFd> Read for Watched<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            if (self.is_abandoned)() {
                return Ok(0);
            }
            let mut waited = [PollFd::new(&self.input, PollFlags::IN)];
            match poll(&mut waited, Some(&LOOKS_EVERY)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return self.input.read(bytes),
            }
        }
    }
}

fn buffered<'a, R: Read + AsFd + 'a>(
    input: R,
    is_abandoned: IsAbandoned<'a>,
) -> BufReader<Watched<'a, R>> {
    let watched = Watched {
        input,
        is_abandoned,
    };
    BufReader::with_capacity(BUFFER_BYTES, watched)
}

fn failed(problem: ReceiveProblem) -> Received {
    let failure = ReceiveFailure {
        kind: IncomingKind::Unknown,
        problem,
    };
    Received {
        failure: Some(failure),
        ..Received::default()
    }
}

/// Receives into a pool, and records the command if it changed something.
fn into(
    pool: &Pool,
    stream: &ReceiveStream,
    command: &HistoryCommand,
    input: impl Read + Send,
    watch: &mut dyn ReceiveWatch,
    user: Option<ReceivingUser<'_>>,
) -> Received {
    let key = root_key(pool.inner().env(), &stream.properties, stream.key.as_ref());
    let key = match key {
        Ok(key) => key,
        Err(ChangeError::Failed(why)) => return failed(ReceiveProblem::Failed(why)),
        Err(_) => return failed(ReceiveProblem::Failed("the key cannot be used".to_owned())),
    };
    let outcome = pool.receive(&request_of(stream, key, user), input, watch);
    let has_changed = |step: &ReceiveStep| {
        matches!(step, ReceiveStep::Stream { bytes: Some(_), .. })
            || matches!(
                step,
                ReceiveStep::Destroyed { .. }
                    | ReceiveStep::Renamed { .. }
                    | ReceiveStep::Promoted { .. }
            )
    };
    if !stream.is_dry && outcome.steps.iter().any(has_changed) {
        // What was received is there, whether this is recorded or not.
        let _ = pool.inner().record_command(command);
    }
    Received {
        steps: outcome.steps,
        failure: outcome.failure,
        notes: vec![],
    }
}

fn nowhere(stream: &ReceiveStream, input: impl Read) -> Received {
    let outcome = receive_nowhere(&request_of(stream, None, None), input);
    Received {
        steps: outcome.steps,
        failure: outcome.failure,
        notes: vec![],
    }
}

impl ImportedPools {
    /// Answers [`millpond_control::Request::Receive`]. `watch` is told what is about to be replaced. `user` is the one who
    /// receives, if not the superuser.
    pub fn receive(
        &self,
        stream: &ReceiveStream,
        command: &HistoryCommand,
        input: impl Read + AsFd + Send,
        is_abandoned: IsAbandoned<'_>,
        watch: &mut dyn ReceiveWatch,
        user: Option<ReceivingUser<'_>>,
    ) -> Received {
        let input = buffered(input, is_abandoned);
        let Some(pool) = self.get(pool_of(stream)) else {
            return nowhere(stream, input);
        };
        match pool.live() {
            Some(live) => into(live, stream, command, input, watch, user),
            None => failed(ReceiveProblem::Failed("pool is read-only".to_owned())),
        }
    }
}

impl LocalChanges {
    /// Answers [`millpond_control::Request::Receive`].
    ///
    /// # Errors
    /// If the pool cannot be opened or closed.
    pub fn receive(
        &self,
        stream: &ReceiveStream,
        command: &str,
        input: impl Read + AsFd + Send,
        is_abandoned: IsAbandoned<'_>,
    ) -> Result<Received, ChangeError> {
        let input = buffered(input, is_abandoned);
        let (pool, was_exported) = match self.open(pool_of(stream)) {
            Ok(opened) => opened,
            Err(ChangeError::NoSuchPool) => return Ok(nowhere(stream, input)),
            Err(error) => return Err(error),
        };
        let command = self.history(command);
        let received = into(&pool, stream, &command, input, &mut Unwatched, None);
        self.close(pool, was_exported)?;
        Ok(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_receive_ends_with_its_caller_although_the_writer_is_idle() {
        let (input, mut writer) = UnixStream::pair().unwrap();
        let looks = AtomicU32::new(0);
        let is_abandoned = || looks.fetch_add(1, Ordering::Relaxed) >= 2;
        let mut stream = buffered(input, &is_abandoned);
        writer.write_all(b"begun").unwrap();
        let mut bytes = vec![];
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"begun");
    }
}
