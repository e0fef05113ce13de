//! Blocks that are written behind their pointers.

use crate::pool::{Arena, Pool, TXG, Vdev, address, job, noise};
use millpond_block::{
    Allocate, BlockWrite, LeafReason, NoSpace, SpaceRequest, WrittenBlock, WrittenForm,
};
use millpond_device::WriteBehind;
use millpond_env::mark;
use millpond_env::sync::atomic::Ordering;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::thread;
use millpond_ondisk::{BlockPointer, CompressionKind, Dva, Txg, VDEV_DATA_START_BYTES};
use millpond_vdev::LeafId;

const KINDS: [Vdev; 3] = [Vdev::Disk, Vdev::Mirror(2), Vdev::Raidz(3, 1)];
const LARGE: usize = 1 << 20;

fn raw(seed: u64, length: usize) -> BlockWrite {
    BlockWrite {
        compression: CompressionKind::Off,
        ..job(noise(seed, length))
    }
}

fn behind(pool: &Pool, job: BlockWrite) -> WrittenBlock {
    behind_in(pool, &pool.arena, job)
}

fn behind_in(pool: &Pool, allocator: &dyn Allocate, job: BlockWrite) -> WrittenBlock {
    pool.store.set_write_behind(WriteBehind::Always);
    let written = pool.store.write_behind(TXG, allocator, vec![job]);
    written.into_iter().next().unwrap().unwrap()
}

#[test]
fn by_default_it_writes_behind_while_every_vdev_is_redundant() {
    let is_behind = |pool: &Pool| {
        pool.store.set_write_behind(WriteBehind::WhenRedundant);
        let written = (pool.store).write_behind(TXG, &pool.arena, vec![raw(1, 512)]);
        assert!(written[0].is_ok());
        pool.store.has_outstanding()
    };
    for (vdevs, is_redundant) in [
        (vec![Vdev::Mirror(2)], true),
        (vec![Vdev::Mirror(2), Vdev::Raidz(3, 1)], true),
        (vec![Vdev::Disk], false),
        (vec![Vdev::Mirror(2), Vdev::Disk], false),
    ] {
        let vdevs: Vec<_> = vdevs.into_iter().map(|vdev| (vdev, 9)).collect();
        assert_eq!(is_behind(&Pool::new(&vdevs)), is_redundant, "{vdevs:?}");
    }
    let pool = Pool::new(&[(Vdev::Raidz(3, 1), 9)]);
    let topology = pool.store.topology();
    assert!(topology.fault_leaf(LeafId(1), LeafReason::IoFailures));
    assert!(!is_behind(&pool));
}

fn writes(pool: &Pool) -> u64 {
    let devices = pool.devices.iter();
    devices
        .map(|device| device.writes.load(Ordering::SeqCst))
        .sum()
}

/// Stops writes until it is opened.
#[derive(Default)]
struct Gate {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    /// Stops the next write of each device.
    fn before_writes(pool: &Pool) -> Arc<Self> {
        let gate = Arc::<Self>::default();
        for device in &pool.devices {
            let gate = Arc::clone(&gate);
            device.before_write(move || gate.pass());
        }
        gate
    }
    fn pass(&self) {
        let mut state = self.state.lock();
        state.0 += 1;
        self.changed.notify_all();
        while !state.1 {
            self.changed.wait(&mut state);
        }
    }
    /// Waits until this many writes have been stopped.
    fn await_stopped(&self, count: usize) {
        let mut state = self.state.lock();
        while state.0 < count {
            self.changed.wait(&mut state);
        }
    }
    fn open(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }
}

/// Allocates the same place again and again.
struct Same<'a>(&'a Arena, Mutex<Option<Vec<Dva>>>);

impl<'a> Same<'a> {
    fn of(pool: &'a Pool) -> Self {
        Self(&pool.arena, Mutex::new(None))
    }
}

impl Allocate for Same<'_> {
    fn allocate(&self, txg: Txg, request: &SpaceRequest<'_>) -> Result<Vec<Dva>, NoSpace> {
        let mut known = self.1.lock();
        if let Some(dvas) = &*known {
            return Ok(dvas.clone());
        }
        let dvas = self.0.allocate(txg, request)?;
        *known = Some(dvas.clone());
        Ok(dvas)
    }
    fn release(&self, _: Txg, _: &Dva) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn a_pointer_comes_before_its_block_is_written() {
    for kind in KINDS {
        let pool = Pool::new(&[(kind, 9)]);
        let small = behind(&pool, raw(1, 4096));
        // Nothing was issued: it is held for more.
        assert_eq!(writes(&pool), 0);
        let gate = Gate::before_writes(&pool);
        // Enough to be issued. No device completes a write before the pointers are there.
        let large: Vec<_> = (2..4).map(|seed| behind(&pool, raw(seed, LARGE))).collect();
        assert!(pool.store.has_outstanding());
        gate.open();
        pool.store.flush().unwrap();
        assert!(!pool.store.has_outstanding());
        assert_eq!(pool.store.take_missed(), []);
        assert_eq!(pool.read(&small.pointer), noise(1, 4096));
        for (seed, block) in (2..).zip(large) {
            assert_eq!(pool.read(&block.pointer), noise(seed, LARGE));
        }
    }
}

#[test]
fn a_flush_waits_for_what_is_outstanding() {
    for kind in KINDS {
        let pool = Pool::new(&[(kind, 9)]);
        let block = behind(&pool, raw(1, 4096));
        let gate = Gate::before_writes(&pool);
        thread::scope(|scope| {
            let flushing = scope.spawn(|| pool.store.flush());
            gate.await_stopped(1);
            assert!(!flushing.is_finished());
            let flushes = pool.devices[0].flushes.load(Ordering::SeqCst);
            assert_eq!(flushes, 0);
            gate.open();
            flushing.join().unwrap().unwrap();
        });
        let medium = pool.devices[0].medium.lock();
        let offset = block.pointer.dvas().next().unwrap().offset_bytes;
        let start = (VDEV_DATA_START_BYTES + offset) as usize;
        if !matches!(kind, Vdev::Raidz(..)) {
            assert_eq!(medium[start..start + 4096], noise(1, 4096));
        }
    }
}

#[test]
fn an_outstanding_block_is_read_from_memory() {
    let _mark = mark::expect("outstanding-block-read");
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let block = behind(&pool, raw(1, 4096));
    let read = pool.store.read(&block.pointer, address(), None).unwrap();
    assert_eq!(*read.bytes, noise(1, 4096));
    assert_eq!(writes(&pool), 0);
    for device in &pool.devices {
        assert_eq!(device.reads.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_read_of_the_devices_waits_for_the_write() {
    let _mark = mark::expect("read-waits-for-write");
    for kind in KINDS {
        let pool = Pool::new(&[(kind, 9)]);
        let (first, second) = (behind(&pool, raw(1, 4096)), behind(&pool, raw(2, 4096)));
        let read = pool.store.read_stored(&first.pointer, address()).unwrap();
        assert_eq!(read, noise(1, 4096));
        let audit = pool.store.audit(&second.pointer, address()).unwrap();
        assert!(audit.is_clean());
        let third = behind(&pool, raw(3, 4096));
        let read = pool.store.read_uncached(&third.pointer, address(), None);
        assert_eq!(*read.unwrap().bytes, noise(3, 4096));
        // While the devices have it.
        let fourth = behind(&pool, raw(4, 4096));
        let gate = Gate::before_writes(&pool);
        thread::scope(|scope| {
            let flushing = scope.spawn(|| pool.store.flush());
            gate.await_stopped(1);
            let reading = scope.spawn(|| pool.store.read_stored(&fourth.pointer, address()));
            let batch = scope.spawn(|| {
                let wanted = [(first.pointer, address()), (fourth.pointer, address())];
                pool.store.read_batch(&wanted, None)
            });
            gate.open();
            assert_eq!(reading.join().unwrap().unwrap(), noise(4, 4096));
            for (seed, block) in [1, 4].into_iter().zip(batch.join().unwrap()) {
                assert_eq!(*block.unwrap().bytes, noise(seed, 4096));
            }
            flushing.join().unwrap().unwrap();
        });
        let stats = (0..pool.devices.len() as u32).map(|leaf| {
            let leaf = millpond_vdev::LeafId(leaf);
            pool.store.topology().leaf_stats(leaf).checksum_errors
        });
        assert_eq!(stats.sum::<u64>(), 0);
    }
}

#[test]
fn a_block_that_is_changed_again_is_written_once() {
    let _mark = mark::expect("outstanding-block-superseded");
    for kind in KINDS {
        let pool = Pool::new(&[(kind, 9)]);
        let mut previous = BlockPointer::default();
        for seed in 1..6 {
            let job = BlockWrite {
                previous,
                may_rewrite: true,
                ..raw(seed, 4096)
            };
            let block = behind(&pool, job);
            let is_first = previous == BlockPointer::default();
            assert_eq!(block.form == WrittenForm::Rewritten, !is_first);
            previous = block.pointer;
        }
        pool.store.flush().unwrap();
        assert_eq!(pool.read(&previous), noise(5, 4096));
        // As many as for one block.
        let other = Pool::new(&[(kind, 9)]);
        behind(&other, raw(1, 4096));
        other.store.flush().unwrap();
        assert_eq!(writes(&pool), writes(&other));
    }
}

#[test]
fn an_older_write_never_lands_after_a_newer_one() {
    for kind in KINDS {
        for is_durable in [false, true] {
            let pool = Pool::new(&[(kind, 9)]);
            let same = Same::of(&pool);
            behind_in(&pool, &same, raw(1, 4096));
            let gate = Gate::before_writes(&pool);
            let newer = thread::scope(|scope| {
                let flushing = scope.spawn(|| pool.store.flush());
                gate.await_stopped(1);
                // Its space was freed and is used again, by another block of the txg or by an intent log.
                let writing = scope.spawn(|| match is_durable {
                    true => {
                        let written = pool.store.write_durable(TXG, &same, vec![raw(2, 4096)]);
                        written.into_iter().next().unwrap().unwrap()
                    }
                    false => behind_in(&pool, &same, raw(2, 4096)),
                });
                // It may be waiting by now, or come later.
                thread::yield_now();
                gate.open();
                flushing.join().unwrap().unwrap();
                writing.join().unwrap()
            });
            pool.store.flush().unwrap();
            assert_eq!(pool.read(&newer.pointer), noise(2, 4096));
        }
    }
}

#[test]
fn a_write_waits_for_an_older_one_that_was_issued() {
    let _mark = mark::expect("write-waits-for-older-one");
    for kind in KINDS {
        let pool = Pool::new(&[(kind, 9)]);
        let same = Same::of(&pool);
        let gate = Gate::before_writes(&pool);
        behind_in(&pool, &same, raw(1, LARGE));
        gate.open();
        let newer = behind_in(&pool, &same, raw(2, LARGE));
        pool.store.flush().unwrap();
        assert_eq!(pool.read(&newer.pointer), noise(2, LARGE));
    }
}

#[test]
fn a_held_block_gives_way_to_a_newer_one() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let same = Same::of(&pool);
    behind_in(&pool, &same, raw(1, 4096));
    let newer = pool.store.write_durable(TXG, &same, vec![raw(2, 4096)]);
    assert!(!pool.store.has_outstanding());
    pool.store.flush().unwrap();
    let newer = newer.into_iter().next().unwrap().unwrap();
    assert_eq!(pool.read(&newer.pointer), noise(2, 4096));
}

#[test]
fn no_flush_succeeds_before_every_block_is_written() {
    let _mark = mark::expect("outstanding-block-written-again");
    for kind in KINDS {
        let pool = Pool::new(&[(kind, 9)]);
        let fail = |fails| {
            pool.devices
                .iter()
                .for_each(|device| device.fail_writes(fails));
        };
        fail(true);
        let block = behind(&pool, raw(1, 4096));
        for _ in 0..2 {
            let error = pool.store.flush().unwrap_err().to_string();
            assert!(error.contains("as told"), "{error}");
            assert!(pool.store.has_outstanding());
        }
        // Who reads it gets it from memory.
        let read = pool.store.read(&block.pointer, address(), None).unwrap();
        assert_eq!(*read.bytes, noise(1, 4096));
        fail(false);
        pool.store.flush().unwrap();
        assert!(!pool.store.has_outstanding());
        assert_eq!(pool.read(&block.pointer), noise(1, 4096));
        // From now on pointers wait for their writes, so that a failed block gets other space.
        let before = writes(&pool);
        let later = behind(&pool, raw(2, 4096));
        assert!(writes(&pool) > before && !pool.store.has_outstanding());
        pool.store.flush().unwrap();
        assert_eq!(pool.read(&later.pointer), noise(2, 4096));
    }
}

#[test]
fn a_failed_block_that_is_dead_does_not_stop_the_flush() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let same = Same::of(&pool);
    pool.devices[0].fail_writes(true);
    behind_in(&pool, &same, raw(1, 4096));
    pool.store.flush().unwrap_err();
    pool.devices[0].fail_writes(false);
    let newer = behind_in(&pool, &same, raw(2, 4096));
    pool.store.flush().unwrap();
    assert_eq!(pool.read(&newer.pointer), noise(2, 4096));
}

#[test]
fn what_a_side_missed_is_noted_before_the_flush_ends() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    pool.devices[1].fail_writes(true);
    let block = behind(&pool, raw(1, 4096));
    assert_eq!(pool.store.take_missed(), []);
    pool.store.flush().unwrap();
    let missed: Vec<_> = (pool.store.take_missed().into_iter())
        .map(|one| (one.leaf.0, one.txg))
        .collect();
    assert_eq!(missed, [(1, TXG)]);
    // The store knows that this side lacks it.
    let read = pool.store.read_stored(&block.pointer, address()).unwrap();
    assert_eq!(read, noise(1, 4096));
    assert_eq!(pool.devices[1].reads.load(Ordering::SeqCst), 0);
}

#[test]
fn outstanding_blocks_take_bounded_memory() {
    let _mark = mark::expect("too-much-outstanding");
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let mut blocks = vec![];
    for seed in 0..40u8 {
        // Takes little space on the devices, so that it would be held.
        let mut content = vec![seed; LARGE];
        content[..512].copy_from_slice(&noise(u64::from(seed), 512));
        let block = behind(&pool, job(content.clone()));
        blocks.push((block, content));
    }
    // Of 40 MiB at most 16 and one chunk are left, so something was written.
    assert!(writes(&pool) > 0);
    pool.store.flush().unwrap();
    for (block, content) in blocks {
        assert_eq!(pool.read(&block.pointer), content);
    }
}

#[test]
fn a_closed_store_writes_no_more() {
    for kind in KINDS {
        let mut pool = Pool::new(&[(kind, 9)]);
        let gate = Gate::before_writes(&pool);
        let block = behind(&pool, raw(1, 2 * LARGE));
        let reopened = pool.reopened();
        let closed = std::mem::replace(&mut pool.store, reopened);
        thread::scope(|scope| {
            let closing = scope.spawn(move || drop(closed));
            gate.open();
            closing.join().unwrap();
        });
        let after = writes(&pool);
        assert_eq!(pool.read(&block.pointer), noise(1, 2 * LARGE));
        assert_eq!(writes(&pool), after);
    }
}

#[test]
fn with_one_thread_a_block_is_written_at_once() {
    let pool = Pool::with(&[(Vdev::Mirror(2), 9)], false, 1);
    let block = behind(&pool, raw(1, 4096));
    assert!(writes(&pool) > 0 && !pool.store.has_outstanding());
    assert_eq!(pool.read(&block.pointer), noise(1, 4096));
}

#[test]
fn gang_blocks_are_outstanding_with_all_their_pieces() {
    let _mark = mark::expect("gang-block");
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    pool.arena.shatter(4096, 100);
    let block = behind(&pool, raw(1, 32 << 10));
    assert!(block.pointer.is_gang());
    assert_eq!(writes(&pool), 0);
    let rewritten = BlockWrite {
        previous: block.pointer,
        may_rewrite: true,
        ..raw(2, 32 << 10)
    };
    let rewritten = behind(&pool, rewritten);
    assert_eq!(rewritten.form, WrittenForm::Rewritten);
    let read = pool.store.read_stored(&rewritten.pointer, address());
    assert_eq!(read.unwrap(), noise(2, 32 << 10));
    pool.store.flush().unwrap();
    assert_eq!(pool.read(&rewritten.pointer), noise(2, 32 << 10));
}

/// Writers' pointers, readers and flushes in any order.
#[test]
fn readers_see_every_block_while_it_is_written() {
    for kind in KINDS {
        let pool = Pool::new(&[(kind, 9)]);
        let known: Mutex<Vec<(BlockPointer, u64)>> = Mutex::default();
        let is_over = Mutex::<bool>::new(false);
        thread::scope(|scope| {
            for reader in 0..2 {
                let (pool, known, is_over) = (&pool, &known, &is_over);
                scope.spawn(move || {
                    let mut at = reader;
                    while !*is_over.lock() {
                        let one = {
                            let known = known.lock();
                            at = (at + 7) % known.len().max(1);
                            known.get(at).copied()
                        };
                        if let Some((pointer, seed)) = one {
                            let read = pool.store.read_uncached(&pointer, address(), None);
                            assert_eq!(*read.unwrap().bytes, noise(seed, 32 << 10));
                        }
                        thread::yield_now();
                    }
                });
            }
            for seed in 1..120 {
                let block = behind(&pool, raw(seed, 32 << 10));
                known.lock().push((block.pointer, seed));
                if seed % 50 == 0 {
                    pool.store.flush().unwrap();
                }
            }
            pool.store.flush().unwrap();
            *is_over.lock() = true;
        });
        for (pointer, seed) in known.into_inner() {
            assert_eq!(pool.read(&pointer), noise(seed, 32 << 10));
        }
    }
}
