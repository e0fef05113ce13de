//! A simulated world: its clock, its seeded RNG and its disks.

use crate::journal::{Event, Journal, PowerCut};
use crate::trace::{Request, Trace, Tracer};
use crate::{Content, Discarded, FaultyMemory, Seed, SimDisk};
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::{Clock, Entropy, Env};

/// Time and disks in memory.
///
/// Requests take simulated time and no real time. Apart from requests, only [`World::advance`] moves the
/// clock.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
    disks: Arc<Mutex<Vec<Arc<SimDisk>>>>,
}

pub(crate) struct Shared {
    seed: Mutex<Seed>,
    now_ns: AtomicU64,
    journal: Mutex<Journal>,
    is_recording: bool,
    tracer: Mutex<Tracer>,
    memory: Mutex<Option<FaultyMemory>>,
    flips: AtomicU64,
    tunables: Arc<millpond_env::Tunables>,
    /// Draws what discarded ranges hold; `None` for zeros.
    discards: Mutex<Option<Seed>>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

/// A plausible date, so that timestamps on disk are recognisable.
const START_NS: u64 = 1_767_225_600_000_000_000;

impl World {
    /// A world of this seed, without disks. It keeps a journal.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::build(seed, true, Tracer::default())
    }
    /// As [`World::new`], without a journal: for long runs without power cuts.
    #[must_use]
    pub fn without_journal(seed: u64) -> Self {
        Self::build(seed, false, Tracer::default())
    }
    fn build(seed: u64, is_recording: bool, tracer: Tracer) -> Self {
        let shared = Arc::new(Shared {
            seed: Mutex::new(Seed::new(seed)),
            now_ns: AtomicU64::new(START_NS),
            journal: Mutex::new(Journal::default()),
            is_recording,
            tracer: Mutex::new(tracer),
            memory: Mutex::new(None),
            flips: AtomicU64::new(0),
            tunables: Arc::default(),
            discards: Mutex::new(None),
        });
        // From now on, timeouts of this run use this world's clock.
        #[cfg(millpond_sim)]
        millpond_env::sim::set_time(Arc::clone(&shared) as Arc<dyn millpond_env::sim::Time>);
        Self {
            shared,
            disks: Arc::default(),
        }
    }
    /// Adds an empty disk.
    #[must_use]
    pub fn disk(&self, size_bytes: u64, sector_bytes: u32) -> Arc<SimDisk> {
        self.disk_with(size_bytes, sector_bytes, Content::default())
    }
    /// Adds a disk with this content.
    #[must_use]
    pub fn disk_with(&self, size_bytes: u64, sector_bytes: u32, content: Content) -> Arc<SimDisk> {
        let mut disks = self.disks.lock();
        let mut journal = self.shared.journal.lock();
        journal.start.push((content.clone(), sector_bytes));
        drop(journal);
        let disk = Arc::new(SimDisk::new(
            Arc::clone(&self.shared),
            disks.len(),
            size_bytes,
            sector_bytes,
            content,
        ));
        disks.push(Arc::clone(&disk));
        disk
    }
    /// All disks, by index.
    #[must_use]
    pub fn disks(&self) -> Vec<Arc<SimDisk>> {
        self.disks.lock().clone()
    }
    /// The engine's clock and random source in this world.
    #[must_use]
    pub fn env(&self) -> Env {
        Env {
            clock: Arc::new(SimClock(Arc::clone(&self.shared))),
            entropy: Arc::new(SimEntropy(Arc::clone(&self.shared))),
            tunables: Arc::clone(&self.shared.tunables),
        }
    }
    /// Starts to flip bits in data that is about to be written; `None` stops it. Worlds made from this one
    /// by [`World::reborn`] do not flip bits.
    pub fn set_memory(&self, memory: Option<FaultyMemory>) {
        *self.shared.memory.lock() = memory;
    }
    /// From now on each discarded range holds zeros, its old bytes or noise, as the seed decides. Without this it holds
    /// zeros.
    pub fn set_discards(&self, seed: Seed) {
        *self.shared.discards.lock() = Some(seed);
    }
    /// The number of writes that [`FaultyMemory`] changed; each copy counts.
    #[must_use]
    pub fn flips(&self) -> u64 {
        self.shared.flips.load(Ordering::SeqCst)
    }
    /// Advances the clock.
    pub fn advance(&self, ns: u64) {
        self.shared.now_ns.fetch_add(ns, Ordering::SeqCst);
    }
    /// A copy of the journal so far.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.shared.journal.lock().clone()
    }
    /// The number of events in the journal, in which [`World::reborn`] counts.
    #[must_use]
    pub fn recorded(&self) -> usize {
        self.shared.journal.lock().len()
    }
    /// The memory that the events of the journal keep, in bytes.
    #[must_use]
    pub fn recorded_bytes(&self) -> u64 {
        let journal = self.shared.journal.lock();
        let sizes = journal.events.iter().map(|event| match event {
            Event::Write { bytes, .. } => bytes.len() as u64,
            _ => 0,
        });
        sizes.sum()
    }
    /// The trace of all requests so far, including those to the worlds that this one was made from.
    ///
    /// Two runs with equal traces sent the same requests in the same order and got the same answers.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.shared.tracer.lock().trace()
    }
    /// Calls `each` with every request from now on, in this world and in those made from it.
    pub fn watch(&self, each: impl Fn(&Request) + Send + Sync + 'static) {
        self.shared.tracer.lock().watch(Arc::new(each));
    }
    /// Clears the journal: the present contents, taken as durable, are the new start.
    pub fn forget(&self) {
        let disks = self.disks.lock();
        let mut journal = self.shared.journal.lock();
        journal.events.clear();
        for (start, disk) in journal.start.iter_mut().zip(disks.iter()) {
            start.0 = disk.content_without_lost();
        }
    }
    /// Cuts the power now and returns the disks as a new world finds them.
    ///
    /// The old disks stay valid until their users drop them.
    #[must_use]
    pub fn power_cut(&self, cut: PowerCut) -> Vec<Arc<SimDisk>> {
        let count = self.shared.journal.lock().len();
        self.reborn(count, &cut).disks()
    }
    /// A new world with the disks as they would be if the power had been cut after `count` events.
    ///
    /// This world draws the seed of the new one. The clock continues from this world's time.
    #[must_use]
    pub fn reborn(&self, count: usize, cut: &PowerCut) -> World {
        let contents = self.shared.journal.lock().crash_at(count, cut);
        let number = self.shared.seed.lock().bits();
        let tracer = self.shared.tracer.lock().clone();
        let world = Self::build(number, self.shared.is_recording, tracer);
        let now = self.shared.now_ns.load(Ordering::SeqCst);
        world.shared.now_ns.store(now, Ordering::SeqCst);
        for (disk, content) in self.disks.lock().iter().zip(contents) {
            use millpond_device::Device;
            let _ = world.disk_with(disk.resized_bytes(), disk.sector_bytes(), content);
        }
        world
    }
}

impl Shared {
    pub(crate) fn record(&self, event: Event) {
        if self.is_recording {
            self.journal.lock().events.push(event);
        }
    }
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }
    pub(crate) fn trace(&self, request: &Request) {
        self.tracer.lock().note(request);
    }
    /// Delays the calling thread by simulated time.
    pub(crate) fn pass(&self, ns: u64) {
        #[cfg(millpond_sim)]
        if millpond_env::sim::sleep(ns) {
            return;
        }
        self.now_ns.fetch_add(ns, Ordering::SeqCst);
    }
    /// Advances the clock without a wait.
    pub(crate) fn put_forward(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::SeqCst);
    }
    /// The bit that memory flips in these bytes on their way to a disk, if any.
    pub(crate) fn flip(&self, bytes: &[u8]) -> Option<(usize, u8)> {
        let memory = *self.memory.lock();
        let flip = memory?.flip(bytes)?;
        self.flips.fetch_add(1, Ordering::SeqCst);
        Some(flip)
    }
    /// What the next discarded range holds.
    pub(crate) fn discarded(&self) -> Discarded {
        let mut seed = self.discards.lock();
        match seed.as_mut().map(|seed| (seed.below(3), seed.bits())) {
            None | Some((0, _)) => Discarded::Zeros,
            Some((1, _)) => Discarded::Old,
            Some((_, word)) => Discarded::Noise(word),
        }
    }
    /// A request takes 20 µs, plus 1 ns per two bytes.
    pub(crate) fn tick(&self, length_bytes: u64) {
        self.now_ns
            .fetch_add(20_000 + length_bytes / 2, Ordering::SeqCst);
    }
}

#[cfg(millpond_sim)]
impl millpond_env::sim::Time for Shared {
    fn now_ns(&self) -> u64 {
        Self::now_ns(self)
    }
    fn advance_to(&self, ns: u64) {
        self.now_ns.fetch_max(ns, Ordering::SeqCst);
    }
}

struct SimClock(Arc<Shared>);

impl Clock for SimClock {
    fn wall_ns(&self) -> u64 {
        self.0.now_ns.load(Ordering::SeqCst)
    }
    fn monotonic_ns(&self) -> u64 {
        self.0
            .now_ns
            .load(Ordering::SeqCst)
            .saturating_sub(START_NS)
    }
}

struct SimEntropy(Arc<Shared>);

impl Entropy for SimEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.seed.lock().fill(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, FaultPlan, Scope};
    use millpond_device::Device;

    fn read(disk: &SimDisk, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        disk.read(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn unflushed_writes_are_seen_but_may_be_lost() {
        let world = World::new(1);
        let disk = world.disk(1 << 20, 512);
        disk.write(0, &[1; 1024]).unwrap();
        disk.flush().unwrap();
        disk.write(0, &[2; 1024]).unwrap();
        disk.write(4096, &[3; 512]).unwrap();
        assert_eq!(read(&disk, 0, 1024), [2; 1024]);
        let after = |cut| world.power_cut(cut);
        assert_eq!(
            read(&after(PowerCut::NothingUnflushed)[0], 0, 1024),
            [1; 1024]
        );
        assert_eq!(
            read(&after(PowerCut::EverythingWritten)[0], 0, 1024),
            [2; 1024]
        );
        let first = after(PowerCut::First(1));
        assert_eq!(read(&first[0], 0, 1024), [2; 1024]);
        assert_eq!(read(&first[0], 4096, 512), [0; 512]);
        let but = after(PowerCut::AllBut(0));
        assert_eq!(read(&but[0], 0, 1024), [1; 1024]);
        assert_eq!(read(&but[0], 4096, 512), [3; 512]);
    }

    #[test]
    fn a_torn_write_is_torn_only_between_sectors() {
        let world = World::new(1);
        let disk = world.disk(1 << 20, 512);
        disk.write(0, &[1; 1024]).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let after = world.power_cut(PowerCut::Torn(Seed::new(seed)));
            let bytes = read(&after[0], 0, 1024);
            for sector in bytes.chunks(512) {
                assert!(sector.iter().all(|byte| *byte == sector[0]));
            }
            seen.insert((bytes[0], bytes[512]));
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn every_moment_is_rebuilt_from_the_journal() {
        let world = World::new(1);
        let disk = world.disk(1 << 20, 512);
        for byte in 1..=10u8 {
            disk.write(u64::from(byte) * 512, &[byte; 512]).unwrap();
            disk.flush().unwrap();
        }
        let journal = world.journal();
        assert_eq!(journal.len(), 20);
        for count in 0..=20 {
            let content = &journal.crash_at(count, &PowerCut::NothingUnflushed)[0];
            for byte in 1..=10u8 {
                let mut found = [0];
                content.read(u64::from(byte) * 512, &mut found);
                assert_eq!(found[0] != 0, count >= usize::from(byte) * 2);
            }
        }
    }

    #[test]
    fn a_failed_flush_loses_page_cache_contents() {
        let world = World::new(1);
        let disk = world.disk(1 << 20, 512);
        disk.write(0, &[1; 4096]).unwrap();
        disk.flush().unwrap();
        disk.write(0, &[2; 4096]).unwrap();
        disk.write(8192, &[3; 512]).unwrap();
        disk.set_faults(Some(FaultPlan::new(Seed::new(1)).failing_once_after(0)));
        assert!(disk.flush().is_err());
        assert_eq!(disk.write_back_errors(), 1);
        assert!(disk.flush().is_ok(), "it is reported once");
        disk.write(8192, &[4; 512]).unwrap();
        disk.flush().unwrap();
        assert_eq!(read(&disk, 0, 4096), [2; 4096]);
        for cut in [PowerCut::EverythingWritten, PowerCut::NothingUnflushed] {
            let after = world.power_cut(cut);
            assert_eq!(read(&after[0], 0, 4096), [1; 4096]);
            assert_eq!(read(&after[0], 8192, 512), [4; 512]);
        }
        disk.evict();
        assert_eq!(read(&disk, 0, 4096), [1; 4096]);
        assert_eq!(read(&disk, 8192, 512), [4; 512]);
    }

    #[test]
    fn a_durable_write_flushes_no_other_write() {
        let world = World::new(1);
        let disk = world.disk(1 << 20, 512);
        let durable = |at, byte: u8| {
            let bytes = [byte; 512];
            let mut requests = [millpond_device::WriteRequest::new(at, &bytes)];
            disk.write_durable(&mut requests);
            requests[0].outcome.clone()
        };
        disk.write(8192, &[1; 512]).unwrap();
        durable(0, 2).unwrap();
        let journal = world.journal();
        assert_eq!(journal.unflushed_at(journal.len()), [1]);
        let after = world.power_cut(PowerCut::NothingUnflushed);
        assert_eq!(
            (read(&after[0], 0, 512), read(&after[0], 8192, 512)),
            (vec![2; 512], vec![0; 512])
        );
        // A durable write fails as a write, or as the flush that it includes.
        for (good, seen) in [(0, 2), (1, 3)] {
            disk.set_faults(Some(FaultPlan::new(Seed::new(1)).failing_once_after(good)));
            assert!(durable(0, 3).is_err());
            assert_eq!(read(&disk, 0, 1), [seen]);
            let after = world.power_cut(PowerCut::EverythingWritten);
            assert_eq!(read(&after[0], 0, 1), [2]);
        }
        disk.evict();
        assert_eq!(read(&disk, 0, 1), [2]);
    }

    #[test]
    fn faults_occur_at_the_given_rate_from_the_seed() {
        let run = || {
            let world = World::new(5);
            let disk = world.disk(1 << 20, 512);
            disk.write(8192, &[7; 512]).unwrap();
            disk.set_faults(Some(
                FaultPlan::new(Seed::new(9))
                    .with(Scope::Writes, Fault::Lose, 100_000)
                    .with(Scope::Reads, Fault::Corrupt, 100_000)
                    .with(Scope::Reads, Fault::Fail, 100_000)
                    .sparing(4096),
            ));
            let mut outcomes = vec![];
            for _ in 0..1000 {
                disk.read(0, &mut [0; 512]).unwrap();
                let mut bytes = [0; 512];
                outcomes.push(disk.read(8192, &mut bytes).map(|()| bytes[0]));
            }
            (outcomes, disk.broken_promises())
        };
        let (outcomes, broken) = run();
        assert!((100..300).contains(&broken), "{broken}");
        assert!(outcomes.iter().any(Result::is_err));
        assert!(outcomes.contains(&Ok(7)) && outcomes.contains(&Ok(0x17)));
        assert_eq!(run(), (outcomes, broken));
    }

    #[test]
    fn a_slow_disk_only_takes_time() {
        let world = World::new(1);
        let disk = world.disk(1 << 20, 512);
        let second = 1_000_000_000;
        let took = |disk: &SimDisk| {
            let before = world.env().clock.wall_ns();
            for _ in 0..100 {
                disk.write(0, &[1; 512]).unwrap();
            }
            world.env().clock.wall_ns() - before
        };
        assert!(took(&disk) < second / 100);
        disk.set_faults(Some(FaultPlan::new(Seed::new(3)).slow(500_000, second)));
        let slow = took(&disk);
        assert!((10 * second..50 * second).contains(&slow), "{slow}");
        assert_eq!(
            (read(&disk, 0, 512), disk.broken_promises()),
            (vec![1; 512], 0)
        );
    }

    #[test]
    fn faulty_memory_flips_the_same_bit_in_all_copies() {
        use crate::FaultyMemory;
        let world = World::new(1);
        let (one, two) = (world.disk(1 << 20, 512), world.disk(1 << 20, 512));
        world.set_memory(Some(FaultyMemory {
            seed: 3,
            per_million: 300_000,
            bytes_min: 512,
        }));
        let mut hit = 0;
        for byte in 0..100u8 {
            let bytes = [byte; 512];
            one.write(0, &bytes).unwrap();
            two.write(4096, &bytes).unwrap();
            let there = read(&one, 0, 512);
            assert_eq!(read(&two, 4096, 512), there);
            let flipped = there.iter().map(|there| (there ^ byte).count_ones());
            let flipped: u32 = flipped.sum();
            assert!(flipped <= 1);
            hit += u64::from(flipped);
            one.write(0, &[byte; 500]).unwrap();
            assert_eq!(read(&one, 0, 500), [byte; 500]);
        }
        assert!((15..50).contains(&hit), "{hit}");
        assert_eq!(world.flips(), 2 * hit);
        world.set_memory(None);
        assert_eq!(world.flips(), 2 * hit);
    }

    #[test]
    fn an_absent_disk_fails_and_returns_with_its_content() {
        let world = World::new(1);
        let disk = world.disk(1 << 20, 512);
        disk.write(0, &[1; 512]).unwrap();
        disk.set_absent(true);
        assert!(disk.read(0, &mut [0; 512]).is_err());
        assert!(disk.write(0, &[2; 512]).is_err());
        assert!(disk.flush().is_err());
        disk.set_absent(false);
        assert_eq!(read(&disk, 0, 512), [1; 512]);
    }

    #[test]
    fn only_chosen_requests_survive_a_power_cut() {
        use crate::Kept;
        let world = World::new(5);
        let (one, two) = (world.disk(1 << 20, 512), world.disk(1 << 20, 512));
        one.write(0, &[1; 512]).unwrap();
        one.flush().unwrap();
        one.write(0, &[2; 512]).unwrap();
        two.write(512, &[3; 2048]).unwrap();
        one.write(4096, &[4; 1024]).unwrap();
        let journal = world.journal();
        assert_eq!(journal.unflushed_at(journal.len()), [1, 4, 2]);
        assert_eq!(journal.unflushed_at(1), [1]);
        assert!(journal.unflushed_at(2).is_empty());
        let kept = [(1, Kept::Sectors(1..3)), (2, Kept::Whole)];
        let after = world.power_cut(PowerCut::Only(kept.into_iter().collect()));
        let byte = |disk: usize, at: u64| {
            let mut bytes = [0];
            after[disk].read(at, &mut bytes).unwrap();
            bytes[0]
        };
        assert_eq!((byte(0, 0), byte(0, 4096), byte(0, 5119)), (1, 4, 4));
        let sectors = [512, 1024, 1536, 2048].map(|at| byte(1, at));
        assert_eq!(sectors, [0, 3, 3, 0]);
    }
}
