//! Choice of the reconstruction path at run time, and the paths themselves.
//!
//! Multiplying a vector of bytes by a constant of GF(2^8) is two table look-ups of 16 entries per
//! byte (byte shuffle) or one multiplication by an 8x8 bit matrix (GFNI). Neither can be had from
//! the compiler without intrinsics, hence `unsafe` in `x86.rs`: loads and stores through pointers,
//! and calls of functions compiled for more than the base instruction set.

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

use crate::portable;

/// A way to compute linear combinations of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Implementation {
    /// Shift and add in plain Rust; every processor has it.
    Portable,
    /// Byte shuffles, 16 bytes wide (x86-64 with SSSE3).
    Ssse3,
    /// Byte shuffles, 32 bytes wide.
    Avx2,
    /// Byte shuffles, 64 bytes wide.
    Avx512,
    /// Bit-matrix products, 32 bytes wide.
    GfniAvx2,
    /// Bit-matrix products, 64 bytes wide.
    GfniAvx512,
}

impl Implementation {
    /// Every implementation, slowest first.
    pub const ALL: [Implementation; 6] = [
        Self::Portable,
        Self::Ssse3,
        Self::Avx2,
        Self::Avx512,
        Self::GfniAvx2,
        Self::GfniAvx512,
    ];

    /// A short name for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Ssse3 => "ssse3",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512bw",
            Self::GfniAvx2 => "gfni-avx2",
            Self::GfniAvx512 => "gfni-avx512",
        }
    }

    /// Whether this processor can run it.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            match self {
                Self::Portable => true,
                Self::Ssse3 => has!("ssse3"),
                Self::Avx2 => has!("avx2"),
                Self::Avx512 => has!("avx512f") && has!("avx512bw"),
                Self::GfniAvx2 => has!("gfni") && has!("avx2"),
                Self::GfniAvx512 => has!("gfni") && has!("avx512f") && has!("avx512bw"),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Portable
        }
    }

    /// The fastest one that this processor can run.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .rev()
            .find(|implementation| implementation.is_available())
            .unwrap_or(Self::Portable)
    }

    /// `out = sum of coefficients[i] * sources[i]` over as many pairs as both have. Sources that
    /// are shorter than `out` make every path fall back to the portable one, which takes what is
    /// missing as zero. An implementation that the processor lacks does the same.
    pub(crate) fn combine(self, out: &mut [u8], sources: &[&[u8]], coefficients: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        if x86::combine(self, out, sources, coefficients) {
            return;
        }
        portable::combine(out, sources, coefficients);
    }
}

/// The implementations of reconstruction that this processor can run, slowest first.
#[must_use]
pub fn implementations() -> Vec<Implementation> {
    Implementation::ALL
        .into_iter()
        .filter(|implementation| implementation.is_available())
        .collect()
}
