//! Opens stored streams: applies them to a scratch pool, in the order of their snapshots.

use crate::StoredError;
use crate::device::{StreamDevice, Usage};
use crate::index::{self, IndexProblem, Indexed};
use crate::input::StreamInput;
use crate::records::{Damage, InputRecords};
use millpond_device::{Candidate, Device};
use millpond_engine::{
    Naming, NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs, OpenOptions, Pool,
    ReceiveRequest, ReceiveStep, Unwatched, View, WriteOptions,
};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::AtomicU64;
use millpond_pool::check_pool_name;
use millpond_pool::import::{find_pools, scan_devices};
use millpond_stream::{Begin, BeginFlags, StreamFeatures};
use millpond_txg::DirtyLimits;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The pool's name if the sender's is not usable.
const POOL_NAME: &str = "stream";
/// Changes in memory, in bytes. Writing them costs little, so a small limit does not slow anything down.
const DIRTY_BYTES: u64 = 128 << 20;
/// The cache while streams are applied, in bytes.
const CACHE_BYTES: u64 = 64 << 20;
/// Received properties that would change how blocks are stored, or refuse them.
const EXCLUDED: [&str; 16] = [
    "compression",
    "checksum",
    "dedup",
    "copies",
    "redundant_metadata",
    "special_small_blocks",
    "quota",
    "refquota",
    "reservation",
    "refreservation",
    "filesystem_limit",
    "snapshot_limit",
    "recordsize",
    "sharenfs",
    "sharesmb",
    "mlslabel",
];

/// How streams are opened.
#[derive(Debug, Clone)]
pub struct StoredOptions {
    /// The directory for temporary files.
    pub temporary_folder: PathBuf,
    /// What is kept in memory before a temporary file is used, in bytes.
    pub memory_bytes: u64,
    /// The file for the index. With an index, the streams open again at once.
    pub index: Option<PathBuf>,
    /// How to open the pool that results.
    pub open: OpenOptions,
    /// The bytes that were read, for a progress bar.
    pub read_bytes: Arc<AtomicU64>,
}

impl Default for StoredOptions {
    fn default() -> Self {
        Self {
            temporary_folder: std::env::temp_dir(),
            memory_bytes: 64 << 20,
            index: None,
            open: OpenOptions::default(),
            read_bytes: Arc::default(),
        }
    }
}

/// A stream that was applied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AppliedStream {
    /// The path of its file; `-` for standard input.
    pub path: PathBuf,
    /// The full name in the pool of the dataset that it is about.
    pub dataset: String,
    /// The full names in the pool of its snapshots, in order.
    pub snapshots: Vec<String>,
    /// Where it is damaged.
    pub damage: Option<Damage>,
}

impl AppliedStream {
    fn is_cut_raw(&self) -> bool {
        let damage = self.damage.as_ref();
        damage.is_some_and(|damage| damage.is_raw && damage.missing_from > 0)
    }

    /// The newest snapshot of the dataset that it is about; else of the last one.
    #[must_use]
    pub fn newest(&self) -> Option<&str> {
        let mut newest_first = self.snapshots.iter().rev();
        let of_top = newest_first.find(|name| name.split('@').next() == Some(&self.dataset));
        of_top.or(self.snapshots.last()).map(String::as_str)
    }
}

/// What was done with an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexUse {
    /// The streams were not read: everything was in the index.
    Used,
    /// The streams were read, and the index was written. There was none, or one that did not fit.
    Written(Option<IndexProblem>),
    /// The streams are damaged. An index is only of whole ones.
    NotWritten,
}

/// Stored streams as a pool for reading.
#[derive(Debug)]
pub struct StoredStreams {
    /// The pool.
    pub view: View,
    /// The streams in the order in which they were applied.
    pub streams: Vec<AppliedStream>,
    /// What was done with the index, if one was asked for.
    pub index: Option<IndexUse>,
    device: Arc<StreamDevice>,
}

impl StoredStreams {
    /// Reads streams and opens what they contain. The path `-` is standard input. If there is an index that fits, it is
    /// opened instead.
    ///
    /// A damaged stream gives the objects before the damage ([`AppliedStream::damage`]).
    ///
    /// # Errors
    /// [`StoredError`].
    pub fn open(paths: &[PathBuf], options: &StoredOptions) -> Result<Self, StoredError> {
        let Some(index) = &options.index else {
            return Self::read(paths, options);
        };
        if let Some(path) = paths.iter().find(|path| !path.is_file()) {
            let path = path.clone();
            return Err(StoredError::NotIndexed { path });
        }
        let problem = match index::read(index, paths)? {
            Some(Ok(Indexed { device, streams })) => {
                let device = Arc::new(device);
                return Ok(Self {
                    view: view_of(&device, &options.open)?,
                    streams,
                    index: Some(IndexUse::Used),
                    device,
                });
            }
            Some(Err(problem)) => Some(problem),
            None => None,
        };
        let mut opened = Self::read(paths, options)?;
        let is_damaged = opened.streams.iter().any(|stream| stream.damage.is_some());
        if !is_damaged {
            index::write(index, &opened.device, &opened.streams, paths)?;
        }
        opened.index = Some(match is_damaged {
            true => IndexUse::NotWritten,
            false => IndexUse::Written(problem),
        });
        Ok(opened)
    }

    fn read(paths: &[PathBuf], options: &StoredOptions) -> Result<Self, StoredError> {
        let folder = options.temporary_folder.clone();
        let device = Arc::new(StreamDevice::new(options.memory_bytes, folder));
        let mut waiting = vec![];
        for path in paths {
            waiting.push(Waiting::open(path, &device, &options.read_bytes)?);
        }
        let naming = Names::of(&waiting);
        let pool = scratch_pool(&naming.pool, &device)?;
        let mut streams = vec![];
        while let Some(at) = next(&pool, &waiting)? {
            let stream = waiting.remove(at);
            streams.push(apply(&pool, stream, &naming)?);
        }
        if let Some(left) = waiting.first() {
            return Err(left.without_base());
        }
        pool.export()?;
        let mut view = view_of(&device, &options.open)?;
        if streams.iter().any(AppliedStream::is_cut_raw) {
            view = view.of_cut_streams();
        }
        Ok(Self {
            view,
            streams,
            index: None,
            device,
        })
    }

    /// Where the bytes of the pool are.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.device.usage()
    }
}

/// An input whose first records were read.
struct Waiting {
    path: PathBuf,
    records: InputRecords<StreamInput>,
    first: Begin,
    stream: Option<Begin>,
}

impl Waiting {
    fn open(
        path: &Path,
        device: &Arc<StreamDevice>,
        read_bytes: &Arc<AtomicU64>,
    ) -> Result<Self, StoredError> {
        let failed = |error| StoredError::File {
            path: path.to_owned(),
            error,
        };
        let mut input = StreamInput::open(path, read_bytes).map_err(failed)?;
        let file = input.take_file().map(|file| device.add_file(file));
        let mut records = InputRecords::new(input, file, device);
        let (first, stream) = records
            .beginnings()
            .map_err(|error| StoredError::NoStream {
                path: path.to_owned(),
                reason: error.to_string(),
            })?;
        let begins = stream.iter().chain([&first]);
        if begins
            .into_iter()
            .any(|begin| begin.features.contains(StreamFeatures::RESUMING))
        {
            return Err(StoredError::Rest {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            records,
            first,
            stream,
        })
    }

    /// The guid of the snapshot that must be there before; 0 for none.
    fn base_guid(&self) -> u64 {
        self.stream.as_ref().map_or(0, |begin| begin.from_guid)
    }

    /// The dataset that it is about, at the sender.
    fn top(&self) -> String {
        let name = String::from_utf8_lossy(&self.first.to_name);
        name.split('@').next().unwrap_or_default().to_owned()
    }

    fn without_base(&self) -> StoredError {
        let named = self.stream.as_ref().unwrap_or(&self.first);
        StoredError::MissingBase {
            path: self.path.clone(),
            name: String::from_utf8_lossy(&named.to_name).into_owned(),
            guid: self.base_guid(),
        }
    }
}

/// How datasets are called: as at the sender, if that is possible.
struct Names {
    pool: String,
    naming: Naming,
}

impl Names {
    fn of(waiting: &[Waiting]) -> Self {
        let tops: Vec<String> = waiting.iter().map(Waiting::top).collect();
        let mut pools = tops
            .iter()
            .map(|top| top.split_once('/').map(|(pool, _)| pool));
        let first = pools.next().flatten();
        match first.filter(|pool| check_pool_name(pool).is_ok()) {
            Some(pool) if pools.all(|other| other == Some(pool)) => Self {
                pool: pool.to_owned(),
                naming: Naming::WithoutPool,
            },
            _ => Self {
                pool: POOL_NAME.to_owned(),
                naming: Naming::LastComponent,
            },
        }
    }
}

fn scratch_pool(name: &str, device: &Arc<StreamDevice>) -> Result<Pool, StoredError> {
    let shared: Arc<dyn Device> = Arc::clone(device) as _;
    let vdevs = NewVdevs {
        tops: vec![NewTop {
            layout: NewLayout::Single,
            class: millpond_engine::AllocationClass::Normal,
            devices: vec![NewDevice::file(DEVICE_PATH, shared)],
        }],
        ..NewVdevs::default()
    };
    let plain = [
        ("compression", "off"),
        ("redundant_metadata", "none"),
        ("atime", "off"),
    ];
    let plain = plain.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let new = NewPool {
        vdev_options: NewVdevOptions {
            // Blocks of the streams are multiples of 512 bytes.
            ashift: Some(9),
            force: true,
        },
        root_properties: BTreeMap::from(plain),
        writing: WriteOptions {
            limits: DirtyLimits {
                limit_bytes: DIRTY_BYTES,
                delay_percent: 100,
                ..DirtyLimits::default()
            },
            ..WriteOptions::default()
        },
        cache_bytes: Some(CACHE_BYTES),
        ..NewPool::new(name, vdevs)
    };
    Ok(Pool::create(&Env::real(), &new)?)
}

/// Opens the pool on a device for reading.
fn view_of(device: &Arc<StreamDevice>, options: &OpenOptions) -> Result<View, StoredError> {
    let candidate = Candidate {
        path: DEVICE_PATH.into(),
        aliases: vec![],
        partition: None,
        device: Arc::clone(device) as _,
        is_live: false,
    };
    let pools = find_pools(&scan_devices(vec![candidate]), 0);
    let pool = pools.first().ok_or(StoredError::NoPool)?;
    Ok(View::open_candidate(pool, options)?)
}

/// The first input whose older snapshot is there.
fn next(pool: &Pool, waiting: &[Waiting]) -> Result<Option<usize>, StoredError> {
    for (at, stream) in waiting.iter().enumerate() {
        if stream.base_guid() == 0 || holder(pool, stream.base_guid())?.is_some() {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// The full name of the dataset that has the snapshot with this guid.
fn holder(pool: &Pool, guid: u64) -> Result<Option<String>, StoredError> {
    let view = pool.committed()?;
    for dataset in view.datasets() {
        let dataset = dataset?;
        let mut snapshots = dataset.snapshots()?.into_iter();
        if snapshots.any(|snapshot| snapshot.inner().guid().0 == guid) {
            return Ok(Some(dataset.name().to_owned()));
        }
    }
    Ok(None)
}

fn apply(pool: &Pool, mut stream: Waiting, names: &Names) -> Result<AppliedStream, StoredError> {
    let is_clone = |begin: &Begin| begin.flags.contains(BeginFlags::CLONE);
    let continues = stream.base_guid() != 0 && !stream.stream.as_ref().is_some_and(is_clone);
    // The dataset may have been renamed since.
    let existing = match continues {
        true => holder(pool, stream.base_guid())?,
        false => None,
    };
    let top = stream.top();
    let (name, naming) = match existing {
        Some(existing) => (existing, Naming::Given),
        None => (names.pool.clone(), names.naming),
    };
    let dataset = match naming {
        Naming::Given => name.clone(),
        Naming::WithoutPool => top,
        Naming::LastComponent => {
            let last = top.rsplit('/').next().unwrap_or_default();
            format!("{name}/{last}")
        }
    };
    let request = ReceiveRequest {
        name,
        naming,
        without_holds: true,
        excluded: EXCLUDED.map(str::to_owned).to_vec(),
        ..ReceiveRequest::default()
    };
    let outcome = pool.receive_records(&request, &mut stream.records, &mut Unwatched);
    let snapshots: Vec<String> = outcome
        .steps
        .into_iter()
        .filter_map(|step| match step {
            ReceiveStep::Stream {
                name,
                bytes: Some(_),
                ..
            }
            | ReceiveStep::Present { name } => Some(name),
            _ => None,
        })
        .collect();
    let damage = stream.records.damage();
    match outcome.failure {
        // What came before the damage is shown.
        Some(failure) if damage.is_none() => Err(StoredError::Receive {
            path: stream.path,
            problem: Box::new(failure.problem),
        }),
        _ => Ok(AppliedStream {
            path: stream.path,
            dataset,
            snapshots,
            damage,
        }),
    }
}

/// The path in the pool's labels. Nothing is there.
const DEVICE_PATH: &str = "/stream";
