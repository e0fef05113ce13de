//! Layer `object`: ZAPs, the objects that map names to integers.
//!
//! A [`Zap`] finds entries by name or by a key of words, and lists them in hash order, one leaf at a time: a
//! directory of a million names is never held in memory as a whole. This crate implements ZAPs and the
//! folding of names. Directories, properties and tables built on ZAPs belong to the layers above.
//!
//! ```no_run
//! # fn example(object: millpond_object::ObjectView) -> Result<(), millpond_zap::ZapError> {
//! use millpond_zap::Zap;
//! let zap = Zap::open(object)?;
//! let root = zap.lookup_u64(b"ROOT")?;
//! for entry in zap.iter() {
//!     let entry = entry?;
//!     println!("{:?} = {:?}", entry.name, entry.value.first());
//! }
//! # let _ = root; Ok(()) }
//! ```
//!
//! Pages: `docs/format/zap-micro.md`, `docs/format/zap-fat.md`, `docs/format/name-normalisation.md`.
#![forbid(unsafe_code)]

mod check;
mod cursor;
mod error;
mod lookup;
mod micro_index;
mod normalise;
mod source;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod unicode_5_0;
mod zap;
mod zap_mut;

pub use check::ZapSummary;
pub use cursor::ZapCursor;
pub use error::ZapError;
pub use lookup::NameMatch;
pub use micro_index::MicroIndex;
pub use millpond_ondisk::zap::{COOKIE_END, ZapFlags, ZapForm, ZapHeader, ZapValue};
pub use normalise::{Normalisation, UnicodeForm};
pub use source::ZapSource;
pub use zap::{Zap, ZapEntry};
pub use zap_mut::{
    AtZero, MICRO_BYTES_MAX_USUAL, NAME_BYTES_MAX_USUAL, NewZap, ObjectBlocks, ZapMut, ZapShape,
    ZapStore, allocate_zap, new_salt,
};
