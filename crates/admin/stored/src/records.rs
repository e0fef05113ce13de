//! The records of one input on their way to the pool.
//!
//! What comes after damage is replaced by records that end the stream: every object that may not be whole is freed. So
//! the snapshot has the objects that were read completely, and nothing else.

use crate::device::StreamDevice;
use millpond_env::sync::Arc;
use millpond_ondisk::Endian;
use millpond_stream::{
    Begin, End, FreeObjects, HEADER_BYTES, Record, RecordSource, StreamError, StreamFeatures,
    StreamKind, StreamReader, Taken,
};
use std::collections::VecDeque;
use std::io::Read;

/// Objects from here on do not exist.
const OBJECTS_END: u64 = 1 << 48;
/// Records before the first one of a package's first stream: those of its header.
const HEADER_RECORDS_MAX: usize = 2;

/// Where an input is damaged, and what is missing for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// What is wrong, with the byte.
    pub reason: String,
    /// The full name at the sender of the snapshot that is cut; `None` between streams.
    pub cut: Option<String>,
    /// Objects of that snapshot from this number on are missing; 0 if none can be shown.
    pub missing_from: u64,
    /// Whether that snapshot is encrypted, and was sent raw.
    pub is_raw: bool,
}

/// The stream that was begun and has not ended.
#[derive(Debug)]
struct Begun {
    name: String,
    to_guid: u64,
    is_raw: bool,
    endian: Endian,
    /// All records of the objects below this one were read. In a raw stream it is the first object of a block of dnodes.
    whole_below: u64,
}

/// The records of an input. Where payloads are in a stream file is remembered.
pub(crate) struct InputRecords<R> {
    reader: StreamReader<R>,
    /// The number of the stream file.
    file: Option<u32>,
    device: Arc<StreamDevice>,
    /// Records that were read early, or that end a damaged input.
    queue: VecDeque<Taken>,
    failed: Option<StreamError>,
    begun: Option<Begun>,
    is_package: bool,
    is_over: bool,
    damage: Option<Damage>,
}

impl<R: Read> InputRecords<R> {
    pub(crate) fn new(input: R, file: Option<u32>, device: &Arc<StreamDevice>) -> Self {
        Self {
            reader: StreamReader::new(input),
            file,
            device: Arc::clone(device),
            queue: VecDeque::new(),
            failed: None,
            begun: None,
            is_package: false,
            is_over: false,
            damage: None,
        }
    }

    /// The beginning of the input and that of its first stream. They are the same unless it is a package.
    ///
    /// # Errors
    /// [`StreamError`] if the first record cannot be read.
    pub(crate) fn beginnings(&mut self) -> Result<(Begin, Option<Begin>), StreamError> {
        while self.failed.is_none() && self.first_stream().is_none() {
            if self.queue.len() > HEADER_RECORDS_MAX {
                break;
            }
            match self.reader.take() {
                Ok(Some(taken)) => self.queue.push_back(taken),
                Ok(None) => break,
                Err(error) => self.failed = Some(error),
            }
        }
        let first = self.queue.front().map(|taken| &taken.record);
        match (first, self.failed.take()) {
            (Some(Record::Begin(first)), failed) => {
                let first = (**first).clone();
                self.failed = failed;
                Ok((first, self.first_stream().cloned()))
            }
            (_, Some(error)) => Err(error),
            (_, None) => Err(StreamError::Magic),
        }
    }

    fn first_stream(&self) -> Option<&Begin> {
        self.queue.iter().find_map(|taken| match &taken.record {
            Record::Begin(begin) if begin.kind == StreamKind::Stream => Some(&**begin),
            _ => None,
        })
    }

    /// What is wrong with what was read so far.
    pub(crate) fn damage(self) -> Option<Damage> {
        self.damage
    }

    fn note(&mut self, taken: &Taken) {
        match &taken.record {
            Record::Begin(begin) if begin.kind == StreamKind::Package => self.is_package = true,
            Record::Begin(begin) => {
                self.begun = Some(Begun {
                    name: String::from_utf8_lossy(&begin.to_name).into_owned(),
                    to_guid: begin.to_guid,
                    is_raw: begin.features.contains(StreamFeatures::RAW),
                    endian: taken.endian,
                    whole_below: 0,
                });
            }
            Record::End(_) => self.begun = None,
            record => {
                if let Some(begun) = &mut self.begun {
                    let whole_below = match (begun.is_raw, record) {
                        // A block of dnodes is authentic only as a whole.
                        (true, Record::ObjectRange(range)) => range.first,
                        (true, _) => 0,
                        (false, record) => whole_before(record),
                    };
                    begun.whole_below = begun.whole_below.max(whole_below);
                }
            }
        }
        if let (Some(file), Record::Write(_)) = (self.file, &taken.record) {
            let offset = taken.at.saturating_add(HEADER_BYTES as u64);
            let payloads = self.device.payloads();
            payloads.remember(file, offset, &taken.payload);
        }
    }

    /// Ends a damaged input, so that what was read before is kept.
    fn end(&mut self, error: StreamError) -> Result<Option<Taken>, StreamError> {
        self.is_over = true;
        let begun = self.begun.take();
        let missing_from = begun.as_ref().map_or(0, |begun| begun.whole_below);
        self.damage = Some(Damage {
            reason: error.to_string(),
            cut: begun.as_ref().map(|begun| begun.name.clone()),
            missing_from,
            is_raw: begun.as_ref().is_some_and(|begun| begun.is_raw),
        });
        let endian = begun.as_ref().map_or(Endian::Little, |begun| begun.endian);
        let mut add = |record| {
            self.queue.push_back(Taken {
                record,
                payload: vec![],
                endian,
                at: 0,
            });
        };
        match begun {
            Some(_) if missing_from == 0 => return Err(error),
            Some(Begun { to_guid, .. }) => {
                add(Record::FreeObjects(FreeObjects {
                    first: missing_from,
                    count: OBJECTS_END.saturating_sub(missing_from),
                    to_guid,
                }));
                add(Record::End(End {
                    to_guid,
                    ..End::default()
                }));
            }
            None if !self.is_package => return Err(error),
            None => {}
        }
        if self.is_package {
            add(Record::End(End::default()));
        }
        Ok(self.queue.pop_front())
    }
}

/// All records of the objects below this one come before the record.
fn whole_before(record: &Record) -> u64 {
    match record {
        Record::Object(object) => object.object,
        Record::Write(write) => write.object,
        Record::WriteEmbedded(write) => write.object,
        Record::Free(free) | Record::Redact(free) => free.object,
        Record::Spill(spill) => spill.object,
        Record::FreeObjects(free) => free.first.saturating_add(free.count).min(OBJECTS_END),
        Record::ObjectRange(range) => range.first,
        Record::Begin(_) | Record::End(_) | Record::WriteByRef(_) => 0,
    }
}

impl<R: Read> RecordSource for InputRecords<R> {
    fn take(&mut self) -> Result<Option<Taken>, StreamError> {
        if let Some(taken) = self.queue.pop_front() {
            if !self.is_over {
                self.note(&taken);
            }
            return Ok(Some(taken));
        }
        if self.is_over {
            return Ok(None);
        }
        let taken = match self.failed.take() {
            Some(error) => Err(error),
            None => self.reader.take(),
        };
        match taken {
            Ok(Some(taken)) => {
                self.note(&taken);
                Ok(Some(taken))
            }
            Ok(None) => Ok(None),
            Err(error) => self.end(error),
        }
    }
}
