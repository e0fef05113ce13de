//! Edon-R-512 in the variant that ZFS uses.
#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "unrolled rounds over arrays with constant bounds; additions wrap by explicit calls"
)]

use core::num::Wrapping;

type Vector = [Wrapping<u64>; 8];

/// The state after the salt's block, from which every message of a pool starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EdonrKey {
    state: State,
}

impl EdonrKey {
    pub(crate) fn new(salt: &[u8; 32]) -> Self {
        let first = edonr_512(salt);
        let second = edonr_512(&first);
        let mut block = [0; 128];
        block[..64].copy_from_slice(&first);
        block[64..].copy_from_slice(&second);
        let mut state = State::new();
        state.compress(&block);
        Self { state }
    }

    /// Returns the first half of the digest of (key block, message).
    pub(crate) fn digest(&self, message: &[u8]) -> [u8; 32] {
        let digest = self.state.finish(message, 128);
        let mut half = [0; 32];
        half.copy_from_slice(&digest[..32]);
        half
    }
}

/// Returns the plain 64-byte digest.
#[must_use]
pub fn edonr_512(message: &[u8]) -> [u8; 64] {
    State::new().finish(message, 0)
}

#[derive(Debug, Clone, Copy)]
struct State {
    low: Vector,
    high: Vector,
}

impl State {
    fn new() -> Self {
        // Consecutive bytes from 0x80, read big-endian.
        let word = |i: u64| Wrapping(0x8081_8283_8485_8687 + i * 0x0808_0808_0808_0808);
        Self {
            low: [0, 1, 2, 3, 4, 5, 6, 7].map(word),
            high: [8, 9, 10, 11, 12, 13, 14, 15].map(word),
        }
    }

    /// Compresses the rest of a message and its padding. The state already contains the first `before` bytes,
    /// which are whole blocks.
    fn finish(mut self, message: &[u8], before: u64) -> [u8; 64] {
        let (blocks, rest) = message.as_chunks::<128>();
        for block in blocks {
            self.compress(block);
        }
        let bits = before.wrapping_add(message.len() as u64).wrapping_mul(8);
        let mut block = [0; 128];
        block[..rest.len()].copy_from_slice(rest);
        block[rest.len()] = 0x80;
        if rest.len() + 9 > 128 {
            self.compress(&block);
            block = [0; 128];
        }
        block[120..].copy_from_slice(&bits.to_le_bytes());
        self.compress(&block);
        let mut digest = [0; 64];
        for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(self.high) {
            *bytes = word.0.to_le_bytes();
        }
        digest
    }

    fn compress(&mut self, block: &[u8; 128]) {
        let mut low = [Wrapping(0); 8];
        let mut high = [Wrapping(0); 8];
        let (words, _) = block.as_chunks::<8>();
        for i in 0..8 {
            low[i] = Wrapping(u64::from_le_bytes(words[i]));
            high[i] = Wrapping(u64::from_le_bytes(words[8 + i]));
        }
        let mut a = product(&reversed(high), &low);
        let mut b = product(&a, &high);
        a = product(&self.high, &a);
        b = product(&a, &b);
        a = product(&a, &self.low);
        b = product(&b, &a);
        a = product(&reversed(low), &a);
        b = product(&a, &b);
        for i in 0..8 {
            self.low[i] ^= high[i] ^ a[i];
            self.high[i] ^= low[i] ^ b[i];
        }
    }
}

fn reversed(mut vector: Vector) -> Vector {
    vector.reverse();
    vector
}

/// The quasigroup operation.
#[inline(always)]
fn product(x: &Vector, y: &Vector) -> Vector {
    let rotated =
        |sum: Wrapping<u64>, by: u32| -> Wrapping<u64> { Wrapping(sum.0.rotate_left(by)) };
    let s = [
        Wrapping(0xaaaa_aaaa_aaaa_aaaa) + x[0] + x[1] + x[2] + x[4] + x[7],
        rotated(x[0] + x[1] + x[3] + x[4] + x[7], 5),
        rotated(x[0] + x[1] + x[4] + x[6] + x[7], 15),
        rotated(x[2] + x[3] + x[5] + x[6] + x[7], 22),
        rotated(x[1] + x[2] + x[3] + x[5] + x[6], 31),
        rotated(x[0] + x[2] + x[3] + x[4] + x[5], 40),
        rotated(x[0] + x[1] + x[5] + x[6] + x[7], 50),
        rotated(x[2] + x[3] + x[4] + x[5] + x[6], 59),
    ];
    let t = [
        Wrapping(0x5555_5555_5555_5555) + y[0] + y[1] + y[2] + y[5] + y[7],
        rotated(y[0] + y[1] + y[3] + y[4] + y[6], 10),
        rotated(y[0] + y[1] + y[2] + y[3] + y[5], 19),
        rotated(y[2] + y[3] + y[4] + y[6] + y[7], 29),
        rotated(y[0] + y[1] + y[3] + y[4] + y[5], 36),
        rotated(y[2] + y[4] + y[5] + y[6] + y[7], 44),
        rotated(y[1] + y[2] + y[5] + y[6] + y[7], 48),
        rotated(y[0] + y[3] + y[4] + y[6] + y[7], 55),
    ];
    [
        (s[0] ^ s[1] ^ s[4]) + (t[0] ^ t[1] ^ t[5]),
        (s[0] ^ s[4] ^ s[7]) + (t[2] ^ t[6] ^ t[7]),
        (s[1] ^ s[6] ^ s[7]) + (t[0] ^ t[1] ^ t[3]),
        (s[2] ^ s[3] ^ s[4]) + (t[0] ^ t[3] ^ t[4]),
        (s[0] ^ s[1] ^ s[7]) + (t[1] ^ t[2] ^ t[5]),
        (s[3] ^ s[5] ^ s[6]) + (t[3] ^ t[4] ^ t[6]),
        (s[2] ^ s[5] ^ s[6]) + (t[2] ^ t[5] ^ t[7]),
        (s[2] ^ s[3] ^ s[5]) + (t[4] ^ t[6] ^ t[7]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_abc_is_the_known_one() {
        let hex: String = edonr_512(b"abc")
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(
            hex,
            "1b14db155f1d406594b8cef70a4362ec6b5de6a5daf50ec999e987c19d3049e2\
             de5977bb05b1bb220050a1ea5b46a9f1740acafbf6b45032adc90c628372c22b"
        );
    }
    #[test]
    fn the_prepared_key_is_the_same_as_one_long_message() {
        let salt = [9; 32];
        let (first, message) = (edonr_512(&salt), [1u8; 300]);
        for length in [0, 1, 118, 119, 120, 127, 128, 129, 300] {
            let mut whole = first.to_vec();
            whole.extend(edonr_512(&first));
            whole.extend(&message[..length]);
            assert_eq!(
                EdonrKey::new(&salt).digest(&message[..length]),
                edonr_512(&whole)[..32]
            );
        }
    }

    #[test]
    fn messages_of_every_length_are_padded_correctly() {
        let message: Vec<u8> = (0..400u32).map(|at| (at * 7) as u8).collect();
        for length in 0..message.len() {
            let message = &message[..length];
            // A one bit, zeros, and the length in bits at the very end of a block.
            let mut padded = message.to_vec();
            padded.push(0x80);
            while padded.len() % 128 != 120 {
                padded.push(0);
            }
            padded.extend((length as u64 * 8).to_le_bytes());
            let mut state = State::new();
            for block in padded.as_chunks::<128>().0 {
                state.compress(block);
            }
            let expected: Vec<u8> = state
                .high
                .iter()
                .flat_map(|word| word.0.to_le_bytes())
                .collect();
            assert_eq!(edonr_512(message).as_slice(), expected, "{length}");
        }
    }
}
