//! The x86-64 paths. One macro generates the loop for every width. The paths differ in how they multiply a
//! vector by a constant.
#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "inner loops; every index is bounded by the asserted lengths"
)]

use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi8, _mm_setzero_si128,
    _mm_shuffle_epi8, _mm_srli_epi64, _mm_storeu_si128, _mm_xor_si128, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256,
    _mm256_set1_epi8, _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256, _mm512_and_si512,
    _mm512_broadcast_i32x4, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_set1_epi8,
    _mm512_set1_epi64, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_srli_epi64,
    _mm512_storeu_si512, _mm512_xor_si512,
};

use super::Implementation;
use crate::{
    DATA_COLUMNS_MAX, PARITY_MAX,
    field::{double, multiply},
};

/// The maximum number of sources in one combination.
const SOURCES_MAX: usize = DATA_COLUMNS_MAX + PARITY_MAX;

/// Runs `implementation` if it is one of these paths and its requirements are met. Otherwise returns false
/// without changing anything.
pub(super) fn combine(
    implementation: Implementation,
    out: &mut [u8],
    sources: &[&[u8]],
    coefficients: &[u8],
) -> bool {
    let count = sources.len().min(coefficients.len());
    let (sources, coefficients) = (&sources[..count], &coefficients[..count]);
    if count > SOURCES_MAX
        || sources.iter().any(|source| source.len() < out.len())
        || !implementation.is_available()
    {
        return false;
    }
    // SAFETY: `is_available` has just found every processor feature that each function is compiled
    // for.
    unsafe {
        match implementation {
            Implementation::Portable => return false,
            Implementation::Ssse3 => shuffle_16(out, sources, coefficients),
            Implementation::Avx2 => shuffle_32(out, sources, coefficients),
            Implementation::Avx512 => shuffle_64(out, sources, coefficients),
            Implementation::GfniAvx2 => matrix_32(out, sources, coefficients),
            Implementation::GfniAvx512 => matrix_64(out, sources, coefficients),
        }
    }
    true
}

/// Products of a constant with all values of the low half and of the high half of a byte.
#[derive(Clone, Copy)]
struct Nibbles {
    low: [u8; 16],
    high: [u8; 16],
}

impl Nibbles {
    fn of(coefficient: u8) -> Self {
        let mut table = Self {
            low: [0; 16],
            high: [0; 16],
        };
        for (nibble, (low, high)) in (0u8..16).zip(table.low.iter_mut().zip(&mut table.high)) {
            *low = multiply(coefficient, nibble);
            *high = multiply(coefficient, nibble << 4);
        }
        table
    }
}

/// The bit matrix of multiplication by a constant. In byte 7-i, bit j shows whether bit i of the product
/// depends on bit j of the other factor.
fn bit_matrix(coefficient: u8) -> i64 {
    let mut rows = [0u8; 8];
    let mut column = coefficient;
    for bit in 0..8 {
        for (i, row) in rows.iter_mut().rev().enumerate() {
            *row |= (column >> i & 1) << bit;
        }
        column = double(column);
    }
    i64::from_le_bytes(rows)
}

/// Computes the bytes that do not fill a whole vector.
fn tail(out: &mut [u8], from: usize, sources: &[&[u8]], coefficients: &[u8]) {
    for (at, out) in out.iter_mut().enumerate().skip(from) {
        *out = sources
            .iter()
            .zip(coefficients)
            .fold(0, |sum, (source, &coefficient)| {
                sum ^ multiply(coefficient, source[at])
            });
    }
}

/// Generates a path: blocks of four vectors, then single vectors, then bytes. Sums stay in registers while
/// the loop visits all sources.
macro_rules! path {
    ($name:ident, $features:literal, $vector:ty, $width:literal, $zero:ident, $load:ident,
     $store:ident, $xor:ident, $constant:ty, $prepare:expr, $spread:expr, $product:expr) => {
        #[target_feature(enable = $features)]
        fn $name(out: &mut [u8], sources: &[&[u8]], coefficients: &[u8]) {
            // The unsafe loads below rely on these assertions.
            let length = out.len();
            assert!(sources.len() == coefficients.len() && sources.len() <= SOURCES_MAX);
            assert!(sources.iter().all(|source| source.len() >= length));
            let constants: Vec<$constant> = coefficients.iter().map(|&c| $prepare(c)).collect();

            let mut at = 0;
            while length - at >= 4 * $width {
                let mut sums: [$vector; 4] = [$zero(); 4];
                for (source, constant) in sources.iter().zip(&constants) {
                    let factor = $spread(constant);
                    let block = source[at..at + 4 * $width].as_ptr();
                    for (i, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: the slice that `block` comes from has four vectors' bytes; loads
                        // need no alignment.
                        let x = unsafe { $load(block.add(i * $width).cast()) };
                        *sum = $xor(*sum, $product(x, factor));
                    }
                }
                let block = out[at..at + 4 * $width].as_mut_ptr();
                for (i, sum) in sums.into_iter().enumerate() {
                    // SAFETY: as for the loads; the slice is borrowed mutably.
                    unsafe { $store(block.add(i * $width).cast(), sum) };
                }
                at += 4 * $width;
            }
            while length - at >= $width {
                let mut sum: $vector = $zero();
                for (source, constant) in sources.iter().zip(&constants) {
                    let block = source[at..at + $width].as_ptr();
                    // SAFETY: the slice has one vector's bytes; loads need no alignment.
                    let x = unsafe { $load(block.cast()) };
                    sum = $xor(sum, $product(x, $spread(constant)));
                }
                let block = out[at..at + $width].as_mut_ptr();
                // SAFETY: as for the load; the slice is borrowed mutably.
                unsafe { $store(block.cast(), sum) };
                at += $width;
            }
            tail(out, at, sources, coefficients);
        }
    };
}

path!(
    shuffle_16,
    "ssse3",
    __m128i,
    16,
    _mm_setzero_si128,
    _mm_loadu_si128,
    _mm_storeu_si128,
    _mm_xor_si128,
    Nibbles,
    Nibbles::of,
    |table: &Nibbles| (table_128(&table.low), table_128(&table.high)),
    |x: __m128i, (low, high): (__m128i, __m128i)| {
        let mask = _mm_set1_epi8(15);
        _mm_xor_si128(
            _mm_shuffle_epi8(low, _mm_and_si128(x, mask)),
            _mm_shuffle_epi8(high, _mm_and_si128(_mm_srli_epi64::<4>(x), mask)),
        )
    }
);

path!(
    shuffle_32,
    "avx2",
    __m256i,
    32,
    _mm256_setzero_si256,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_xor_si256,
    Nibbles,
    Nibbles::of,
    |table: &Nibbles| (
        _mm256_broadcastsi128_si256(table_128(&table.low)),
        _mm256_broadcastsi128_si256(table_128(&table.high))
    ),
    |x: __m256i, (low, high): (__m256i, __m256i)| {
        let mask = _mm256_set1_epi8(15);
        _mm256_xor_si256(
            _mm256_shuffle_epi8(low, _mm256_and_si256(x, mask)),
            _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64::<4>(x), mask)),
        )
    }
);

path!(
    shuffle_64,
    "avx512f,avx512bw",
    __m512i,
    64,
    _mm512_setzero_si512,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_xor_si512,
    Nibbles,
    Nibbles::of,
    |table: &Nibbles| (
        _mm512_broadcast_i32x4(table_128(&table.low)),
        _mm512_broadcast_i32x4(table_128(&table.high))
    ),
    |x: __m512i, (low, high): (__m512i, __m512i)| {
        let mask = _mm512_set1_epi8(15);
        _mm512_xor_si512(
            _mm512_shuffle_epi8(low, _mm512_and_si512(x, mask)),
            _mm512_shuffle_epi8(high, _mm512_and_si512(_mm512_srli_epi64::<4>(x), mask)),
        )
    }
);

path!(
    matrix_32,
    "avx2,gfni",
    __m256i,
    32,
    _mm256_setzero_si256,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_xor_si256,
    i64,
    bit_matrix,
    |matrix: &i64| _mm256_set1_epi64x(*matrix),
    |x: __m256i, matrix: __m256i| _mm256_gf2p8affine_epi64_epi8::<0>(x, matrix)
);

path!(
    matrix_64,
    "avx512f,avx512bw,gfni",
    __m512i,
    64,
    _mm512_setzero_si512,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_xor_si512,
    i64,
    bit_matrix,
    |matrix: &i64| _mm512_set1_epi64(*matrix),
    |x: __m512i, matrix: __m512i| _mm512_gf2p8affine_epi64_epi8::<0>(x, matrix)
);

#[inline(always)]
fn table_128(table: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes are read from an array of 16; SSE2 is part of every x86-64.
    unsafe { _mm_loadu_si128(table.as_ptr().cast()) }
}
