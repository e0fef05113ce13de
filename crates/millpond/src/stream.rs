//! Sends and receives snapshots.

use crate::{Error, Pool};
use millpond_engine::{ReceiveRequest, SendRequest, Unwatched};
use std::io::{Read, Write};

impl Pool {
    /// Writes a snapshot as a stream, as `zfs send` does, or its changes since an older snapshot or bookmark. Returns the
    /// length of the stream in bytes.
    ///
    /// `output` should be buffered.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound); [`ErrorKind::Locked`](crate::ErrorKind::Locked);
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the older snapshot is no ancestor.
    pub fn send(
        &self,
        snapshot: &str,
        from: Option<&str>,
        output: impl Write + Send,
    ) -> Result<u64, Error> {
        let request = SendRequest {
            name: snapshot.to_owned(),
            from: from.map(str::to_owned),
            ..SendRequest::default()
        };
        let sent = match self.writable() {
            // Its snapshots stay while they are sent.
            Ok(pool) => pool.send(&request, output),
            Err(_) => self.view()?.send(&request, output),
        };
        Ok(sent?)
    }

    /// Receives a stream or package into a file system or volume, as `zfs receive` does. Returns the full names of the
    /// snapshots that were received; they are on stable storage.
    ///
    /// A full stream makes a new dataset, an incremental one changes the dataset, which must not be open.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists), [`ErrorKind::NotFound`](crate::ErrorKind::NotFound),
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy); [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the
    /// stream is damaged or does not fit the dataset. The state is then the one before.
    pub fn receive(&self, dataset: &str, input: impl Read + Send) -> Result<Vec<String>, Error> {
        let request = ReceiveRequest {
            name: dataset.to_owned(),
            ..ReceiveRequest::default()
        };
        let outcome = self.writable()?.receive(&request, input, &mut Unwatched);
        Ok(outcome.into_names()?)
    }
}
