//! Seeded random numbers.

/// A seeded random number generator ("splitmix": one addition and a mixing of bits per number). Not for
/// secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
    /// A random number below `bound`, or 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product is uniform enough for tests and needs no division.
        let product = u128::from(self.bits()) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }
    /// Returns `true` with a probability of `per_million` in a million.
    pub fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }
    /// A random item; `None` if the slice is empty.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(usize::try_from(self.below(items.len() as u64)).unwrap_or(0))
    }
    /// Fills a buffer with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let word = self.bits().to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }
    /// The next random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.fill(&mut bytes);
        bytes
    }
    /// Another generator, seeded from this one.
    pub fn fork(&mut self) -> Self {
        Self(self.bits())
    }
}

/// Content that does not compress, for tests.
#[must_use]
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    Seed::new(seed).bytes(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_others() {
        let take = |number| -> Vec<u64> {
            let mut seed = Seed::new(number);
            (0..32).map(|_| seed.bits()).collect()
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    #[test]
    fn numbers_below_a_bound_reach_all_of_it() {
        let mut seed = Seed::new(3);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[usize::try_from(seed.below(10)).unwrap()] += 1;
        }
        assert!(
            seen.iter().all(|count| (700..1300).contains(count)),
            "{seen:?}"
        );
        assert_eq!(seed.below(0), 0);
        assert!(!seed.happens(0));
        assert!(seed.happens(1_000_000));
    }
}
