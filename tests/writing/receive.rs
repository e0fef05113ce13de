//! Snapshots of random pools are sent, received into other pools, and equal to the model.

use crate::cloning;
use crate::rig::Rig;
use millpond_engine::{
    Pool, PoolBuilder, ReceiveOutcome, ReceiveRequest, SendFlags, SendRequest, Unwatched, View,
};
use millpond_sim::World;
use millpond_tests::oracle::zdb;
use millpond_tests::recount;
use millpond_tests::workload::{Life, content_differences, in_order};

const FROM: &str = "sent";
const TO: &str = "got";

/// Options, in turn for each stream. A dataset keeps large blocks once it has them.
const FLAGS: [SendFlags; 3] = [
    SendFlags {
        large_blocks: true,
        embedded: false,
        compressed: false,
        raw: false,
    },
    SendFlags {
        large_blocks: true,
        embedded: true,
        compressed: true,
        raw: false,
    },
    SendFlags {
        large_blocks: true,
        embedded: true,
        compressed: false,
        raw: false,
    },
];

/// The name of a dataset below the pool that receives it. After a promotion a parent may be a clone of its child, so all
/// are side by side there.
fn flat(name: &str) -> String {
    format!("{TO}/{}", name.replace('/', "-"))
}

pub(crate) fn sent(pool: &Pool, name: &str, from: Option<&str>, flags: SendFlags) -> Vec<u8> {
    let request = SendRequest {
        name: name.to_owned(),
        from: from.map(str::to_owned),
        has_between: false,
        flags,
        ..SendRequest::default()
    };
    let mut bytes = vec![];
    pool.send(&request, &mut bytes).unwrap();
    bytes
}

pub(crate) fn receive(pool: &Pool, name: &str, bytes: &[u8]) -> ReceiveOutcome {
    let request = ReceiveRequest {
        name: name.to_owned(),
        ..ReceiveRequest::default()
    };
    pool.receive(&request, bytes, &mut Unwatched)
}

/// Receives a stream, which must succeed.
pub(crate) fn received(pool: &Pool, name: &str, bytes: &[u8]) {
    let outcome = receive(pool, name, bytes);
    assert_eq!(outcome.failure, None, "{name}");
}

/// Exports the pool, and has it judged.
pub(crate) fn finish(world: &World, pool: Pool, what: &str) {
    for _ in 0..3 {
        pool.sync().unwrap();
    }
    pool.export().unwrap();
    cloning::judged(world);
    cloning::judged_by_zdb(world, what);
}

fn judged(view: &View, life: &Life) {
    for (head, state) in &life.model.heads {
        for snapshot in &state.snapshots {
            let name = format!("{}@{}", flat(head), snapshot.name);
            let differences = content_differences(view, &name, &snapshot.content);
            assert!(differences.is_empty(), "{}", differences.join("\n"));
        }
    }
}

fn random(seed: u64, rounds: usize, steps: usize) {
    let (rig, other) = (Rig::new(1, 512), Rig::new(1, 768));
    let pool = rig.stripe(FROM).create().unwrap();
    let target = PoolBuilder::new(TO)
        .single(&other.images[0])
        .create()
        .unwrap();
    let mut life = Life::new(FROM, "received", seed);
    life.steps(&pool, 60);
    let mut done = std::collections::BTreeSet::new();
    for round in 0..rounds {
        life.steps(&pool, steps);
        let heads: Vec<String> = life.model.heads.keys().cloned().collect();
        for head in heads {
            life.snapshot(&pool, &head).unwrap();
        }
        // What was received before may be renamed or destroyed at the sender. Then it is sent once more.
        if round + 1 < rounds {
            continue;
        }
        for (number, one) in in_order(&life).into_iter().enumerate() {
            let flags = FLAGS[number % FLAGS.len()];
            let bytes = sent(&pool, &one.name, one.from.as_deref(), flags);
            let head = one.name.split('@').next().unwrap();
            received(&target, &flat(head), &bytes);
            done.insert(one.name);
        }
    }
    assert!(done.len() > rounds, "{} streams", done.len());
    judged(&target.committed().unwrap(), &life);
    target.export().unwrap();
    let view = other.read(TO);
    judged(&view, &life);
    let faults = recount::faults_of(view.inner());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    drop(view);
    zdb::judge(other.folder(), TO).unwrap().require("received");
}

#[test]
fn random_snapshots_are_received_as_the_model_has_them() {
    for seed in [1, 2, 3] {
        random(seed, 4, 40);
    }
}

#[test]
#[ignore = "minutes; more seeds of the same"]
fn many_random_snapshots_are_received_as_the_model_has_them() {
    for seed in 10..40 {
        random(seed, 5, 60);
    }
}
