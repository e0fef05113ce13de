//! A clock and a random generator that give the same values in every run.

use millpond_env::sync::{Arc, Mutex};
use millpond_env::{Clock, Entropy, Env};

/// The clock's time unless `SOURCE_DATE_EPOCH` is set: the first second of 2020.
const EPOCH_S: u64 = 1_577_836_800;

/// A clock with a constant time.
struct Still(u64);

impl Clock for Still {
    fn wall_ns(&self) -> u64 {
        self.0
    }
    fn monotonic_ns(&self) -> u64 {
        0
    }
}

/// SplitMix64: each seed selects a different sequence with a long period.
///
/// Its numbers are not secret. Anything that needs secrets (keys) is not derived from a seed.
struct SeededRng(Mutex<u64>);

impl Entropy for SeededRng {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.0.lock();
        for chunk in bytes.chunks_mut(8) {
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = *state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Creates the environment of a seed, with the time in `SOURCE_DATE_EPOCH` if that is set.
///
/// # Errors
/// If `SOURCE_DATE_EPOCH` is not a number of seconds.
pub fn of_seed(seed: u64, epoch: Option<&str>) -> Result<Env, String> {
    let seconds = match epoch {
        None => EPOCH_S,
        Some(text) => {
            let seconds = text.trim().parse::<u64>().ok();
            let seconds = seconds.filter(|seconds| *seconds < u64::MAX / 1_000_000_000);
            seconds.ok_or("SOURCE_DATE_EPOCH is no number of seconds")?
        }
    };
    Ok(Env {
        clock: Arc::new(Still(seconds * 1_000_000_000)),
        entropy: Arc::new(SeededRng(Mutex::new(seed))),
        tunables: Arc::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers() {
        let roll = |seed| {
            let world = of_seed(seed, None).unwrap();
            let mut bytes = [0; 20];
            world.entropy.fill(&mut bytes);
            bytes
        };
        assert_eq!(roll(1), roll(1));
        assert_ne!(roll(1), roll(2));
        let world = of_seed(1, Some("12")).unwrap();
        assert_eq!(world.clock.wall_ns(), 12_000_000_000);
        assert!(of_seed(1, Some("soon")).is_err());
        assert!(of_seed(1, Some("18446744073709551615")).is_err());
    }
}
