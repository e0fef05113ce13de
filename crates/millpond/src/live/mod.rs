//! Pools that can be written: creating and opening them, their datasets and files.
//!
//! A [`LivePool`] holds locks on its devices, so that no other process can open them for writing. A change
//! is on stable storage after [`LivePool::sync`], and otherwise after at most a few seconds. A change of
//! datasets waits for its own txg. If a pool is dropped without [`LivePool::export`], it is left as after a
//! crash: consistent, at its last committed txg.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use millpond::{Caller, NewMode, WriteAt};
//! use millpond::live::{LivePool, PoolPlan};
//!
//! # let folder = std::env::temp_dir().join(format!("millpond-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let image = folder.join("disk.img");
//! std::fs::File::create(&image)?.set_len(64 << 20)?;
//!
//! let pool = PoolPlan::new("tank").single(&image).create()?;
//! pool.datasets().create_filesystem("tank/home", &[])?;
//! let files = pool.file_system("tank/home")?;
//! let (root, caller) = (files.root()?, Caller::root());
//! let (note, _) = files.create(&caller, &root, b"note.txt", NewMode::exactly(0o644), true)?;
//! files.write(&caller, &note, WriteAt::Offset(0), b"kept")?;
//! pool.datasets().snapshot(&["tank/home@first"], &[])?;
//! pool.export()?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(()) }
//! ```
//!
//! The next example opens a pool by name and path, uses a volume beside file systems, and reads the committed
//! state through the read-only interface:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use millpond::{Caller, NewMode, WriteAt};
//! use millpond::live::{LivePool, PoolPlan, WriteOptions};
//! use millpond::{OpenOptions, Pool, Search, Symlinks};
//! use millpond_dataset::properties::PropertyValue;
//!
//! # let folder = std::env::temp_dir().join(format!("millpond-doc2-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let images = [folder.join("a.img"), folder.join("b.img")];
//! for image in &images {
//!     std::fs::File::create(image)?.set_len(64 << 20)?;
//! }
//! let plan = PoolPlan::new("tank").mirror(&images).root_property("compression", "zstd");
//! plan.create()?.export()?;
//!
//! // With the devices' locks; refused, with every reason, if something in the pool may not be written.
//! let search = Search::new([&folder]);
//! let (reading, writing) = (OpenOptions::default(), WriteOptions::default());
//! let pool = LivePool::open(&search, "tank", &reading, &writing)?;
//!
//! let size = [("volsize".to_owned(), PropertyValue::Number(8 << 20))];
//! pool.datasets().create_volume("tank/disk", &size)?;
//! let volume = pool.volume("tank/disk")?;
//! volume.write(1 << 20, b"any byte of it")?;
//! volume.flush()?;
//!
//! let files = pool.file_system("tank")?;
//! let (root, caller) = (files.root()?, Caller::user(1000, 1000));
//! let mail = files.make_directory(&caller, &root, b"mail", NewMode::exactly(0o700))?;
//! let (letter, _) = files.create(&caller, &mail, b"1", NewMode::exactly(0o600), true)?;
//! files.write(&caller, &letter, WriteAt::End, b"Dear ")?;
//! files.write(&caller, &letter, WriteAt::End, b"reader")?;
//! let mut text = [0; 11];
//! letter.read(0, &mut text)?;
//! assert_eq!(&text, b"Dear reader");
//!
//! // The reader's view of the last committed txg, while the pool stays open.
//! pool.sync()?;
//! let view = pool.committed()?.dataset("tank")?.file_system()?;
//! assert_eq!(view.resolve(b"mail/1", Symlinks::Follow)?.size_bytes(), 11);
//! drop((volume, files, root, mail, letter, view));
//! pool.export()?;
//!
//! let read = Pool::open(&search, "tank", &reading)?;
//! let disk = read.dataset("tank/disk")?.volume()?;
//! let mut bytes = [0; 8];
//! disk.data().read(1 << 20, &mut bytes)?;
//! assert_eq!(&bytes, b"any byte");
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(()) }
//! ```

mod initializer;
mod plan;
mod pool;
mod replay;
mod served;
mod tx_provider;

pub use millpond_block::{LeafCondition, LeafReason, LeafState};
pub use millpond_dataset::Refusal;
pub use millpond_dataset::{DatasetSpace, Datasets, DestroyOptions, HeadDataset};
pub use millpond_pool::{
    CreateError, FeatureChoice, FoundLogs, HistoryCommand, LeafError, LeafEvent, LeafEventKind,
    NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs, NotedEvent, Offline,
    PoolSetting, Replication, ReplicationMismatch, RequestDeadline, SettingError, SettingTime,
    SyncMode, VdevSetting, WhyReadOnly, WriteOptions,
};
pub use millpond_vdev::{AllocationClass, VdevType};
pub use plan::PoolPlan;
pub(crate) use plan::open_device;
pub use pool::{LivePool, SCAN_FOR_WRITING};
pub use served::MountSettings;
