//! Skein-512 (version 1.3) as a sequential MAC with 256 bits of output, and its block cipher Threefish-512.
#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "unrolled rounds over arrays with constant bounds; additions wrap by explicit calls"
)]

/// The state after key and configuration, from which every message of a pool starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SkeinKey {
    chain: [u64; 8],
}

/// Block types as used in the tweak.
const KEY: u64 = 0;
const CONFIG: u64 = 4;
const MESSAGE: u64 = 48;
const OUTPUT: u64 = 63;

impl SkeinKey {
    pub(crate) fn new(key: &[u8]) -> Self {
        let mut chain = [0; 8];
        absorb(&mut chain, KEY, key);
        // "SHA3", version 1, 256 bits of output, no tree.
        let mut config = [0u8; 32];
        config[..4].copy_from_slice(b"SHA3");
        config[4] = 1;
        config[8..16].copy_from_slice(&256u64.to_le_bytes());
        absorb(&mut chain, CONFIG, &config);
        Self { chain }
    }

    pub(crate) fn digest(&self, message: &[u8]) -> [u8; 32] {
        let mut chain = self.chain;
        absorb(&mut chain, MESSAGE, message);
        absorb(&mut chain, OUTPUT, &[0; 8]);
        let mut digest = [0; 32];
        for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(chain) {
            *bytes = word.to_le_bytes();
        }
        digest
    }
}

/// Chains all of `bytes` into `chain` as one input of type `kind`.
fn absorb(chain: &mut [u64; 8], kind: u64, bytes: &[u8]) {
    // The last block is processed separately even if it is full, because it has the final flag.
    let body = bytes.len().saturating_sub(1) / 64 * 64;
    let (blocks, last) = (bytes[..body].as_chunks::<64>().0, &bytes[body..]);
    let mut first = 1u64 << 62;
    let mut position = 0u64;
    for block in blocks {
        position = position.wrapping_add(64);
        chain_block(chain, [position, kind << 56 | first], block);
        first = 0;
    }
    let mut block = [0; 64];
    block[..last.len()].copy_from_slice(last);
    let tweak = [bytes.len() as u64, kind << 56 | first | 1 << 63];
    chain_block(chain, tweak, &block);
}

#[inline]
fn chain_block(chain: &mut [u64; 8], tweak: [u64; 2], block: &[u8; 64]) {
    let mut message = [0u64; 8];
    for (word, bytes) in message.iter_mut().zip(block.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    *chain = encrypt(chain, tweak, &message);
    for (word, message) in chain.iter_mut().zip(message) {
        *word ^= message;
    }
}

/// Rotations of the four mixes, in rounds 0 to 3 and 4 to 7 of every eight.
const ROTATIONS: [[[u32; 4]; 4]; 2] = [
    [
        [46, 36, 19, 37],
        [33, 27, 14, 42],
        [17, 49, 36, 39],
        [44, 9, 54, 56],
    ],
    [
        [39, 30, 34, 24],
        [13, 50, 10, 17],
        [25, 29, 39, 43],
        [8, 35, 56, 22],
    ],
];

/// Threefish-512: 72 rounds, with a subkey before every four rounds and after the last.
#[inline(always)]
fn encrypt(key: &[u64; 8], tweak: [u64; 2], plain: &[u64; 8]) -> [u64; 8] {
    let mut k = [0u64; 9];
    k[..8].copy_from_slice(key);
    k[8] = key
        .iter()
        .fold(0x1bd1_1bda_a9fc_1a22, |sum, word| sum ^ word);
    let t = [tweak[0], tweak[1], tweak[0] ^ tweak[1]];
    let mut v = *plain;
    macro_rules! rounds {
        ($($group:literal)*) => { $( four_rounds::<$group>(&mut v, &k, &t); )* };
    }
    rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17);
    add_subkey::<18>(&mut v, &k, &t);
    v
}

#[inline(always)]
fn add_subkey<const S: usize>(v: &mut [u64; 8], k: &[u64; 9], t: &[u64; 3]) {
    for i in 0..8 {
        v[i] = v[i].wrapping_add(k[(S + i) % 9]);
    }
    v[5] = v[5].wrapping_add(t[S % 3]);
    v[6] = v[6].wrapping_add(t[(S + 1) % 3]);
    v[7] = v[7].wrapping_add(S as u64);
}

#[inline(always)]
fn four_rounds<const S: usize>(v: &mut [u64; 8], k: &[u64; 9], t: &[u64; 3]) {
    add_subkey::<S>(v, k, t);
    for rotations in ROTATIONS[S % 2] {
        for (pair, rotation) in rotations.into_iter().enumerate() {
            let (x, y) = (v[2 * pair], v[2 * pair + 1]);
            let sum = x.wrapping_add(y);
            v[2 * pair] = sum;
            v[2 * pair + 1] = y.rotate_left(rotation) ^ sum;
        }
        *v = [v[2], v[1], v[4], v[7], v[6], v[5], v[0], v[3]];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threefish_of_zeros_is_the_published_vector() {
        let cipher = encrypt(&[0; 8], [0; 2], &[0; 8]);
        assert_eq!(
            cipher[0].to_le_bytes(),
            [0xb1, 0xa2, 0xbb, 0xc6, 0xef, 0x60, 0x25, 0xbc]
        );
    }
    #[test]
    fn every_length_around_the_block_borders_differs() {
        let key = SkeinKey::new(&[3; 32]);
        let zeros = [0u8; 200];
        let digests: std::collections::BTreeSet<_> =
            (0..=200).map(|n| key.digest(&zeros[..n])).collect();
        assert_eq!(digests.len(), 201);
    }

    #[test]
    fn threefish_with_a_key_and_a_tweak_is_the_published_vector() {
        let words = |bytes: &[u8]| -> Vec<u64> {
            let words = bytes.as_chunks::<8>().0.iter();
            words.map(|word| u64::from_le_bytes(*word)).collect()
        };
        let key: Vec<u8> = (0x10..0x50).collect();
        let tweak: Vec<u8> = (0..0x10).collect();
        let plain: Vec<u8> = (0xc0..=0xff).rev().collect();
        let [key, plain] = [key, plain].map(|bytes| words(&bytes).try_into().unwrap());
        let tweak = words(&tweak).try_into().unwrap();
        let cipher: Vec<u8> = encrypt(&key, tweak, &plain)
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let hex: String = cipher.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "e304439626d45a2cb401cad8d636249a6338330eb06d45dd8b36b90e97254779\
             272a0a8d99463504784420ea18c9a725af11dffea10162348927673d5c1caf3d"
        );
    }
}
