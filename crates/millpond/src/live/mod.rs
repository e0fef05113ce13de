//! Pools that change: made, opened for writing, their datasets and files.
//!
//! A [`LivePool`] holds its devices' locks; nobody else can open them for writing meanwhile. What was
//! changed is on stable storage after [`LivePool::sync`] (or any change of datasets, each of which waits
//! for its own txg), and at the latest some seconds later. Dropped without [`LivePool::export`] a pool is
//! left as a crash would leave it: whole, at its last committed txg.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use millpond::live::{Caller, LivePool, NewMode, PoolPlan, WriteAt};
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

mod contents;
mod gate;
mod plan;
mod pool;

pub use millpond_dataset::live::{DatasetSpace, DestroyOptions, LiveDataset, LiveDatasets};
pub use millpond_pool::live::{
    CreateError, Drive, FeatureChoice, NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions,
    NewVdevs, PoolSetting, SettingError, SettingTime, WhyReadOnly, WriteOptions,
};
pub use millpond_posix::live::{
    Allocate, Caller, FileError, LiveFileSystem, LiveNode, NewMode, Place, RenameMode, Seek,
    SetAttributes, SetTime, SpecialFile, WriteAt, XattrMode,
};
pub use millpond_volume::LiveVolume;
pub use plan::PoolPlan;
pub use pool::{LivePool, SCAN_FOR_WRITING};
