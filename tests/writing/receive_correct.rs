//! Corrective receives: damaged blocks of a snapshot are repaired with its stream.

use crate::cloning::{bytes_of, make, node, pool_on};
use crate::cloning_scans::spoil;
use crate::encryption::{KEY, prose, root, unlock};
use crate::receive::{finish, sent};
use crate::receive_raw::RAW;
use crate::sim;
use millpond_device::Device;
use millpond_engine::{
    NewLayout::{Mirror, Raidz, Single},
    Pool, PropertyValue, ReceiveOutcome, ReceiveProblem, ReceiveRequest, ReceiveStep, SendFlags,
    Unwatched,
};
use millpond_env::mark;
use millpond_ondisk::{BlockId, Level, VDEV_DATA_START_BYTES};
use millpond_sim::{World, noise};

const RECORD: usize = 64 << 10;
const BLOCKS: usize = 12;
const LOST: [u64; 3] = [1, 4, 11];
const PLAIN: SendFlags = SendFlags {
    large_blocks: false,
    embedded: false,
    compressed: false,
    raw: false,
};
const COMPRESSED: SendFlags = SendFlags {
    compressed: true,
    ..PLAIN
};

fn correct(pool: &Pool, name: &str, bytes: &[u8], is_dry: bool) -> ReceiveOutcome {
    let request = ReceiveRequest {
        name: name.to_owned(),
        is_corrective: true,
        is_dry,
        ..ReceiveRequest::default()
    };
    pool.receive(&request, bytes, &mut Unwatched)
}

/// How many blocks were repaired, and why not more.
fn repaired(outcome: &ReceiveOutcome) -> (u64, Option<ReceiveProblem>) {
    let blocks = outcome.steps.iter().map(|step| match step {
        ReceiveStep::Repaired { blocks, .. } => *blocks,
        _ => 0,
    });
    let problem = outcome
        .failure
        .as_ref()
        .map(|failure| failure.problem.clone());
    (blocks.sum(), problem)
}

/// Writes the file `file` of `tank/x`, takes the snapshot `1`, changes what comes after it.
fn written(pool: &Pool, content: &[u8]) {
    let files = pool.file_system("tank/x").unwrap();
    make(&files, "file", content);
    pool.sync().unwrap();
    pool.datasets().snapshot(&["tank/x@1"], &[]).unwrap();
    make(&files, "later", &noise(5, 3 * RECORD));
    pool.sync().unwrap();
}

/// Overwrites some blocks of the file on every disk. Their content does not matter.
fn damage(world: &World, pool: Pool) {
    let pointers: Vec<_> = {
        let committed = pool.committed().unwrap();
        let files = committed.dataset("tank/x").unwrap().file_system().unwrap();
        let file = node(&files, "file");
        let object = file.object().committed().unwrap();
        LOST.map(|block| object.pointer(Level(0), BlockId(block)).unwrap())
            .into()
    };
    pool.export().unwrap();
    for disk in world.disks() {
        for dva in pointers.iter().flat_map(|pointer| pointer.dvas()) {
            let at = VDEV_DATA_START_BYTES + dva.offset_bytes;
            disk.write(at, &noise(at, 512)).unwrap();
        }
    }
}

fn reads(pool: &Pool, is_locked: bool) -> Option<Vec<u8>> {
    if is_locked {
        unlock(pool, "tank/x", KEY);
    }
    let view = pool.committed().unwrap();
    let files = view.dataset("tank/x@1").unwrap().file_system().unwrap();
    let file = node(&files, "file");
    let mut bytes = vec![0; file.size_bytes() as usize];
    let mut done = 0;
    while done < bytes.len() {
        done += file.read(done as u64, &mut bytes[done..]).ok()?;
    }
    Some(bytes)
}

#[test]
fn blocks_are_repaired_however_they_are_stored() {
    let _mark = mark::expect("lost-block-replaced");
    let cases = [
        (Single, 1, "off", "off", PLAIN),
        (Mirror, 2, "lz4", "off", PLAIN),
        (Single, 1, "lz4", "off", COMPRESSED),
        (Single, 1, "gzip-7", "off", COMPRESSED),
        (Single, 1, "zstd-9", "off", PLAIN),
        (Single, 1, "lz4", "aes-256-gcm", PLAIN),
        (Single, 1, "off", "aes-128-ccm", PLAIN),
        (Mirror, 2, "zstd", "aes-256-gcm", RAW),
    ];
    for (layout, disks, compression, suite, flags) in cases {
        let what = format!("{compression}, {suite}, {flags:?}");
        let world = World::without_journal(91);
        let pool = pool_on(&world, &[(layout, disks)]);
        let is_encrypted = suite != "off";
        match is_encrypted {
            true => root(&world, &pool, "tank/x", suite, &[]),
            false => pool.datasets().create_filesystem("tank/x", &[]).unwrap(),
        };
        let properties = [
            (
                "compression".to_owned(),
                PropertyValue::Text(compression.to_owned()),
            ),
            (
                "recordsize".to_owned(),
                PropertyValue::Number(RECORD as u64),
            ),
        ];
        pool.datasets()
            .set_properties("tank/x", &properties)
            .unwrap();
        let content = prose(7, BLOCKS * RECORD);
        written(&pool, &content);
        let stream = sent(&pool, "tank/x@1", None, flags);
        damage(&world, pool);

        let pool = sim::open(&world).unwrap();
        assert_eq!(reads(&pool, is_encrypted), None, "{what}");
        let tried = correct(&pool, "tank/x@1", &stream, true);
        assert_eq!(repaired(&tried), (0, None), "{what}");
        assert_eq!(reads(&pool, false), None, "{what}");
        let outcome = correct(&pool, "tank/x@1", &stream, false);
        assert_eq!(repaired(&outcome), (LOST.len() as u64, None), "{what}");
        assert!(reads(&pool, false).as_deref() == Some(&content), "{what}");
        let again = correct(&pool, "tank/x", &stream, false);
        assert_eq!(repaired(&again), (0, None), "{what}");
        drop(pool);
        // Nothing but these blocks changed, and they are durable.
        let pool = sim::open(&world).unwrap();
        assert!(
            reads(&pool, is_encrypted).as_deref() == Some(&content),
            "{what}"
        );
        finish(&world, pool, &what);
    }
}

#[test]
fn all_columns_and_parity_of_a_block_are_repaired() {
    let world = World::without_journal(92);
    let pool = pool_on(&world, &[(Raidz(1), 3)]);
    let record = (
        "recordsize".to_owned(),
        PropertyValue::Number(RECORD as u64),
    );
    pool.datasets().create_filesystem("tank/x", &[]).unwrap();
    pool.datasets().set_properties("tank/x", &[record]).unwrap();
    let content = noise(8, BLOCKS * RECORD);
    written(&pool, &content);
    let stream = sent(&pool, "tank/x@1", None, PLAIN);
    pool.export().unwrap();
    // Two columns of three.
    for half in [0, RECORD / 2] {
        spoil(&world, &content[2 * RECORD + half..]);
    }
    let pool = sim::open(&world).unwrap();
    assert_eq!(reads(&pool, false), None);
    let outcome = correct(&pool, "tank/x@1", &stream, false);
    assert_eq!(repaired(&outcome), (1, None));
    assert!(reads(&pool, false).as_deref() == Some(&content));
    finish(&world, pool, "columns");
}

#[test]
fn what_is_not_the_snapshot_of_the_stream_is_refused() {
    let world = World::without_journal(93);
    let pool = pool_on(&world, &[(Single, 1)]);
    root(&world, &pool, "tank/x", "aes-256-gcm", &[]);
    written(&pool, &noise(9, BLOCKS * RECORD));
    pool.datasets().snapshot(&["tank/x@2"], &[]).unwrap();
    let stream = sent(&pool, "tank/x@1", None, PLAIN);
    let missing = ReceiveProblem::NoSnapshotToRepair("tank/x@3".into());
    for (name, problem) in [
        ("tank/x@2", ReceiveProblem::OtherSnapshot),
        ("tank/x@3", missing),
        (
            "tank/y@1",
            ReceiveProblem::NoSnapshotToRepair("tank/y@1".into()),
        ),
    ] {
        let outcome = correct(&pool, name, &stream, false);
        assert_eq!(repaired(&outcome), (0, Some(problem)));
        assert!(outcome.steps.is_empty());
    }
    damage(&world, pool);
    // Without the key blocks cannot be encrypted as they were.
    let pool = sim::open(&world).unwrap();
    let lost = ReceiveProblem::NotRepaired {
        name: "tank/x@1".into(),
        blocks: LOST.len() as u64,
    };
    let outcome = correct(&pool, "tank/x@1", &stream, false);
    assert_eq!(repaired(&outcome), (0, Some(lost)));
    // A stream that ends too early repairs what it has.
    unlock(&pool, "tank/x", KEY);
    let outcome = correct(&pool, "tank/x@1", &stream[..stream.len() - 400], false);
    assert_eq!(repaired(&outcome).1, Some(ReceiveProblem::Truncated));
    let outcome = correct(&pool, "tank/x@1", &stream, false);
    assert_eq!(repaired(&outcome).1, None);
    let files = pool.committed().unwrap();
    let files = files.dataset("tank/x@1").unwrap().file_system().unwrap();
    assert!(bytes_of(&node(&files, "file")) == noise(9, BLOCKS * RECORD));
    drop(files);
    finish(&world, pool, "refused");
}
