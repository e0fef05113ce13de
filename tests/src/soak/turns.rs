//! Seeded scheduling of threads.

use millpond_env::sim::{Policy, Schedule};
use millpond_sim::Seed;

/// The scheduling policy of a seed: frequent or rare switches, random or by priority.
pub(super) fn schedule(seed: u64) -> Schedule {
    let policies = [
        Policy::Random { one_in: 2 },
        Policy::Random { one_in: 10 },
        Policy::Random { one_in: 60 },
        Policy::Random { one_in: 500 },
        Policy::Ranks { one_in: 20 },
        Policy::Ranks { one_in: 300 },
    ];
    let mut seed = Seed::new(seed);
    let policy = seed.choose(&policies).copied();
    Schedule {
        policy: policy.unwrap_or(policies[0]),
        seed: seed.bits(),
        // Some hundred times the number of the largest workload so far.
        points_max: 500_000_000,
    }
}
