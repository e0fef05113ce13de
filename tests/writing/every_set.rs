//! Every set of disks that a pool can do without, in every kind of trouble, at every moment; and one disk more.
//!
//! By default a sample is tested, with `MILLPOND_WRITING_ALL` everything. That takes hours: `MILLPOND_WRITING_PART=2/6` tests
//! the second of six parts, each of which has cases of all shapes.

use crate::draid::draid;
use crate::exhaustive::{Files, files_of, is_all, judge};
use crate::scan::{finish, rot, scanner, scrub};
use crate::sim::{self, by_caller};
use millpond_engine::{
    Caller,
    NewLayout::{self, Draid, Mirror, Raidz, Single},
    NewMode, Pool, ScrubRange, View, WriteAt,
};
use millpond_pool::import::{find_pools, scan_devices};
use millpond_sim::{Fault, FaultPlan, Scope, Seed, World};
use millpond_vdev::AllocationClass::{self, Log, Normal, Special};

/// The size of every disk in MiB.
const MIB: u64 = 64;
/// The same where a vdev is dRAID, which needs larger ones.
const DRAID_MIB: u64 = 128;
/// One of this many cases is tested by default.
const SAMPLE: usize = 401;
/// One of this many cases is judged by `zdb`.
const JUDGED_OF: usize = 50;
/// A disk in trouble may need a second resilver; a third finds nothing more.
const RESILVERS: usize = 3;

type Tops = Vec<(AllocationClass, NewLayout, usize)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Every request fails.
    Failed,
    /// The disk is gone.
    Missing,
    /// The disk is gone while the pool is written, and comes back.
    Stale,
    /// What is written and read is damaged, or lost, without an error.
    Lying,
}

use Trouble::{Failed, Lying, Missing, Stale};

const TROUBLES: [Trouble; 4] = [Failed, Missing, Stale, Lying];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    BeforeWrites,
    DuringWrites,
    AfterWrites,
    DuringScrub,
    DuringResilver,
}

const MOMENTS: [Moment; 5] = [
    Moment::BeforeWrites,
    Moment::DuringWrites,
    Moment::AfterWrites,
    Moment::DuringScrub,
    Moment::DuringResilver,
];

/// The disks in trouble.
type Set = Vec<(usize, Trouble)>;

fn shapes() -> Vec<Tops> {
    let mut all = vec![vec![(Normal, Single, 1)]];
    all.extend([2, 3].map(|sides| vec![(Normal, Mirror, sides)]));
    for parity in 1..=3 {
        for disks in 3.max(usize::from(parity) + 1)..=9 {
            all.push(vec![(Normal, Raidz(parity), disks)]);
        }
    }
    for (parity, data, spares, disks) in [(1, 3, 1, 6), (2, 2, 2, 7), (3, 2, 0, 6)] {
        all.push(vec![(Normal, draid(parity, data, spares), disks)]);
    }
    all.push(vec![
        (Normal, Mirror, 2),
        (Special, Mirror, 2),
        (Log, Mirror, 2),
    ]);
    all.push(vec![
        (Normal, Raidz(1), 3),
        (Normal, Raidz(2), 4),
        (Special, Mirror, 2),
        (Log, Single, 1),
    ]);
    all
}

fn bears(layout: NewLayout, disks: usize) -> usize {
    match layout {
        Mirror => disks - 1,
        Raidz(parity) => usize::from(parity),
        Draid(shape) => usize::from(shape.parity),
        Single => 0,
    }
}

/// All sets of disks that a pool of this shape can do without, the empty one too.
fn sets(tops: &Tops) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    let mut first = 0;
    for (_, layout, disks) in tops {
        let most = bears(*layout, *disks) as u32;
        let some = (0..1usize << disks).filter(|mask| mask.count_ones() <= most);
        let some: Vec<Vec<usize>> = some
            .map(|mask| (0..*disks).filter(move |disk| mask >> disk & 1 != 0))
            .map(|disks| disks.map(|disk| first + disk).collect())
            .collect();
        let with = |set: &Vec<usize>| {
            let some = some.iter();
            let joined = some.map(|more| [set.as_slice(), more.as_slice()].concat());
            joined.collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
        first += disks;
    }
    all
}

/// The ways in which the disks of a set may be in trouble: all in the same, and each in another.
fn troubles(set: &[usize]) -> Vec<Set> {
    let alike = TROUBLES.map(|trouble| set.iter().map(|disk| (*disk, trouble)).collect());
    let mixed = (0..4).map(|shift| {
        let each = set.iter().enumerate();
        each.map(|(at, disk)| (*disk, TROUBLES[(at + shift) % 4]))
            .collect()
    });
    match set.len() {
        0 => vec![vec![]],
        1 => alike.into(),
        _ => alike.into_iter().chain(mixed).collect(),
    }
}

/// A pool and what it must hold.
struct Case {
    world: World,
    /// `None` while it is closed.
    open: Option<Pool>,
    files: Files,
    set: Set,
    next: u8,
}

impl Case {
    fn new(tops: &Tops, set: Set, seed: u64) -> Self {
        let world = World::without_journal(seed);
        let is_draid = |top: &(_, NewLayout, _)| matches!(top.1, Draid(_));
        let mib = match tops.iter().any(is_draid) {
            true => DRAID_MIB,
            false => MIB,
        };
        let pool = sim::create_of(&world, tops, mib, by_caller());
        let mut case = Self {
            world,
            open: Some(pool),
            files: Files::new(),
            set,
            next: 0,
        };
        case.write();
        case.sync();
        case
    }

    fn pool(&self) -> &Pool {
        self.open.as_ref().unwrap()
    }

    fn sync(&self) {
        self.pool().sync().unwrap();
        self.pool().inner().check_leaves();
    }

    /// Writes a file that takes all columns, and a small one through the intent log.
    fn write(&mut self) {
        let system = self.pool().file_system("tank").unwrap();
        let (root, caller) = (system.root().unwrap(), Caller::root());
        let mode = NewMode::exactly(0o600);
        for length in [70_000, 700] {
            let name = vec![self.next + b'a'];
            let bytes = Seed::new(self.next.into()).bytes(length);
            let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
            let at = WriteAt::Offset(0);
            system.write(&caller, &node, at, &bytes).unwrap();
            if length < 1000 {
                system.fsync(&node).unwrap();
            }
            self.files.insert(name, bytes);
            self.next += 1;
        }
    }

    /// Trouble begins. Stale disks are back when this returns.
    fn begin_trouble(&mut self) {
        let disks = self.world.disks();
        for (disk, trouble) in &self.set {
            let seed = Seed::new(*disk as u64);
            match trouble {
                Failed => {
                    let scopes = [Scope::Reads, Scope::Writes, Scope::Flushes];
                    let fail = |plan: FaultPlan, scope| plan.with(scope, Fault::Fail, 1_000_000);
                    let plan = scopes.into_iter().fold(FaultPlan::new(seed), fail);
                    disks[*disk].set_faults(Some(plan));
                }
                Missing | Stale => disks[*disk].set_absent(true),
                Lying => {
                    let plan = FaultPlan::new(seed)
                        .with(Scope::Writes, Fault::Corrupt, 500_000)
                        .with(Scope::Writes, Fault::Lose, 300_000)
                        .with(Scope::Reads, Fault::Corrupt, 300_000);
                    disks[*disk].set_faults(Some(plan));
                }
            }
        }
        let stale = self.set.iter().filter(|(_, trouble)| *trouble == Stale);
        let stale: Vec<usize> = stale.map(|(disk, _)| *disk).collect();
        if !stale.is_empty() {
            self.write();
            self.sync();
            for disk in stale {
                disks[disk].set_absent(false);
                self.take_back(disk);
            }
        }
    }

    fn take_back(&self, disk: usize) {
        let topology = self.pool().inner().store().topology();
        let (_, node) = topology.tree.leaves().nth(disk).unwrap();
        let device = self.world.disks()[disk].clone() as _;
        let online = self
            .pool()
            .inner()
            .online_leaf(node.config.guid, Some(&device));
        online.unwrap();
    }

    fn at(&mut self, moment: Moment) {
        match moment {
            Moment::BeforeWrites => {
                self.begin_trouble();
                self.write();
                self.sync();
                self.write();
            }
            Moment::DuringWrites => {
                self.write();
                self.begin_trouble();
                self.write();
            }
            Moment::AfterWrites => {
                self.write();
                self.sync();
                self.begin_trouble();
            }
            Moment::DuringScrub => {
                self.write();
                self.sync();
                self.pool().inner().start_scrub(ScrubRange::All).unwrap();
                scanner().slice(self.pool().inner()).unwrap();
                self.begin_trouble();
                finish(self.pool());
            }
            Moment::DuringResilver => {
                let away = self.set.first().map(|(disk, _)| *disk);
                if let Some(away) = away {
                    self.world.disks()[away].set_absent(true);
                    self.write();
                    self.sync();
                    self.world.disks()[away].set_absent(false);
                    self.take_back(away);
                    self.pool().inner().start_resilver().unwrap();
                    scanner().slice(self.pool().inner()).unwrap();
                }
                self.begin_trouble();
                finish(self.pool());
            }
        }
        self.sync();
    }

    /// No other disk is blamed.
    fn blames_only_the_set(&self, what: &str) {
        let topology = self.pool().inner().store().topology();
        for (leaf, _) in topology.tree.leaves() {
            let stats = topology.leaf_stats(leaf);
            let errors = [stats.read_errors, stats.write_errors, stats.checksum_errors];
            let is_in = self.set.iter().any(|(disk, _)| *disk == leaf.0 as usize);
            assert!(is_in || errors == [0; 3], "{what}: {leaf:?} has {errors:?}");
        }
    }

    /// Reads everything from the disks as they are.
    fn holds_on_disk(&self, what: &str) {
        let view = sim::read(&self.world).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.holds(&view, what);
    }

    fn holds(&self, view: &View, what: &str) {
        let found = files_of(view).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(found == self.files, "{what}: other files");
    }

    /// All disks work again: a resilver and a scrub make everything whole.
    fn mend(&mut self, what: &str) {
        for disk in self.world.disks() {
            disk.set_absent(false);
            disk.set_faults(None);
            // What was lost in silence is lost for good.
            disk.evict();
        }
        self.open = Some(sim::open(&self.world).unwrap_or_else(|error| panic!("{what}: {error}")));
        self.holds(&self.pool().committed().unwrap(), what);
        let inner = self.pool().inner().clone();
        inner.clear_leaves(None);
        // A disk that was gone is used again when an administrator says so.
        for (disk, _) in self.set.clone() {
            self.take_back(disk);
        }
        let lost = inner.lost_leaves(true);
        assert!(lost.is_empty(), "{what}: {lost:?}");
        for _ in 0..RESILVERS {
            inner.start_resilver().unwrap();
            finish(self.pool());
        }
        assert!(!inner.needs_resilver(), "{what}");
        let first = scrub(self.pool());
        assert_eq!(first.errors, 0, "{what}");
        let second = scrub(self.pool());
        assert_eq!((second.processed_bytes, second.errors), (0, 0), "{what}");
        self.blames_only_the_set(what);
        self.write();
        self.sync();
        drop(inner);
        self.open.take().unwrap().export().unwrap();
    }
}

fn survive(tops: &Tops, set: &Set, moment: Moment, spared: &[Vec<usize>], is_judged: bool) {
    let what = format!("{tops:?}: {set:?} {moment:?}");
    let mut case = Case::new(tops, set.clone(), 7);
    case.at(moment);
    case.blames_only_the_set(&what);
    drop(case.open.take());
    case.holds_on_disk(&what);
    case.mend(&what);
    sim::verify(&sim::read(&case.world).unwrap()).unwrap_or_else(|error| panic!("{what}: {error}"));
    // So the pool can do without any other disks now.
    for other in spared {
        for disk in other {
            case.world.disks()[*disk].set_absent(true);
        }
        case.holds_on_disk(&format!("{what}, then without {other:?}"));
        for disk in other {
            case.world.disks()[*disk].set_absent(false);
        }
    }
    if is_judged {
        judge(&case.world, &what);
    }
}

/// The part to test: the first number, and the step to the next.
fn part() -> (usize, usize) {
    if !is_all() {
        return (SAMPLE, SAMPLE);
    }
    let Ok(value) = std::env::var("MILLPOND_WRITING_PART") else {
        return (1, 1);
    };
    let numbers = value.split_once('/').unwrap();
    let (part, parts) = (numbers.0.parse().unwrap(), numbers.1.parse().unwrap());
    assert!(1 <= part && part <= parts, "part {part} of {parts}");
    (part, parts)
}

#[test]
fn every_set_of_disks_that_redundancy_covers() {
    let (first, step) = part();
    let mut number = 0;
    let mut tried = 0;
    for tops in shapes() {
        let sets = sets(&tops);
        for (at, set) in sets.iter().enumerate() {
            for set in troubles(set) {
                for moment in MOMENTS {
                    number += 1;
                    if number < first || (number - first) % step != 0 {
                        continue;
                    }
                    let others = [1, 3].map(|step| (at + sets.len() / 2 + step) % sets.len());
                    let spared = others.map(|other| sets[other].clone());
                    survive(&tops, &set, moment, &spared, tried % JUDGED_OF == 0);
                    tried += 1;
                    if tried % 500 == 0 {
                        println!("{tried} cases, of {number} one in {step}; now {tops:?}");
                    }
                }
            }
        }
    }
    println!("{tried} of {number} cases");
    assert!(tried > 50, "{tried} of {number} cases");
}

/// One disk more than the redundancy covers: what is read is right, and what is lost is named.
fn lose(tops: &Tops, set: &[usize], trouble: Trouble) {
    let what = format!("{tops:?}: {set:?} {trouble:?}");
    let mut case = Case::new(tops, vec![], 8);
    case.write();
    case.sync();
    case.open.take().unwrap().export().unwrap();
    for disk in set {
        match trouble {
            Missing => case.world.disks()[*disk].set_absent(true),
            _ => rot(&case.world, *disk, *disk as u64, 400_000),
        }
    }
    if trouble == Missing && set.len() == case.world.disks().len() {
        let found = find_pools(&scan_devices(sim::candidates(&case.world)), 0);
        assert!(found.is_empty(), "{what}");
        return;
    }
    let view = match sim::read(&case.world) {
        Ok(view) => view,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_ne!(trouble, Missing, "{what}: opened without {set:?}");
    let mut lost = 0;
    if let Ok(files) = view.dataset("tank").and_then(|root| root.file_system()) {
        for (name, bytes) in &case.files {
            let node = files.root().ok().and_then(|root| root.lookup(name).ok());
            let mut found = vec![0; bytes.len()];
            match node.map(|node| node.read(0, &mut found)) {
                Some(Ok(_)) => assert!(found == *bytes, "{what}: wrong bytes"),
                _ => lost += 1,
            }
        }
    }
    let report = view.verify(&millpond_verify::Progress::default(), &|_| ());
    let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(
        report.lost > 0 || lost == 0,
        "{what}: {lost} files are lost"
    );
    let name_of = |disk: usize| format!("/sim/d{disk}.img");
    for leaf in report.leaves.values() {
        let is_in = set.iter().any(|disk| leaf.name == name_of(*disk));
        assert!(is_in || leaf.wrong == 0, "{what}: {leaf:?}");
    }
}

#[test]
fn one_disk_more_gives_no_wrong_byte() {
    let mut number = 0;
    for tops in shapes().into_iter().filter(|tops| tops.len() == 1) {
        let (_, layout, disks) = tops[0];
        let most = bears(layout, disks) as u32;
        for mask in (0..1usize << disks).filter(|mask| mask.count_ones() == most + 1) {
            let set: Vec<usize> = (0..disks).filter(|disk| mask >> disk & 1 != 0).collect();
            for trouble in [Missing, Lying] {
                number += 1;
                if is_all() || number % 47 == 0 {
                    lose(&tops, &set, trouble);
                }
            }
        }
    }
}
