//! Stream files and standard input.

use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::io::{self, BufReader, Read, stdin};
use std::path::Path;

/// Input is read in pieces of this size, in bytes.
const READ_BYTES: usize = 1 << 20;

/// The bytes of a stream. What is read is counted, for a progress bar.
pub struct StreamInput {
    input: BufReader<Box<dyn Read + Send>>,
    /// The same file, if it can be read again.
    file: Option<File>,
    read_bytes: Arc<AtomicU64>,
}

impl StreamInput {
    /// Opens a file; the path `-` is standard input.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path, read_bytes: &Arc<AtomicU64>) -> io::Result<Self> {
        let (input, file): (Box<dyn Read + Send>, _) = match path.as_os_str() == "-" {
            true => (Box::new(stdin()), None),
            false => {
                let file = File::open(path)?;
                let found = file.metadata()?;
                if found.is_dir() {
                    return Err(io::ErrorKind::IsADirectory.into());
                }
                // Pipes and terminals cannot be read again.
                let again = found.is_file().then(|| file.try_clone()).transpose()?;
                (Box::new(file), again)
            }
        };
        Ok(Self {
            input: BufReader::with_capacity(READ_BYTES, input),
            file,
            read_bytes: Arc::clone(read_bytes),
        })
    }

    /// Takes the file out, for reading at any place.
    pub(crate) fn take_file(&mut self) -> Option<File> {
        self.file.take()
    }
}

impl std::fmt::Debug for StreamInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamInput").finish_non_exhaustive()
    }
}

impl Read for StreamInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
