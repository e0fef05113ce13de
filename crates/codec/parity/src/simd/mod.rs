//! The reconstruction paths and their selection at run time.
//!
//! Multiplying a vector of bytes by a constant of GF(2^8) takes two look-ups per byte in tables of 16 entries
//! (byte shuffle), or one multiplication by an 8x8 bit matrix (GFNI). The compiler generates neither without
//! intrinsics. `x86.rs` therefore uses `unsafe` for loads and stores through pointers and for calls of
//! functions that are compiled for more than the base instruction set.

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

use crate::portable;

/// An implementation of linear combinations of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Implementation {
    /// Shift and add in plain Rust, for every processor.
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

    /// The fastest implementation that this processor can run.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .rev()
            .find(|implementation| implementation.is_available())
            .unwrap_or(Self::Portable)
    }

    /// `out = sum of coefficients[i] * sources[i]` over all pairs. If a source is shorter than `out`, or the
    /// processor lacks the implementation, this falls back to the portable path, which treats missing bytes
    /// as zero.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_implementation_has_a_name_and_portable_always_exists() {
        let names: Vec<_> = Implementation::ALL.map(Implementation::name).to_vec();
        assert_eq!(
            names,
            [
                "portable",
                "ssse3",
                "avx2",
                "avx512bw",
                "gfni-avx2",
                "gfni-avx512"
            ]
        );
        assert!(Implementation::Portable.is_available());
        assert!(Implementation::best().is_available());
        assert_eq!(implementations().last(), Some(&Implementation::best()));
        // A wider path is never available without the features of the narrower ones.
        let has = Implementation::is_available;
        assert!(has(Implementation::Ssse3) || !has(Implementation::Avx2));
        assert!(has(Implementation::Avx2) || !has(Implementation::GfniAvx2));
        assert!(has(Implementation::Avx512) || !has(Implementation::GfniAvx512));
        assert!(has(Implementation::GfniAvx2) || !has(Implementation::GfniAvx512));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_path_runs_where_supported_and_fails_cleanly_elsewhere() {
        let column: Vec<u8> = (0..=255).cycle().take(300).collect();
        let (short, long) = (&column[..100], &column[..]);
        for implementation in Implementation::ALL {
            let runs = implementation.is_available() && implementation != Implementation::Portable;
            let run = |sources: &[&[u8]], coefficients: &[u8]| {
                let mut out = vec![0x5a; 101];
                let done = x86::combine(implementation, &mut out, sources, coefficients);
                if !done {
                    assert_eq!(out, vec![0x5a; 101]);
                }
                (done, out)
            };
            let (done, out) = run(&[long, long], &[1, 1]);
            assert_eq!(done, runs, "{implementation:?}");
            if done {
                assert_eq!(out, vec![0; 101]);
            }
            // A source of exactly this length is long enough. A source without coefficient does not count.
            assert_eq!(run(&[&column[..101]], &[1]).0, runs);
            assert_eq!(run(&[long, short], &[1]).0, runs);
            assert!(!run(&[long, short], &[1, 1]).0);
            // 255 data columns and 3 parity columns are the maximum.
            let most = vec![long; 259];
            assert_eq!(run(&most[..258], &[1; 258]).0, runs);
            assert!(!run(&most, &[1; 259]).0);
            assert_eq!(run(&most, &[1; 258]).0, runs);
        }
    }
}
