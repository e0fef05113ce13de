//! Seeded random numbers.

/// A small generator (xorshift64*).
#[derive(Debug, Clone)]
pub struct SeededRng(u64);

impl SeededRng {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d | 1);
        for _ in 0..4 {
            rng.word();
        }
        rng
    }
    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// A number below `limit`; 0 if that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.word() >> 33) as usize % limit.max(1)
    }
    /// A random element of the list.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.below(list.len()))
    }
    /// A boundary value that programs often handle incorrectly, or an object id that may exist.
    pub fn nasty(&mut self) -> u64 {
        match self.below(12) {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            3 => 1 << 63,
            4 => (1 << 63) - 1,
            5 => 1 << self.below(64),
            6 => (1 << self.below(64)) - 1,
            7 => u64::MAX - self.below(300) as u64,
            8 => self.word(),
            _ => self.below(300) as u64,
        }
    }
}
