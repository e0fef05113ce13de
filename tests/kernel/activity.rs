//! Free space that is initialized and trimmed by one side and then by the other, and leaves that wait for the next
//! resilver: the kernel module continues what we began, and we what it began.

use crate::{Rig, run_script};
use millpond_device::{Device, FileDevice};
use millpond_engine::{
    ActivityAction::{self, Start, Suspend},
    DraidShape,
    LeafActivity::{self, Initialize, Trim},
    Pool, PoolBuilder, PoolSetting, ScanLimits, Scanner, SliceLimits, TrimOptions,
};
use millpond_tests::leaves;
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::Life;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 96;
const ACTIVE: u64 = 1;
const SUSPENDED: u64 = 3;
const COMPLETE: u64 = 4;
const START: ActivityAction = Start(TrimOptions {
    rate_bytes: 0,
    is_secure: false,
});
/// A trim that is resumed keeps its rate otherwise.
const FAST: ActivityAction = Start(TrimOptions {
    rate_bytes: 1 << 40,
    is_secure: false,
});

fn lived(builder: PoolBuilder, name: &str) -> (Pool, Life) {
    crate::lived(builder, name, "activity", 150)
}

fn change(pool: &Pool, activity: LeafActivity, action: ActivityAction) {
    let all = leaves::all(pool);
    let refused = (pool.inner()).change_leaf_activity(&all, activity, action);
    assert_eq!(refused.unwrap(), [], "{action:?}");
}

/// Makes a part of the activities. Returns whether some remain.
fn slice(pool: &Pool) -> bool {
    let limits = SliceLimits {
        held_bytes: 1 << 20,
        held_ranges: 20,
        batches: 4,
        slice_ns: u64::MAX,
    };
    pool.inner().leaf_activity_slice(&limits).unwrap()
}

fn are(pool: &Pool, activity: LeafActivity, state: u64) -> bool {
    let all = leaves::all(pool);
    let mut stored = all
        .iter()
        .map(|leaf| leaves::stored_activity(pool, *leaf, activity));
    stored.all(|(stored, offset)| stored == state && offset > 0)
}

fn finish(pool: &Pool, activity: LeafActivity, life: &mut Life) {
    for number in 0.. {
        if !slice(pool) {
            break;
        }
        if number < 20 {
            life.steps(pool, 2);
        }
    }
    let of = |leaf| leaves::stored_activity(pool, leaf, activity);
    let stored: Vec<(u64, u64)> = leaves::all(pool).into_iter().map(of).collect();
    assert!(are(pool, activity, COMPLETE), "{activity:?}: {stored:?}");
}

fn set_autotrim(pool: &Pool) {
    let setting = PoolSetting::Number {
        name: "autotrim",
        value: 1,
        text: "on".into(),
    };
    pool.inner().set_property(&setting).unwrap();
}

/// Two mirrors of which one side each was away. The resilver of the first runs, the second one waits for the next.
fn deferred(builder: PoolBuilder, images: [&Path; 2]) -> (Pool, Life) {
    let (pool, mut life) = lived(builder, "deferred");
    for image in images {
        let leaf = leaves::on(&pool, image);
        pool.inner().offline_leaf(leaf, Default::default()).unwrap();
    }
    life.steps(&pool, 100);
    pool.sync().unwrap();
    let online = |image: &Path| {
        let options = millpond_device::OpenOptions {
            write: true,
            ..Default::default()
        };
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, options).unwrap());
        let leaf = leaves::on(&pool, image);
        pool.inner().online_leaf(leaf, Some(&device)).unwrap();
    };
    online(images[0]);
    assert!(pool.inner().start_resilver().unwrap());
    let scanner = Scanner::new(ScanLimits {
        blocks: 40,
        ..ScanLimits::default()
    });
    loop {
        assert!(scanner.slice(pool.inner()).unwrap());
        let state = pool.inner().scan().unwrap().0;
        if state.examined_bytes * 5 >= state.to_examine_bytes {
            break;
        }
    }
    online(images[1]);
    assert!(!pool.inner().start_resilver().unwrap());
    let count = pool.inner().features().count("com.datto:resilver_defer");
    assert_eq!(count, Some(1));
    (pool, life)
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(23, MIB);
    let images = rig.images.clone();
    let mut lives = vec![];

    let (pool, mut life) = lived(PoolBuilder::new("halfway").mirror(&images[0..2]), "halfway");
    change(&pool, Initialize, START);
    for _ in 0..3 {
        assert!(slice(&pool));
        life.steps(&pool, 5);
    }
    assert!(are(&pool, Initialize, ACTIVE));
    pool.export().unwrap();
    lives.push(("halfway", life));

    let (pool, mut life) = lived(PoolBuilder::new("filled").raidz(1, &images[2..5]), "filled");
    change(&pool, Initialize, START);
    finish(&pool, Initialize, &mut life);
    pool.export().unwrap();
    lives.push(("filled", life));

    let (pool, mut life) = lived(
        PoolBuilder::new("trimming").mirror(&images[5..7]),
        "trimming",
    );
    change(&pool, Trim, START);
    for _ in 0..2 {
        assert!(slice(&pool));
        life.steps(&pool, 5);
    }
    change(&pool, Trim, Suspend);
    assert!(are(&pool, Trim, SUSPENDED));
    pool.export().unwrap();
    lives.push(("trimming", life));

    let builder = PoolBuilder::new("trimmed").raidz(1, &images[7..10]);
    let (pool, mut life) = lived(builder, "trimmed");
    change(&pool, Trim, START);
    finish(&pool, Trim, &mut life);
    set_autotrim(&pool);
    for _ in 0..10 {
        life.steps(&pool, 10);
        pool.sync().unwrap();
        pool.inner().autotrim(&SliceLimits::default());
    }
    pool.export().unwrap();
    lives.push(("trimmed", life));

    let (pool, life) = lived(PoolBuilder::new("theirs").single(&images[10]), "theirs");
    pool.export().unwrap();
    lives.push(("theirs", life));

    let spared = DraidShape {
        parity: 1,
        data: 2,
        spares: 1,
    };
    let builder = PoolBuilder::new("halfdraid").draid(spared, &images[15..19]);
    let (pool, mut life) = lived(builder, "halfdraid");
    change(&pool, Initialize, START);
    for _ in 0..3 {
        assert!(slice(&pool));
        life.steps(&pool, 5);
    }
    pool.export().unwrap();
    lives.push(("halfdraid", life));

    let unspared = DraidShape {
        spares: 0,
        ..spared
    };
    let builder = PoolBuilder::new("fulldraid").draid(unspared, &images[19..23]);
    let (pool, mut life) = lived(builder, "fulldraid");
    change(&pool, Trim, START);
    finish(&pool, Trim, &mut life);
    set_autotrim(&pool);
    for _ in 0..10 {
        life.steps(&pool, 10);
        pool.sync().unwrap();
        pool.inner().autotrim(&SliceLimits::default());
    }
    pool.export().unwrap();
    lives.push(("fulldraid", life));

    let builder = PoolBuilder::new("deferred")
        .mirror(&images[11..13])
        .mirror(&images[13..15]);
    let (pool, life) = deferred(builder, [&images[11], &images[13]]);
    pool.export().unwrap();
    lives.push(("deferred", life));

    for (name, _) in &lives {
        rig.judge(name);
    }
    run(release, &rig);
    for (name, life) in &mut lives {
        life.compare(&rig.read(name), name);
        rig.judge(name);
        // The pool that the module left can be changed here again.
        let pool = rig.open(name);
        life.steps(&pool, 20);
        if *name == "theirs" {
            assert!(are(&pool, Initialize, SUSPENDED) && are(&pool, Trim, SUSPENDED));
            for activity in LeafActivity::ALL {
                change(&pool, activity, FAST);
                finish(&pool, activity, life);
            }
        }
        pool.export().unwrap();
        life.compare(&rig.read(name), name);
        rig.judge(name);
    }
}

fn run(release: Release, rig: &Rig) {
    let actions = [
        ["initializing", "halfway"],
        ["initialized", "filled"],
        ["trimming", "trimming"],
        ["trimmed", "trimmed"],
        ["start", "theirs"],
        ["initializing", "halfdraid"],
        ["trimmed", "fulldraid"],
        ["deferred", "deferred"],
    ];
    run_script(release, rig, "activity", None, actions.as_flattened());
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn initialized_trimmed_and_deferred_pools_are_accepted_by_2_3() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn initialized_trimmed_and_deferred_pools_are_accepted_by_2_4() {
    to_and_fro(Release::V2_4);
}
