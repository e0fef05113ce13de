//! Pools with valid checksums and hostile content.
//!
//! Checksums detect random damage, so it tests little of the code that runs after verification. Here,
//! blocks of a real pool are decompressed, changed, and checksummed again up to the uberblock, as an
//! attacker could do.
//!
//! [`image`] reads the blocks and writes them with new checksums, [`mutation`] changes them, [`exercise`]
//! calls all reading functions of the library, [`child`] limits the memory and time of a run.

pub mod child;
pub mod exercise;
pub mod image;
pub mod mutation;
pub mod overlay;
pub mod rng;
