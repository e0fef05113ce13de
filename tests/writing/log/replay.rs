//! Logs whose replay ends early or fails.

use super::*;

/// Makes a pool whose file `a` was written and synced three times since the last txg. Returns the bytes of one
/// write. The journal begins after that txg.
pub(super) fn three_logged_writes(world: &World) -> Vec<u8> {
    let pool = sim::create(world, &[(NewLayout::Single, 1)], 64);
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let (node, _) = files.create(&caller, &root, b"a", mode, true).unwrap();
    files.commit_log().unwrap();
    pool.sync().unwrap();
    world.forget();
    let bytes: Vec<u8> = (0..256 << 10)
        .map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 11) as u8)
        .collect();
    for round in 0..3 {
        let at = WriteAt::Offset(round * bytes.len() as u64);
        files.write(&caller, &node, at, &bytes).unwrap();
        files.fsync(&node).unwrap();
    }
    bytes
}

/// A log that ends before an unfinished write includes no blocks after its claimed end.
///
/// The block that a write record points to was not written, so the log ends before that record and is
/// claimed up to it. The power fails again before the replay. A traversal of the log's blocks must then
/// include only claimed ones.
#[test]
fn a_log_claimed_to_an_unfinished_write_does_not_own_its_block() {
    let world = World::new(31);
    three_logged_writes(&world);
    let journal = world.journal();
    let flushes = |world: &World| {
        let journal = world.journal();
        let is_flush = |at: &usize| matches!(journal.events()[*at], Event::Flush { .. });
        (0..journal.len()).filter(is_flush).collect::<Vec<_>>()
    };
    let (mut judged, mut claimed) = (0, 0);
    for count in flushes(&world) {
        // We write the data blocks of records before the records; other implementations write both at once.
        let written = journal.events()[..count].iter();
        let writes = written.filter_map(|event| match event {
            Event::Write {
                offset_bytes,
                bytes,
                ..
            } => Some((*offset_bytes, bytes.len())),
            _ => None,
        });
        for (lost, length) in writes.collect::<Vec<_>>() {
            let after = world.reborn(count, &PowerCut::EverythingWritten);
            after.disks()[0].rot(lost, &vec![0; length]);
            after.forget();
            drop(sim::open(&after).unwrap());
            for again in flushes(&after) {
                let twice = after.reborn(again, &PowerCut::EverythingWritten);
                let read = sim::read(&twice).unwrap();
                let faults = recount::faults_after_a_cut(&read);
                assert_eq!(faults, [""; 0], "{count} but {lost}, then {again}");
                claimed += usize::from(is_claimed(&read));
                judged += 1;
            }
        }
    }
    println!("{judged} states, {claimed} with a log that was claimed");
    assert!(claimed > 5, "{claimed} of {judged} prove nothing");
}

/// A record that was claimed and cannot be replayed does not prevent opening the pool.
#[test]
fn a_log_ends_at_a_record_that_cannot_be_replayed() {
    let _mark = mark::expect("log-ends-at-bad-record");
    let world = World::new(33);
    let bytes = three_logged_writes(&world);
    // Data blocks of records are written together, log blocks alone.
    let journal = world.journal();
    let is_write = |at: usize| matches!(journal.events().get(at), Some(Event::Write { .. }));
    let data = (0..journal.len()).filter_map(|at| match &journal.events()[at] {
        Event::Write {
            offset_bytes,
            bytes,
            ..
        } if is_write(at + 1) || at > 0 && is_write(at - 1) => Some((*offset_bytes, bytes.len())),
        _ => None,
    });
    let data: Vec<_> = data.collect();
    assert_eq!(data.len(), 6);
    let claiming = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
    drop(sim::open(&claiming).unwrap());
    let (mut ended, caller) = (0, Caller::root());
    for count in 0..claiming.recorded() {
        let claimed = claiming.reborn(count, &PowerCut::EverythingWritten);
        if !is_claimed(&sim::read(&claimed).unwrap()) {
            continue;
        }
        for (which, (offset, length)) in data.iter().enumerate() {
            let claimed = claiming.reborn(count, &PowerCut::EverythingWritten);
            claimed.disks()[0].rot(*offset, &vec![0; *length]);
            let what = format!("after {count}, without block {which}");
            let pool = sim::open(&claimed).unwrap_or_else(|error| panic!("{what}: {error}"));
            let events = format!("{:?}", pool.inner().take_noted_events());
            let has_ended = events.contains("log replay failed");
            ended += usize::from(has_ended);
            let files = pool.file_system("tank").unwrap();
            let node = files.root().unwrap().lookup(b"a").unwrap();
            let size = node.stat().unwrap().size_bytes;
            let least = which as u64 * (128 << 10);
            assert!(size >= least, "{what}: {size}");
            let mut found = vec![0; usize::try_from(least).unwrap()];
            node.read(0, &mut found).unwrap();
            let expected = bytes.iter().cycle();
            assert!(
                found
                    .iter()
                    .zip(expected)
                    .all(|(found, byte)| found == byte)
            );
            // The pool is usable.
            files
                .write(&caller, &node, WriteAt::Offset(0), b"new")
                .unwrap();
            files.fsync(&node).unwrap();
            drop((node, files));
            pool.export().unwrap();
            sim::verify(&sim::read(&claimed).unwrap()).unwrap();
        }
        break;
    }
    assert!(ended > 0, "no log ended before its end");
}

pub(super) fn is_claimed(pool: &View) -> bool {
    let set = pool.dataset("tank").unwrap().object_set().unwrap();
    let log = millpond_intent::IntentLog::open(&set);
    log.is_some_and(|log| log.header().claim_txg.0 != 0)
}

/// A disk that fails reads during a log replay loses no promised data.
///
/// The pool opens with all of it, either now or once the disk answers again.
#[test]
fn reads_that_fail_during_a_replay_cost_no_promise() {
    let world = World::new(34);
    let bytes = three_logged_writes(&world);
    let (mut opened, mut refused, mut in_replay) = (0, 0, 0);
    for seed in 0..120 {
        let rate = [10_000, 50_000, 150_000][seed as usize % 3];
        let after = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
        let disk = after.disks()[0].clone();
        let plan = FaultPlan::new(Seed::new(seed)).with(Scope::Reads, Fault::Fail, rate);
        let candidate = sim::candidate(&after);
        disk.set_faults(Some(plan));
        let outcome = sim::open_candidate(&after, &candidate);
        disk.set_faults(None);
        match outcome {
            Ok(_) => opened += 1,
            Err(Error::ReplayNeedsDevices { .. }) => in_replay += 1,
            Err(_) => refused += 1,
        }
        let pool = sim::open(&after).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let files = pool.file_system("tank").unwrap();
        let node = files.root().unwrap().lookup(b"a").unwrap();
        let mut found = vec![0; 3 * bytes.len()];
        assert_eq!(
            node.read(0, &mut found).unwrap(),
            found.len(),
            "seed {seed}"
        );
        assert!(
            found.chunks(bytes.len()).all(|part| part == bytes),
            "seed {seed}"
        );
    }
    println!("{opened} opened, {in_replay} refused in the replay, {refused} before");
    assert!(
        opened > 0 && in_replay > 0,
        "{opened} {in_replay} {refused}"
    );
}
