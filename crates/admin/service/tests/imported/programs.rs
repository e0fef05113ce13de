//! Channel programs that are stopped.

use super::*;
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{DatasetQuery, ProgramRequest, ProgramValue, Wanted};
use millpond_env::mark;
use std::sync::atomic::{AtomicBool, Ordering};

const SNAPSHOT_THEN_RUN_ON: &str =
    "zfs.sync.snapshot('tank@s') while true do zfs.check.snapshot('tank@u') end";

#[test]
fn a_query_sees_what_a_stopped_program_has_changed() {
    let _mark = mark::expect("program-stopped");
    let stage = Stage::new(&["a"]);
    let layout = NewLayout::Single;
    let pools = stage.create(of_tops(vec![stage.top(
        AllocationClass::Normal,
        layout,
        &["a"],
    )]));
    let request = ProgramRequest {
        pool: "tank".into(),
        arguments: ProgramValue::Nil,
        instructions: 100_000_000,
        memory_bytes: 10 << 20,
        is_read_only: false,
    };
    let (is_running, is_stopped) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let marks = mark::inherited();
        let running = scope.spawn(|| {
            marks.take_up();
            let is_abandoned = || {
                is_running.store(true, Ordering::Release);
                is_stopped.load(Ordering::Acquire)
            };
            let script = SNAPSHOT_THEN_RUN_ON.as_bytes();
            pools.run_program(&request, &command(), script, &is_abandoned)
        });
        // It asks for the first time after some thousand instructions: the snapshot is made by then.
        while !is_running.load(Ordering::Acquire) && !running.is_finished() {
            std::thread::yield_now();
        }
        is_stopped.store(true, Ordering::Release);
        let found = snapshots(&pools);
        let outcome = running.join().unwrap();
        assert!(outcome.is_err(), "{outcome:?}");
        assert_eq!(found, ["tank@s"], "{outcome:?}");
    });
}

fn snapshots(pools: &ImportedPools) -> Vec<String> {
    let query = DatasetQuery {
        root: "tank".into(),
        depth: DatasetQuery::WHOLE_TREE,
        kinds: Kinds::only(&[DatasetKind::Snapshot]),
        wanted: Wanted::All,
        names_damaged: false,
    };
    let mut names = vec![];
    let each = &mut |info: millpond_control::DatasetInfo| {
        names.push(info.name);
        Ok(())
    };
    pools.datasets(&query, each).unwrap();
    names
}
