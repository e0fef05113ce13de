//! Layer `file`: volumes, as ranges of bytes.
//!
//! A [`Volume`] is one data object and a size. It is opened for reading on a committed object set, or for change
//! on an object set that can be written. This crate uses objects; it does not depend on datasets, block devices
//! or protocols.
//!
//! ```no_run
//! # fn example(set: &std::sync::Arc<millpond_object::ObjectSetView>) -> Result<(), millpond_volume::VolumeError> {
//! let volume = millpond_volume::Volume::open("tank/disk", set)?;
//! let mut sector = [0u8; 512];
//! volume.read(0, &mut sector)?;
//! # Ok(()) }
//! ```
//!
//! Page: `docs/format/volume.md`.
#![forbid(unsafe_code)]

mod create;
mod error;
mod extent;
mod records;
mod resize;
mod volume;
mod write;

pub use create::create_volume;
pub use error::VolumeError;
pub use extent::{VolumeExtent, VolumeExtents};
pub use records::ReplayBlock;
pub use volume::Volume;
