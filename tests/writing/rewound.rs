//! A pool that is rewound continues from there, for OpenZFS's programs too.

use crate::exhaustive::{files_of, judge};
use crate::scan::fill;
use crate::sim::{self, by_caller};
use millpond_engine::{NewLayout::Mirror, OpenOptions, Pool, Rewind};
use millpond_sim::World;

#[test]
fn a_rewound_pool_is_sound_for_zdb() {
    let world = World::without_journal(190);
    let pool = sim::create(&world, &[(Mirror, 2)], 64);
    fill(&pool, "tank", "a", 20);
    let kept = files_of(&pool.committed().unwrap()).unwrap();
    let to = pool.inner().uberblock().txg;
    for round in 0..2 {
        fill(&pool, "tank", &format!("b{round}"), 10);
    }
    drop(pool);
    let options = OpenOptions {
        rewind: Rewind::ToTxg(to),
        ..OpenOptions::default()
    };
    let candidate = sim::candidate(&world);
    let pool = Pool::open_candidate(&world.env(), &candidate, &options, &by_caller()).unwrap();
    assert_eq!(files_of(&pool.committed().unwrap()).unwrap(), kept);
    fill(&pool, "tank", "c", 30);
    let files = files_of(&pool.committed().unwrap()).unwrap();
    pool.export().unwrap();
    sim::verify(&sim::read(&world).unwrap()).unwrap();
    judge(&world, "rewound");
    // Found again without being told, and not at what was given up.
    let pool = sim::open(&world).unwrap();
    assert_eq!(files_of(&pool.committed().unwrap()).unwrap(), files);
    pool.export().unwrap();
}
