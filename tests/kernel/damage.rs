//! Damage at random: what the kernel module's scrub repairs and blames, ours repairs and blames too, file by file and
//! device by device.

use crate::rebuild::draid;
use crate::scan::{errors_of, finish, names, rot};
use crate::{Rig, lived, run_script};
use millpond_engine::{NewLayout, PoolBuilder, ScrubRange};
use millpond_tests::images::copy_sparse;
use millpond_tests::oracle::kernel::{self, Release, written};
use millpond_tests::workload::Life;
use millpond_vdev::AllocationClass::Special;
use std::path::PathBuf;

const MIB: u64 = 128;
/// Damaged pages of a device that the pool can do without, out of a million.
const HALF: u32 = 500_000;
/// The same where nothing can be done without: some files are lost, the pool is not.
const SOME: u32 = 100_000;

type Plan = fn(&str, &[PathBuf]) -> PoolBuilder;

struct Damaged {
    name: &'static str,
    /// Its place in the rig's images.
    first: usize,
    count: usize,
    plan: Plan,
    /// Damaged devices, and the part of their pages out of a million.
    victims: &'static [usize],
    per_million: u32,
}

fn single(name: &str, images: &[PathBuf]) -> PoolBuilder {
    PoolBuilder::new(name).single(&images[0])
}

fn mirror(name: &str, images: &[PathBuf]) -> PoolBuilder {
    PoolBuilder::new(name).mirror(images)
}

fn raidz1(name: &str, images: &[PathBuf]) -> PoolBuilder {
    PoolBuilder::new(name).raidz(1, images)
}

fn raidz2(name: &str, images: &[PathBuf]) -> PoolBuilder {
    PoolBuilder::new(name).raidz(2, images)
}

fn special(name: &str, images: &[PathBuf]) -> PoolBuilder {
    let builder = PoolBuilder::new(name).mirror(&images[..2]);
    builder.top(Special, NewLayout::Mirror, &images[2..])
}

/// Number of images, name, plan, damaged devices.
type Case = (usize, &'static str, Plan, &'static [usize]);

/// Redundancy covers what is damaged.
const LOSSLESS: [Case; 6] = [
    (2, "oneside", mirror, &[1]),
    (3, "twosides", mirror, &[0, 2]),
    (3, "parity1", raidz1, &[0]),
    (5, "parity2", raidz2, &[1, 4]),
    (5, "distributed", draid, &[3]),
    (4, "classes", special, &[0, 3]),
];

/// All devices are damaged in some places.
const LOSSY: [Case; 6] = [
    (1, "onedisk", single, &[0]),
    (2, "bothsides", mirror, &[0, 1]),
    (3, "parity1all", raidz1, &[0, 1, 2]),
    (5, "parity2all", raidz2, &[0, 1, 2, 3, 4]),
    (5, "distributedall", draid, &[0, 1, 2, 3, 4]),
    (4, "classesall", special, &[0, 1, 2, 3]),
];

fn placed(cases: &[Case], per_million: u32) -> Vec<Damaged> {
    let mut first = 0;
    let mut all = vec![];
    for &(count, name, plan, victims) in cases {
        all.push(Damaged {
            name,
            first,
            count,
            plan,
            victims,
            per_million,
        });
        first += count;
    }
    all
}

/// What a scrub said of a pool.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// READ, WRITE and CKSUM of each leaf.
    devices: Vec<[u64; 3]>,
    errors: Vec<String>,
    repaired_bytes: u64,
}

impl Found {
    /// Blocks of the MOS that are written between the import and the scrub lose their damage with their old place, here
    /// others than in the module. They are small.
    fn is_like(&self, other: &Self) -> bool {
        let near = |(left, right): (&[u64; 3], &[u64; 3])| {
            left[..2] == right[..2]
                && (left[2] == 0) == (right[2] == 0)
                && left[2].abs_diff(right[2]) <= 4 + left[2] / 6
        };
        self.errors == other.errors
            && self.devices.len() == other.devices.len()
            && self.devices.iter().zip(&other.devices).all(near)
            && self.repaired_bytes.abs_diff(other.repaired_bytes)
                <= 16384 + self.repaired_bytes / 20
    }
}

fn counts(line: &str) -> [u64; 3] {
    let mut words = line.split(' ').map(|word| word.parse().unwrap());
    std::array::from_fn(|_| words.next().unwrap())
}

fn scrubbed_here(rig: &Rig, name: &str) -> Found {
    let pool = rig.open(name);
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    let state = finish(&pool, None);
    let devices = errors_of(&pool);
    pool.export().unwrap();
    Found {
        devices,
        errors: names(rig, name),
        repaired_bytes: state.processed_bytes,
    }
}

fn scrubbed_by_the_module(release: Release, rig: &Rig, pools: &[Damaged]) -> Vec<Found> {
    let share = tempfile::tempdir().unwrap();
    let names: Vec<&str> = pools.iter().map(|pool| pool.name).collect();
    run_script(release, rig, "damage", Some(share.path()), &names);
    let of = |name: &&str| {
        let file = |what: &str| written(share.path(), &format!("{name}.{what}"));
        Found {
            devices: file("devices").iter().map(|line| counts(line)).collect(),
            errors: file("errors"),
            repaired_bytes: file("repaired")[0].parse().unwrap(),
        }
    };
    names.iter().map(of).collect()
}

fn create(rig: &Rig, damaged: &Damaged) -> Life {
    let images = &rig.images[damaged.first..damaged.first + damaged.count];
    let (pool, life) = lived(
        (damaged.plan)(damaged.name, images),
        damaged.name,
        "scan",
        600,
    );
    pool.export().unwrap();
    let victims = damaged.victims.iter().enumerate();
    let counts = victims.map(|(at, victim)| {
        let seed = crate::seed() + at as u64;
        rot(&images[*victim], seed, damaged.per_million)
    });
    let count = counts.sum::<usize>();
    assert!(count > 20, "{}: {count} sectors are damaged", damaged.name);
    life
}

fn placed_and_damaged(release: Release, cases: &[Case], per_million: u32) -> Option<Both> {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return None;
    }
    let pools = placed(cases, per_million);
    let count = pools.iter().map(|pool| pool.count).sum();
    let (ours, theirs) = (Rig::new(count, MIB), Rig::new(count, MIB));
    let lives = pools.iter().map(|pool| create(&ours, pool)).collect();
    for (from, to) in ours.images.iter().zip(&theirs.images) {
        copy_sparse(from, to).unwrap();
    }
    theirs.keep("damaged");
    Some(Both {
        release,
        pools,
        ours,
        theirs,
        lives,
    })
}

/// The same damaged pools twice.
struct Both {
    release: Release,
    pools: Vec<Damaged>,
    ours: Rig,
    theirs: Rig,
    lives: Vec<Life>,
}

impl Both {
    /// The pools, with what our scrub found in the one set and the module's in the other.
    fn scrub(&self) -> Vec<(&Damaged, Found, Found)> {
        let module = scrubbed_by_the_module(self.release, &self.theirs, &self.pools);
        let each = self.pools.iter().zip(module).map(|(pool, module)| {
            let here = scrubbed_here(&self.ours, pool.name);
            let (name, ours, theirs) = (pool.name, &here.devices, &module.devices);
            println!("  {name}: here {ours:?}, module {theirs:?}");
            (pool, here, module)
        });
        each.collect()
    }
    /// The same, where each scrubs what the other repaired.
    fn scrub_again(&self) -> Vec<(&Damaged, Found, Found)> {
        let module = scrubbed_by_the_module(self.release, &self.ours, &self.pools);
        let each = self.pools.iter().zip(module);
        each.map(|(pool, module)| (pool, scrubbed_here(&self.theirs, pool.name), module))
            .collect()
    }
}

fn repaired(release: Release) {
    let Some(both) = placed_and_damaged(release, &LOSSLESS, HALF) else {
        return;
    };
    for (pool, here, module) in both.scrub() {
        let name = pool.name;
        assert!(
            here.is_like(&module),
            "{name}: here {here:?}, module {module:?}"
        );
        assert!(here.errors.is_empty(), "{name}: {here:?}");
    }
    for ((pool, here, module), life) in both.scrub_again().into_iter().zip(&both.lives) {
        let name = pool.name;
        let clean = Found {
            devices: vec![[0; 3]; pool.count],
            errors: vec![],
            repaired_bytes: 0,
        };
        assert_eq!((&here, &module), (&clean, &clean), "{name}");
        for rig in [&both.ours, &both.theirs] {
            life.compare(&rig.read(name), name);
            rig.judge(name);
        }
    }
}

/// Which of the names are only in the first list.
fn only<'a>(of: &'a [String], not_of: &[String]) -> Vec<&'a String> {
    of.iter().filter(|name| !not_of.contains(name)).collect()
}

/// The lists of errors agree but for this: the module does not look for a block in a snapshot of the txg in which it was born,
/// nor in clones of that.
fn names_the_same(pool: &str, here: &[String], module: &[String]) {
    assert!(!here.is_empty(), "{pool}");
    let missed = only(module, here);
    assert!(missed.is_empty(), "{pool}: only the module has {missed:?}");
    for name in only(here, module) {
        let dataset = name.strip_prefix(&format!("{pool}/"));
        let is_of_snapshot =
            dataset.is_some_and(|dataset| dataset.contains('@') || dataset.starts_with('c'));
        assert!(is_of_snapshot, "{pool}: the module misses {name}");
    }
}

fn lost(release: Release) {
    let Some(both) = placed_and_damaged(release, &LOSSY, SOME) else {
        return;
    };
    let mut lost = vec![];
    for (pool, here, module) in both.scrub() {
        lost.push(here.errors.clone());
        // The module reads a block that is lost several times, and counts each.
        let blamed = |found: &Found| -> Vec<bool> {
            let devices = found.devices.iter();
            devices.map(|counts| counts[2] > 0).collect()
        };
        assert_eq!(blamed(&here), blamed(&module), "{}", pool.name);
        if pool.count == 1 {
            names_the_same(pool.name, &here.errors, &module.errors);
            continue;
        }
        // Sectors of several sides or columns may make a block whole that the module gives up.
        let (ours, theirs) = (here.errors.len(), module.errors.len());
        println!(
            "  {}: files lost here {ours}, for the module {theirs}",
            pool.name
        );
    }
    for ((pool, here, module), ours) in both.scrub_again().into_iter().zip(lost) {
        let name = pool.name;
        // What we repaired is whole for the module, too, and it finds no other damage.
        assert_eq!(module.repaired_bytes, 0, "{name}: {module:?}");
        names_the_same(name, &ours, &module.errors);
        // What it gave up is lost here, too, or made whole.
        assert_eq!(here.errors, ours, "{name}");
    }
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn damage_is_repaired_and_blamed_as_by_2_3() {
    repaired(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn damage_is_repaired_and_blamed_as_by_2_4() {
    repaired(Release::V2_4);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn what_is_lost_is_named_as_by_2_3() {
    lost(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn what_is_lost_is_named_as_by_2_4() {
    lost(Release::V2_4);
}
