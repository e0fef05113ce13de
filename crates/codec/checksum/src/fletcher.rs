//! Fletcher checksums over 32- and 64-bit words, computed in several lanes at once.
//!
//! With N words, word k counts N-k times in the second sum, and so on; all modulo 2^64. Lane i of L sums
//! words i, i+L, i+2L, ... separately. A fixed linear combination of the lanes' sums gives the sums of the
//! whole. The compiler computes the coefficients from the definition of the weights.
#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "inner loops over arrays with constant bounds; sums wrap by explicit calls"
)]

use millpond_ondisk::{ChecksumKind, Endian};
use multiversion::multiversion;

use crate::ChecksumError;

/// A Fletcher-4 checksum computed part by part, as in a send stream or around a hole in the data.
///
/// Page `docs/format/checksums.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fletcher4 {
    words: [u64; 4],
}

impl Fletcher4 {
    /// The checksum of no data.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    /// Continues from stored words.
    #[must_use]
    pub fn from_words(words: [u64; 4]) -> Self {
        Self { words }
    }
    /// The four sums.
    #[must_use]
    pub fn words(self) -> [u64; 4] {
        self.words
    }
    /// Adds 32-bit words stored in `endian` order.
    ///
    /// # Errors
    /// [`ChecksumError::Length`] if `data` is not a multiple of 4 bytes; the checksum is then unchanged.
    pub fn update(&mut self, data: &[u8], endian: Endian) -> Result<(), ChecksumError> {
        let (words, []) = data.as_chunks::<4>() else {
            return Err(ChecksumError::Length {
                kind: ChecksumKind::Fletcher4,
                length: data.len(),
                multiple: 4,
            });
        };
        *self = self.followed_by(
            Self {
                words: sum4(words, endian),
            },
            words.len() as u64,
        );
        Ok(())
    }
    /// Joins the checksums of two parts: `self` covers the first part, `second` the following `second_words`
    /// 32-bit words. This permits summing parts in parallel.
    #[must_use]
    pub fn followed_by(self, second: Self, second_words: u64) -> Self {
        let [a, b, c, d] = self.words;
        let [a2, b2, c2, d2] = second.words;
        let n = second_words;
        let n2 = triangular(n);
        let n3 = tetrahedral(n);
        let of = |x: u64, n: u64| x.wrapping_mul(n);
        let sum = |parts: &[u64]| parts.iter().fold(0, |sum: u64, x| sum.wrapping_add(*x));
        Self {
            words: [
                sum(&[a, a2]),
                sum(&[b, of(a, n), b2]),
                sum(&[c, of(b, n), of(a, n2), c2]),
                sum(&[d, of(c, n), of(b, n2), of(a, n3), d2]),
            ],
        }
    }
}

/// n(n+1)/2 modulo 2^64. The even factor is halved before the product can wrap.
fn triangular(n: u64) -> u64 {
    let half = n / 2;
    if n.is_multiple_of(2) {
        half.wrapping_mul(n.wrapping_add(1))
    } else {
        n.wrapping_mul(half.wrapping_add(1))
    }
}

/// n(n+1)(n+2)/6 modulo 2^64.
#[allow(clippy::cast_possible_truncation, reason = "the sum is modulo 2^64")]
fn tetrahedral(n: u64) -> u64 {
    // Exact: below 2^127.
    let n = u128::from(n);
    let pairs = if n.is_multiple_of(2) {
        n / 2 * (n + 1)
    } else {
        n.div_ceil(2) * n
    };
    if pairs.is_multiple_of(3) {
        ((pairs / 3) as u64).wrapping_mul((n + 2) as u64)
    } else {
        // Neither n nor n+1 is divisible by 3, so n+2 is: this is (n+2)/3.
        (pairs as u64).wrapping_mul(n.div_ceil(3) as u64)
    }
}

/// Fletcher-2: two interleaved pairs of sums over 64-bit words. `data` consists of whole pairs of words.
pub(crate) fn fletcher2(data: &[u8], endian: Endian) -> Result<[u64; 4], ChecksumError> {
    let (pairs, []) = data.as_chunks::<16>() else {
        return Err(ChecksumError::Length {
            kind: ChecksumKind::Fletcher2,
            length: data.len(),
            multiple: 16,
        });
    };
    Ok(sum2(pairs, endian))
}

/// Fletcher-4 of a whole block.
pub(crate) fn fletcher4(data: &[u8], endian: Endian) -> Result<[u64; 4], ChecksumError> {
    let mut sum = Fletcher4::new();
    sum.update(data, endian)?;
    Ok(sum.words)
}

/// Computes Fletcher-2 word by word according to the definition. Ignores bytes after the last whole pair of
/// 64-bit words. Reference for tests and benchmarks of the fast form.
#[must_use]
pub fn fletcher2_by_definition(data: &[u8], endian: Endian) -> [u64; 4] {
    let mut sums = [0u64; 4];
    for pair in data.as_chunks::<16>().0 {
        step2(&mut sums, pair, endian);
    }
    sums
}

/// Computes Fletcher-4 word by word according to the definition. Ignores bytes after the last whole 32-bit
/// word. Reference for tests and benchmarks of the fast form.
#[must_use]
pub fn fletcher4_by_definition(data: &[u8], endian: Endian) -> [u64; 4] {
    let mut sums = [0u64; 4];
    for word in data.as_chunks::<4>().0 {
        step4(&mut sums, endian.u32(*word));
    }
    sums
}

#[inline(always)]
fn step2(sums: &mut [u64; 4], pair: &[u8; 16], endian: Endian) {
    let [a0, a1, b0, b1] = sums;
    let (words, _) = pair.as_chunks::<8>();
    if let [x, y] = words {
        *a0 = a0.wrapping_add(endian.u64(*x));
        *a1 = a1.wrapping_add(endian.u64(*y));
        *b0 = b0.wrapping_add(*a0);
        *b1 = b1.wrapping_add(*a1);
    }
}

#[inline(always)]
fn step4(sums: &mut [u64; 4], word: u32) {
    let [a, b, c, d] = sums;
    *a = a.wrapping_add(u64::from(word));
    *b = b.wrapping_add(*a);
    *c = c.wrapping_add(*b);
    *d = d.wrapping_add(*c);
}

/// Lanes of Fletcher-4. Eight 64-bit sums fill one AVX-512 register or two AVX2 registers.
const LANES: usize = 8;
/// Below this many 32-bit words, the cost of joining the lanes outweighs their gain.
const SHORT_WORDS: usize = 128;
/// Words of Fletcher-2 processed at a time: four lanes for each of the two pairs.
const WORDS: usize = 8;

fn sum4(words: &[[u8; 4]], endian: Endian) -> [u64; 4] {
    if words.len() < SHORT_WORDS {
        let mut sums = [0; 4];
        for word in words {
            step4(&mut sums, endian.u32(*word));
        }
        return sums;
    }
    let (groups, rest) = words.as_chunks::<LANES>();
    let mut sums = joined4(&lanes4(groups, endian));
    for word in rest {
        step4(&mut sums, endian.u32(*word));
    }
    sums
}

fn sum2(pairs: &[[u8; 16]], endian: Endian) -> [u64; 4] {
    let (groups, rest) = pairs.as_flattened().as_chunks::<{ 8 * WORDS }>();
    let mut sums = joined2(&lanes2(groups, endian));
    for pair in rest.as_chunks::<16>().0 {
        step2(&mut sums, pair, endian);
    }
    sums
}

// The two functions below contain nothing but the loops. When the joining of the lanes was inlined after
// them, the compiler no longer vectorised (4 GB/s instead of 40).

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx2",
    "x86_64+avx2",
    "x86_64+sse4.1",
    "aarch64+neon"
))]
fn lanes4(groups: &[[[u8; 4]; LANES]], endian: Endian) -> [[u64; LANES]; 4] {
    match endian {
        Endian::Little => lanes4_of(groups, u32::from_le_bytes),
        Endian::Big => lanes4_of(groups, u32::from_be_bytes),
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx2",
    "x86_64+avx2",
    "x86_64+sse4.1",
    "aarch64+neon"
))]
fn lanes2(groups: &[[u8; 8 * WORDS]], endian: Endian) -> [[u64; WORDS]; 2] {
    match endian {
        Endian::Little => lanes2_of(groups, u64::from_le_bytes),
        Endian::Big => lanes2_of(groups, u64::from_be_bytes),
    }
}

#[inline(always)]
fn lanes4_of<const N: usize>(
    groups: &[[[u8; 4]; N]],
    load: impl Fn([u8; 4]) -> u32,
) -> [[u64; N]; 4] {
    let (mut a, mut b, mut c, mut d) = ([0u64; N], [0u64; N], [0u64; N], [0u64; N]);
    for group in groups {
        for i in 0..N {
            a[i] = a[i].wrapping_add(u64::from(load(group[i])));
            b[i] = b[i].wrapping_add(a[i]);
            c[i] = c[i].wrapping_add(b[i]);
            d[i] = d[i].wrapping_add(c[i]);
        }
    }
    [a, b, c, d]
}

#[inline(always)]
fn lanes2_of(groups: &[[u8; 8 * WORDS]], load: impl Fn([u8; 8]) -> u64) -> [[u64; WORDS]; 2] {
    let (mut a, mut b) = ([0u64; WORDS], [0u64; WORDS]);
    for group in groups {
        let words = group.as_chunks::<8>().0;
        for i in 0..WORDS {
            a[i] = a[i].wrapping_add(load(words[i]));
            b[i] = b[i].wrapping_add(a[i]);
        }
    }
    [a, b]
}

/// Combines the sums of the lanes into the sums of the whole.
fn joined4<const N: usize>(lanes: &[[u64; N]; 4]) -> [u64; 4] {
    let weights = const { weights::<N>() };
    let mut sums = [0u64; 4];
    for (lane, of_lane) in weights.iter().enumerate() {
        for (sum, row) in sums.iter_mut().zip(of_lane) {
            for (weight, part) in row.iter().zip(lanes) {
                *sum = sum.wrapping_add(weight.wrapping_mul(part[lane]));
            }
        }
    }
    sums
}

fn joined2([a, b]: &[[u64; WORDS]; 2]) -> [u64; 4] {
    let lanes = (WORDS / 2) as u64;
    let mut sums = [0u64; 4];
    for word in 0..WORDS {
        let lane = (word / 2) as u64;
        let side = word % 2;
        sums[side] = sums[side].wrapping_add(a[word]);
        // A word that counts s times in its lane counts lanes * s - lane times in the whole.
        sums[side + 2] = sums[side + 2]
            .wrapping_add(lanes.wrapping_mul(b[word]))
            .wrapping_sub(lane.wrapping_mul(a[word]));
    }
    sums
}

/// For each lane and each sum of the whole, the factors of the lane's four sums.
///
/// A word that is the s-th from the end of lane i is the u = L * s - i -th from the end of the whole. It
/// counts W0(s) = 1, W1(s) = s, W2(s) = s(s+1)/2, W3(s) = s(s+1)(s+2)/6 times in its lane's sums, and Wk(u)
/// times in the whole's sums. Wk(L * s - i) as a combination of W0..W3(s) follows from its values at s = 0,
/// -1, -2, -3, where Wj(-r) is (-1)^j times r over j.
const fn weights<const L: usize>() -> [[[u64; 4]; 4]; L] {
    const fn value(k: usize, u: i64) -> i64 {
        match k {
            0 => 1,
            1 => u,
            2 => u * (u + 1) / 2,
            _ => u * (u + 1) * (u + 2) / 6,
        }
    }
    const OVER: [[i64; 4]; 4] = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 2, 1, 0], [1, 3, 3, 1]];
    let mut table = [[[0u64; 4]; 4]; L];
    let mut lane = 0;
    while lane < L {
        let mut k = 0;
        while k < 4 {
            let mut j = 0;
            while j <= k {
                let mut weight = 0i64;
                let mut r = 0;
                while r <= j {
                    let sign = if r % 2 == 0 { 1 } else { -1 };
                    let at = -((L * r + lane) as i64);
                    weight += sign * OVER[j][r] * value(k, at);
                    r += 1;
                }
                table[lane][k][j] = weight.cast_unsigned();
                j += 1;
            }
            k += 1;
        }
        lane += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any number of lanes in portable code.
    fn portable<const N: usize>(words: &[[u8; 4]], endian: Endian) -> [u64; 4] {
        let (groups, rest) = words.as_chunks::<N>();
        let mut sums = joined4(&lanes4_of(groups, |word| endian.u32(word)));
        for word in rest {
            step4(&mut sums, endian.u32(*word));
        }
        sums
    }

    #[test]
    fn the_weights_of_four_lanes_are_those_worked_out_by_hand() {
        let weights = weights::<4>();
        assert_eq!(weights[0][1], [0, 4, 0, 0]);
        assert_eq!(weights[3][1], [3u64.wrapping_neg(), 4, 0, 0]);
        assert_eq!(weights[1][2], [0, 10u64.wrapping_neg(), 16, 0]);
        assert_eq!(weights[3][2], [3, 18u64.wrapping_neg(), 16, 0]);
        assert_eq!(weights[0][3][3], 64);
    }
    #[test]
    fn odd_lengths_are_refused_not_rounded() {
        assert_eq!(
            fletcher4(&[0; 7], Endian::Little),
            Err(ChecksumError::Length {
                kind: ChecksumKind::Fletcher4,
                length: 7,
                multiple: 4
            })
        );
        assert_eq!(
            fletcher2(&[0; 24], Endian::Little),
            Err(ChecksumError::Length {
                kind: ChecksumKind::Fletcher2,
                length: 24,
                multiple: 16
            })
        );
    }
    #[test]
    fn the_counting_numbers_hold_where_their_products_wrap() {
        for n in [0u64, 1, 2, 3, 4, 5, 1 << 20, (1 << 40) + 1] {
            let wide = u128::from(n);
            assert_eq!(triangular(n), (wide * (wide + 1) / 2) as u64);
            assert_eq!(tetrahedral(n), (wide * (wide + 1) * (wide + 2) / 6) as u64);
        }
        // For 2^64 - 1 the exact values are 2^63 (2^64 - 1) and 2^63 (2^128 - 1) / 3.
        assert_eq!(triangular(u64::MAX), 1 << 63);
        assert_eq!(tetrahedral(u64::MAX).wrapping_mul(3), 1 << 63);
    }
    #[test]
    fn a_long_block_of_ones_wraps_like_the_definition() {
        let data = vec![0xffu8; 1 << 20];
        assert_eq!(
            fletcher4(&data, Endian::Little).unwrap(),
            fletcher4_by_definition(&data, Endian::Little)
        );
        assert_eq!(
            fletcher2(&data, Endian::Little).unwrap(),
            fletcher2_by_definition(&data, Endian::Little)
        );
    }

    #[test]
    fn an_incremental_checksum_resumes_from_its_stored_state() {
        let data: Vec<u8> = (0..64).collect();
        let mut sum = Fletcher4::new();
        sum.update(&data[..20], Endian::Little).unwrap();
        let mut again = Fletcher4::from_words(sum.words());
        again.update(&data[20..], Endian::Little).unwrap();
        assert_eq!(
            again.words(),
            fletcher4_by_definition(&data, Endian::Little)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn every_number_of_lanes_gives_the_definition(
            data in proptest::collection::vec(any::<u8>(), 0..3000),
        ) {
            for endian in [Endian::Little, Endian::Big] {
                let whole = &data[..data.len() / 4 * 4];
                let words = whole.as_chunks::<4>().0;
                let expected = fletcher4_by_definition(whole, endian);
                prop_assert_eq!(fletcher4(whole, endian).unwrap(), expected);
                prop_assert_eq!(sum4(words, endian), expected);
                prop_assert_eq!(portable::<1>(words, endian), expected);
                prop_assert_eq!(portable::<2>(words, endian), expected);
                prop_assert_eq!(portable::<4>(words, endian), expected);
                prop_assert_eq!(portable::<8>(words, endian), expected);
                prop_assert_eq!(portable::<16>(words, endian), expected);
                let whole = &data[..data.len() / 16 * 16];
                let expected = fletcher2_by_definition(whole, endian);
                prop_assert_eq!(fletcher2(whole, endian).unwrap(), expected);
                let (groups, rest) = whole.as_chunks::<{ 8 * WORDS }>();
                let mut sums = joined2(&lanes2_of(groups, |word| endian.u64(word)));
                for pair in rest.as_chunks::<16>().0 {
                    step2(&mut sums, pair, endian);
                }
                prop_assert_eq!(sums, expected);
            }
        }
        #[test]
        fn parts_in_any_division_sum_to_the_whole(
            words in proptest::collection::vec(any::<u32>(), 0..400),
            cut in 0usize..400,
        ) {
            let data: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let (first, second) = data.split_at(cut.min(words.len()) * 4);
            let mut sum = Fletcher4::new();
            sum.update(first, Endian::Little).unwrap();
            sum.update(second, Endian::Little).unwrap();
            prop_assert_eq!(sum.words(), fletcher4_by_definition(&data, Endian::Little));
        }
    }
}
