//! The last side of a mirror takes over the mirror's guid. A crash at that moment must not hide it.

use crate::attach::{attach, complete, is_sound, of_disk};
use crate::exhaustive::{Files, files_of};
use crate::scan::fill;
use crate::sim;
use millpond_engine::{
    AttachKind,
    NewLayout::{self, Mirror, Single},
    Pool,
};
use millpond_sim::{PowerCut, World};

/// Runs `end`, which leaves disk 1 alone, and opens the pool of each state in between: with disk 0, which `end` takes out of the
/// pool, and without it. Returns in how many states disk 1 alone was still a side of something.
fn cut_everywhere(
    top: (NewLayout, usize),
    begin: impl FnOnce(&World, &Pool),
    end: impl FnOnce(&Pool),
) -> usize {
    let world = World::new(92);
    let pool = sim::create(&world, &[top], 64);
    fill(&pool, "tank", "a", 8);
    begin(&world, &pool);
    let files = files_of(&pool.committed().unwrap()).unwrap();
    let before = world.recorded();
    end(&pool);
    pool.sync().unwrap();
    let after = world.recorded();
    drop(pool);
    let mut sides = 0;
    for count in before..=after {
        for cut in [PowerCut::EverythingWritten, PowerCut::NothingUnflushed] {
            for is_whole in [true, false] {
                let what =
                    format!("{top:?}, {count} of {after}, {cut:?}, disk 0 there: {is_whole}");
                let world = world.reborn(count, &cut);
                world.disks()[0].set_absent(!is_whole);
                sides += usize::from(holds(&world, &files, &what));
                // Disk 1 is up to date in each of these states.
                world.disks()[0].set_absent(true);
                holds(&world, &files, &format!("{what}, then without it"));
            }
        }
    }
    sides
}

/// Opens the pool, which has these files, and closes it again. Returns whether disk 1 is below another vdev.
fn holds(world: &World, files: &Files, what: &str) -> bool {
    let pool = sim::open(world).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(
        files_of(&pool.committed().unwrap()).unwrap(),
        *files,
        "{what}"
    );
    let leaf = of_disk(&pool, 1);
    let topology = pool.inner().store().topology();
    let number = topology.tree.find_leaf(leaf).unwrap();
    assert!(
        topology.condition(number).is_usable(),
        "{what}: disk 1 is not used"
    );
    let is_below = pool.inner().config().root.children[0].guid != leaf;
    pool.export().unwrap();
    is_sound(&sim::read(world).unwrap(), what);
    is_below
}

#[test]
fn detaching_a_broken_side_survives_every_crash() {
    let offline = |_: &World, pool: &Pool| {
        let broken = of_disk(pool, 0);
        let offline = pool.inner().offline_leaf(broken, Default::default());
        offline.unwrap();
        fill(pool, "tank", "b", 4);
    };
    let detach = |pool: &Pool| pool.inner().detach_leaf(of_disk(pool, 0)).unwrap();
    let sides = cut_everywhere((Mirror, 2), offline, detach);
    assert!(sides > 3, "{sides}");
}

#[test]
fn finishing_the_replacement_of_a_single_disk_survives_every_crash() {
    let replace = |world: &World, pool: &Pool| {
        let disk = world.disk(64 << 20, 512);
        attach(pool, of_disk(pool, 0), &disk, AttachKind::Replacement).unwrap();
        crate::scan::finish(pool);
        pool.sync().unwrap();
    };
    let sides = cut_everywhere((Single, 1), replace, complete);
    assert!(sides > 3, "{sides}");
}
