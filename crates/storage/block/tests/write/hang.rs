//! Devices that stop answering, with a clock that only the tests advance.

use crate::pool::{Arena, TXG, address, job, noise};
use millpond_block::{
    BlockAudit, BlockCache, BlockStore, BlockWrite, Copied, Healed, IoClock, LeafCondition,
    LeafReason, LeafRefusal, LeafState, Topology, WrittenBlock, unhurried,
};
use millpond_device::{Device, WriteBehind};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_env::thread;
use millpond_ondisk::{ChecksumKind, CompressionKind, Guid, VDEV_DATA_START_BYTES, VdevId};
use millpond_sim::{HangPlan, Hanging, SimDisk, World};
use millpond_vdev::{IndirectTables, LeafId, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(4);
const DEADLINE_NS: u64 = DEADLINE.as_nanos() as u64;
const SECOND_NS: u64 = 1_000_000_000;

struct Bench {
    world: World,
    disks: Vec<Arc<SimDisk>>,
    store: BlockStore,
    arena: Arena,
}

/// A mirror with this many sides; with one side it is a single disk.
fn bench(sides: u64) -> Bench {
    let world = World::new(7);
    let disks: Vec<Arc<SimDisk>> = (0..sides).map(|_| world.disk(12 << 20, 512)).collect();
    let leaf = |number: u64| {
        let mut leaf = VdevConfig::new(VdevType::File, Guid(10 + number));
        leaf.path = Some(format!("disk{number}"));
        leaf
    };
    let mut top = match sides {
        1 => leaf(0),
        _ => VdevConfig {
            children: (0..sides).map(leaf).collect(),
            ..VdevConfig::new(VdevType::Mirror, Guid(5))
        },
    };
    (top.id, top.ashift) = (Some(0), 9);
    (top.asize_bytes, top.metaslab_shift) = (8 << 20, 20);
    let tree = VdevTree::new(VdevConfig::root(Guid(1), vec![top]), Reflow::default()).unwrap();
    let devices = (disks.iter()).map(|disk| Some(Arc::clone(disk) as Arc<dyn Device>));
    let health = LeafTable::all_good(disks.len());
    let indirect = IndirectTables::default();
    let mut topology = Topology::new(tree.clone(), devices.collect(), health, indirect);
    topology.clock = IoClock::of(&world.env());
    topology.deadline = Some(DEADLINE);
    Bench {
        world,
        disks,
        store: BlockStore::new(topology, BlockCache::new(8 << 20)),
        arena: Arena::new(&tree),
    }
}

fn raw(seed: u64) -> BlockWrite {
    BlockWrite {
        compression: CompressionKind::Off,
        ..job(noise(seed, 4096))
    }
}

impl Bench {
    fn write(&self, seed: u64) -> WrittenBlock {
        let written = self.store.write(TXG, &self.arena, vec![raw(seed)]);
        written.into_iter().next().unwrap().unwrap()
    }
    fn read(&self, block: &WrittenBlock, seed: u64) {
        let read = self.store.read_uncached(&block.pointer, address(), None);
        assert_eq!(read.unwrap().bytes, Arc::new(noise(seed, 4096)));
    }
    /// Whether a side holds the bytes of a block with this seed.
    fn holds(&self, side: usize, block: &WrittenBlock, seed: u64) -> bool {
        let mut bytes = vec![0; 4096];
        self.disks[side].content().read(place(block), &mut bytes);
        bytes == noise(seed, 4096)
    }
    fn condition(&self, leaf: u32) -> (LeafState, LeafReason) {
        let condition = self.store.topology().condition(LeafId(leaf));
        (condition.state, condition.reason)
    }
    fn readmit(&self, leaf: u32) -> Result<LeafCondition, LeafRefusal> {
        let online = LeafCondition::default();
        (self.store.topology()).change_condition(LeafId(leaf), online)
    }
    /// Waits until the abandoned requests of a leaf have ended.
    fn settle(&self, leaf: u32) {
        while self.store.topology().abandoned_requests(LeafId(leaf)) > 0 {
            thread::yield_now();
        }
    }
}

/// Where a block lies on each side.
fn place(block: &WrittenBlock) -> u64 {
    let at = block.pointer.dvas().next().unwrap().offset_bytes;
    VDEV_DATA_START_BYTES + at
}

#[test]
fn a_side_that_hangs_in_the_background_is_given_up_by_the_flush() {
    let _mark = mark::expect("leaf-hung");
    let bench = bench(2);
    bench.disks[0].hang(HangPlan::new(Hanging::Writes).passing(DEADLINE_NS + SECOND_NS));
    bench.store.set_write_behind(WriteBehind::Always);
    let written = (bench.store).write_behind(TXG, &bench.arena, vec![raw(1)]);
    let block = written.into_iter().next().unwrap().unwrap();
    assert_ne!(bench.condition(0), HUNG);
    bench.store.flush().unwrap();
    assert_eq!(bench.condition(0), HUNG);
    let missed = bench.store.take_missed();
    let missed: Vec<_> = missed.iter().map(|one| (one.leaf.0, one.txg)).collect();
    assert_eq!(missed, [(0, TXG)]);
    bench.read(&block, 1);
    bench.disks[0].release();
    bench.settle(0);
}

const HUNG: (LeafState, LeafReason) = (LeafState::Faulted, LeafReason::Hung);

#[test]
fn a_hung_side_is_skipped_until_it_answers() {
    let _mark = mark::expect("leaf-hung");
    let hangs = |plan: HangPlan| {
        let bench = bench(2);
        let first = bench.write(1);
        bench.store.flush().unwrap();
        bench.disks[0].hang(plan.passing(DEADLINE_NS + SECOND_NS));
        let second = bench.write(2);
        bench.store.flush().unwrap();
        bench.read(&first, 1);
        bench.read(&second, 2);
        assert_eq!(bench.condition(0), HUNG);
        let missed = bench.store.take_missed();
        let missed: Vec<_> = missed.iter().map(|one| (one.leaf.0, one.txg)).collect();
        assert_eq!(missed, [(0, TXG)]);
        // The leaf cannot be brought online yet.
        assert_eq!(bench.readmit(0), Err(LeafRefusal::Unanswered));
        assert_eq!(bench.condition(0), HUNG);
        bench.disks[0].release();
        bench.settle(0);
        bench.readmit(0).unwrap();
        assert_eq!(bench.condition(0).0, LeafState::Online);
        // What the leaf missed while it hung is not rewritten; new writes reach it.
        let third = bench.write(3);
        bench.store.flush().unwrap();
        bench.read(&second, 2);
        bench.read(&third, 3);
    };
    hangs(HangPlan::new(Hanging::Writes));
    hangs(HangPlan::new(Hanging::Flushes));
}

#[test]
fn a_late_write_is_dropped_and_never_written_again() {
    let bench = bench(2);
    let holds = |block: &WrittenBlock, seed| bench.holds(0, block, seed);
    bench.disks[0].hang(HangPlan::new(Hanging::Writes).passing(2 * DEADLINE_NS));
    let block = bench.write(1);
    bench.store.flush().unwrap();
    assert!(!holds(&block, 1));
    bench.disks[0].release();
    bench.settle(0);
    assert!(holds(&block, 1), "it was carried out late");
    // Write newer bytes at the same address. The leaf is in use again, and all unflushed writes are
    // rewritten.
    bench.readmit(0).unwrap();
    let newer = noise(2, 4096);
    bench.disks[0].write(place(&block), &newer).unwrap();
    bench.store.distrust_unflushed();
    bench.write(3);
    bench.store.flush().unwrap();
    assert!(holds(&block, 2), "the late bytes did not come again");
}

#[test]
fn the_last_side_has_no_deadline() {
    for sides in [1, 2] {
        let bench = bench(sides);
        let last = bench.disks.len() - 1;
        let hang = HangPlan::new(Hanging::Writes).passing(3 * DEADLINE_NS);
        bench.disks.iter().for_each(|disk| disk.hang(hang.clone()));
        thread::scope(|scope| {
            let writing = scope.spawn(|| bench.write(1));
            bench.disks.iter().for_each(|disk| disk.await_hang());
            let unanswered = loop {
                // Of two sides that hang one is faulted.
                let topology = bench.store.topology();
                let usable = (0..sides).filter(|side| {
                    let leaf = LeafId(u32::try_from(*side).unwrap());
                    topology.status(leaf).unwrap().is_usable()
                });
                if usable.count() == 1 {
                    break topology.unanswered();
                }
                thread::yield_now();
            };
            let (leaf, since) = unanswered.expect("one is waited for");
            assert!(since >= DEADLINE && leaf.0 as usize <= last);
            assert!(!writing.is_finished());
            bench.disks.iter().for_each(|disk| disk.release());
            let block = writing.join().unwrap();
            bench.store.flush().unwrap();
            bench.read(&block, 1);
        });
        assert_eq!(bench.store.topology().unanswered(), None);
    }
}

#[test]
fn reads_avoid_a_slow_side_and_shared_reads_end() {
    let bench = bench(2);
    let blocks: Vec<WrittenBlock> = (0..16).map(|seed| bench.write(seed)).collect();
    bench.store.flush().unwrap();
    let read_all = || {
        for (seed, block) in (0..).zip(&blocks) {
            let read = unhurried(|| bench.store.read(&block.pointer, address(), None));
            assert_eq!(read.unwrap().bytes, Arc::new(noise(seed, 4096)));
        }
    };
    bench.disks[0].hang(HangPlan::new(Hanging::Reads));
    thread::scope(|scope| {
        // This reader waits for the disk itself.
        let first = scope.spawn(read_all);
        bench.disks[0].await_hang();
        bench.world.advance(SECOND_NS + 1);
        for (seed, block) in (0..).zip(&blocks) {
            unhurried(|| bench.read(block, seed));
        }
        assert_eq!(bench.disks[0].hanging(), 1, "no other read went there");
        // This reader joins the reads of the first one, and then reads by itself.
        let second = scope.spawn(read_all);
        while !second.is_finished() {
            bench.world.advance(SECOND_NS);
            thread::yield_now();
        }
        second.join().unwrap();
        assert!(!first.is_finished());
        bench.disks[0].release();
        first.join().unwrap();
    });
    assert_eq!(bench.condition(0).0, LeafState::Online);
}

/// A side that has not answered for a second holds its bytes nevertheless. A scrub or resilver that begins then waits for
/// it instead of writing it over.
#[test]
fn a_slow_side_is_not_written_over() {
    type Batch = fn(&BlockStore, &WrittenBlock, &mut dyn FnMut(BlockAudit));
    let heal: Batch = |store, block, found| {
        let wanted = [(block.pointer, address())];
        store.heal_batch(&wanted, |_, audit| found(audit.unwrap()));
    };
    let resilver: Batch = |store, block, found| {
        let wanted = [(block.pointer, address())];
        store.resilver_batch(&wanted, |_, audit| found(audit.unwrap()));
    };
    for (batch, checksum) in [
        (heal, ChecksumKind::Off),
        (heal, ChecksumKind::Fletcher4),
        (resilver, ChecksumKind::Off),
        (resilver, ChecksumKind::Fletcher4),
    ] {
        let bench = bench(2);
        let job = BlockWrite { checksum, ..raw(1) };
        let written = bench.store.write(TXG, &bench.arena, vec![job, raw(2)]);
        let written: Vec<WrittenBlock> = written.into_iter().map(Result::unwrap).collect();
        bench.store.flush().unwrap();
        if checksum == ChecksumKind::Off {
            // Nothing tells which side is right.
            let bytes = noise(3, 4096);
            bench.disks[1].write(place(&written[0]), &bytes).unwrap();
        }
        bench.disks[0].hang(HangPlan::new(Hanging::Reads));
        thread::scope(|scope| {
            let read = || unhurried(|| bench.read(&written[1], 2));
            let reading = scope.spawn(read);
            bench.disks[0].await_hang();
            bench.world.advance(SECOND_NS + 1);
            let view = bench.store.view(Arc::default());
            let block = &written[0];
            let healing = scope.spawn(move || {
                let mut healed = Healed::default();
                batch(&view, block, &mut |audit| healed = audit.healed);
                healed
            });
            // Waits until the batch has asked the slow side, or has ended without it.
            while bench.disks[0].hanging() < 2 && !healing.is_finished() {
                thread::yield_now();
            }
            bench.disks[0].release();
            assert_eq!(healing.join().unwrap(), Healed::default());
            reading.join().unwrap();
        });
        assert!(bench.holds(0, &written[0], 1), "{checksum:?}");
        let stats = bench.store.topology().leaf_stats(LeafId(0));
        assert_eq!((stats.checksum_errors, stats.repaired_bytes), (0, 0));
    }
}

#[test]
fn a_read_that_others_depend_on_has_a_deadline() {
    let bench = bench(2);
    let blocks: Vec<WrittenBlock> = (0..16).map(|seed| bench.write(seed)).collect();
    bench.store.flush().unwrap();
    bench.disks[0].hang(HangPlan::new(Hanging::Reads).passing(2 * DEADLINE_NS));
    for (seed, block) in (0..).zip(&blocks) {
        bench.read(block, seed);
    }
    assert_eq!(bench.condition(0), HUNG);
    let stats = bench.store.topology().leaf_stats(LeafId(0));
    assert_eq!((stats.read_errors, stats.checksum_errors), (0, 0));
    bench.disks[0].release();
}

#[test]
fn a_probe_of_a_hung_device_times_out() {
    let bench = bench(1);
    let topology = bench.store.topology();
    bench.disks[0].hang(HangPlan::new(Hanging::Reads).passing(20 * SECOND_NS));
    let look = || {
        topology
            .tried_device(LeafId(0))
            .unwrap()
            .read(0, &mut [0; 512])
    };
    look().unwrap_err();
    // The next one makes no request.
    look().unwrap_err();
    assert_eq!(bench.disks[0].hanging(), 1);
    bench.disks[0].release();
    bench.settle(0);
    look().unwrap();
    assert_eq!(
        bench.condition(0).0,
        LeafState::Online,
        "nothing else was hurt"
    );
}

/// A range of a hung source is free for writes again, and a hung target goes out of use.
#[test]
fn a_copy_gives_up_when_a_side_hangs() {
    let bench = bench(2);
    bench.write(1);
    bench.store.change_topology(|topology| {
        topology.health.entry(LeafId(1)).unwrap().missed.push(4..50);
    });
    let copy = || {
        let pass = bench.store.begin_copies(VdevId(0), &[Guid(11)]).unwrap();
        pass.copy(&(0..1 << 20))
    };
    let mark = mark::expect("optional-request-abandoned");
    let once = HangPlan::new(Hanging::Reads).once();
    bench.disks[0].hang(once.passing(2 * DEADLINE_NS));
    assert_eq!(copy(), Copied::NoAnswer);
    drop(mark);
    // Not asked again before it has answered.
    assert_eq!(copy(), Copied::NoAnswer);
    assert_eq!(bench.disks[0].hanging(), 1);
    assert_eq!(bench.condition(0).0, LeafState::Online);
    let block = bench.write(2);
    bench.disks[0].release();
    bench.settle(0);
    assert_eq!(copy(), Copied::Read { failed: vec![] });
    bench.read(&block, 2);
    bench.disks[1].hang(HangPlan::new(Hanging::Writes).passing(2 * DEADLINE_NS));
    let failed = vec![Guid(11)];
    assert_eq!(copy(), Copied::Read { failed });
    assert_eq!(bench.condition(1), HUNG);
    bench.write(3);
    bench.disks[1].release();
}
