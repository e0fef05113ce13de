//! Pools that are imported after devices were lost.

use super::*;
use millpond_control::{Changed, PoolChange};

/// A pool as after a crash: `synced` is in the tree, `logged` and `logged again` only in the log. If the log device is new, the
/// log's next block is still on the mirror when `logged` is written.
fn crashed(is_log_new: bool) -> Stage {
    let stage = Stage::new(&["a", "b", "log"]);
    let log = stage.top(AllocationClass::Log, NewLayout::Single, &["log"]);
    let mut tops = vec![stage.top(AllocationClass::Normal, NewLayout::Mirror, &["a", "b"])];
    if !is_log_new {
        tops.push(log.clone());
    }
    let pools = stage.create(of_tops(tops));
    let pool = pools.writable("tank").unwrap();
    write(&pool, "tank", "synced");
    if is_log_new {
        let add = PoolChange::Add(of_tops(vec![log]));
        pools.apply("tank", &add, &mut Changed::default()).unwrap();
    }
    pool.inner().freeze().unwrap();
    write(&pool, "tank", "logged");
    write(&pool, "tank", "logged again");
    drop(pool);
    pools.leave("tank", false, None).unwrap();
    stage
}

/// The files of the pool that are whole.
fn found(pools: &ImportedPools) -> Vec<&'static str> {
    let pool = pools.writable("tank").unwrap();
    let names = ["synced", "logged", "logged again", "later"];
    names
        .into_iter()
        .filter(|name| has(&pool, "tank", name))
        .collect()
}

#[test]
fn a_lost_log_device_with_records_is_given_up() {
    let stage = crashed(false);
    stage.hide("log");
    let refused = stage.import(false).err();
    assert!(
        matches!(&refused, Some(ImportError::MissingLogs(logs)) if logs.len() == 1),
        "{refused:?}"
    );
    let pools = stage.import(true).unwrap();
    assert_eq!(found(&pools), ["synced"]);
    write(&pools.writable("tank").unwrap(), "tank", "later");
    pools.leave("tank", false, None).unwrap();
    let pools = stage.import(true).unwrap();
    assert_eq!(found(&pools), ["synced", "later"]);
}

#[test]
fn what_is_not_on_a_lost_log_device_is_replayed() {
    let stage = crashed(true);
    stage.hide("log");
    let pools = stage.import(true).unwrap();
    assert_eq!(found(&pools), ["synced", "logged"]);
    write(&pools.writable("tank").unwrap(), "tank", "later");
    pools.leave("tank", false, None).unwrap();
    let pools = stage.import(true).unwrap();
    assert_eq!(found(&pools), ["synced", "logged", "later"]);
}

#[test]
fn a_log_that_is_there_is_replayed_although_logs_may_be_missing() {
    let stage = crashed(false);
    let pools = stage.import(true).unwrap();
    assert_eq!(found(&pools), ["synced", "logged", "logged again"]);
}

#[test]
fn a_missing_data_device_is_no_missing_log() {
    let stage = Stage::new(&["a", "b", "log"]);
    let pools = stage.create(of_tops(vec![
        stage.top(AllocationClass::Normal, NewLayout::Single, &["a"]),
        stage.top(AllocationClass::Normal, NewLayout::Single, &["b"]),
        stage.top(AllocationClass::Log, NewLayout::Single, &["log"]),
    ]));
    write(&pools.writable("tank").unwrap(), "tank", "synced");
    pools.leave("tank", false, None).unwrap();
    drop(pools);
    stage.hide("b");
    let bytes = || ["a", "log"].map(|name| std::fs::read(stage.image(name)).unwrap());
    let before = bytes();
    for without_logs in [false, true] {
        let refused = stage.import(without_logs).err();
        assert!(
            matches!(refused, Some(ImportError::MissingDevices)),
            "{refused:?}"
        );
    }
    assert!(bytes() == before, "nothing was written");
}
