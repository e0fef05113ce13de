//! Layer `codec`: RAID-Z parity, bytes to bytes.
//!
//! Up to three parity columns P, Q and R over at most 255 data columns in GF(2^8). This crate only works on
//! columns of bytes. The vdev layer decides which child device holds a column and which columns are trusted.
//!
//! Generation is plain Rust compiled for several instruction sets. Reconstruction multiplies by arbitrary
//! field elements. For this, portable code is several times slower than byte shuffles or the GFNI
//! instructions, so reconstruction has hand-written paths in `src/simd/`, the only folder of this crate where
//! `unsafe` is allowed.
//!
//! ```
//! use millpond_parity::{generate, reconstruct};
//! let (mut a, mut b) = ([1u8, 2, 3, 4], [0x80u8, 0xff, 0x10, 0]);
//! let (mut p, mut q) = ([0u8; 4], [0u8; 4]);
//! generate(&[&a, &b], &mut [&mut p, &mut q]).unwrap();
//! a.fill(0);
//! b.fill(0);
//! reconstruct(&mut [&mut a, &mut b], &mut [&mut p, &mut q], &[0, 1], &[]).unwrap();
//! assert_eq!((a, b), ([1, 2, 3, 4], [0x80, 0xff, 0x10, 0]));
//! ```
//!
//! Page: `docs/format/raidz-parity.md`.
#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod error;
mod field;
mod generate;
mod portable;
mod reconstruct;
mod simd;

pub use error::ParityError;
pub use generate::generate;
pub use reconstruct::{reconstruct, reconstruct_with};
pub use simd::{Implementation, implementations};

/// The maximum number of parity columns in a group.
pub const PARITY_MAX: usize = 3;
/// The maximum number of data columns. Up to this number every pattern of up to three losses can be solved.
/// It is the order of the field's multiplicative group.
pub const DATA_COLUMNS_MAX: usize = 255;
