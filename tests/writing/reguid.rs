//! The power fails while a pool gets a new guid: the pool has the old one or the new one, and opens.

use crate::exhaustive::{State, each_state, is_all};
use crate::sim;
use millpond_engine::{NewLayout, NewLayout::Mirror, NewLayout::Raidz, NewLayout::Single};
use millpond_ondisk::Guid;
use millpond_sim::{Seed, World};

fn cut_at_every_place(shape: &str, tops: &[(NewLayout, usize)]) {
    let world = World::new(51);
    let pool = sim::create(&world, tops, 64);
    pool.sync().unwrap();
    let old = pool.inner().guid();
    world.forget();
    let new = Guid(0x1234_5678_9abc);
    pool.inner().reguid(Some(new)).unwrap();
    let promised = world.recorded();
    pool.sync().unwrap();
    drop(pool);
    let mut met = [0, 0];
    let mut visit = |state: State<'_>| {
        let what = state.what;
        let read = sim::read(state.after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let guid = read.inner().guid();
        assert!(guid == old || guid == new, "{what}: {guid:?}");
        assert!(
            guid == new || state.count < promised,
            "{what}: the old guid"
        );
        met[usize::from(guid == new)] += 1;
        let pool = sim::open(state.after).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(pool.inner().guid(), guid, "{what}");
        pool.export().unwrap();
        let again = sim::read(state.after).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(again.inner().guid(), guid, "{what}");
    };
    each_state(shape, &world, &mut Seed::new(52), &mut visit);
    // A sample may contain only one of them.
    assert!(met[0] + met[1] > 0, "{shape}: {met:?}");
    assert!(!is_all() || met[0] > 0 && met[1] > 0, "{shape}: {met:?}");
}

#[test]
fn reguid_of_one_disk_survives_every_crash_point() {
    cut_at_every_place("reguid, one disk", &[(Single, 1)]);
}

#[test]
fn reguid_of_a_mirror_survives_every_crash_point() {
    cut_at_every_place("reguid, mirror", &[(Mirror, 2)]);
}

#[test]
fn reguid_of_two_vdevs_survives_every_crash_point() {
    cut_at_every_place("reguid, RAID-Z and disk", &[(Raidz(1), 3), (Single, 1)]);
}
