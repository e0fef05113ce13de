//! What receives do with what is there already.

use crate::cloning::{content, judged_by_zdb, make, node, pool_on};
use crate::receive::{finish, received, sent};
use crate::receive_cuts::{change, state_of};
use crate::sim;
use millpond_engine::{
    Caller, NewLayout::Single, Pool, PropertyValue, ReceiveProblem, ReceiveRequest, SendFlags,
    Unwatched, WriteAt,
};
use millpond_ondisk::{ByteswapClass, Endian, ObjectType};
use millpond_sim::{World, noise};
use millpond_stream::{
    Begin, BeginFlags, FreeObjects, ObjectRecord, Record, RecordFlags, Spill, StreamFeatures,
    StreamReader, StreamWriter, Write,
};

pub(crate) const PLAIN: SendFlags = SendFlags {
    large_blocks: false,
    embedded: false,
    compressed: false,
    raw: false,
};
pub(crate) const LARGE: SendFlags = SendFlags {
    large_blocks: true,
    ..PLAIN
};

fn forced(pool: &Pool, name: &str, bytes: &[u8]) -> Option<ReceiveProblem> {
    let request = ReceiveRequest {
        name: name.to_owned(),
        is_forced: true,
        ..ReceiveRequest::default()
    };
    let outcome = pool.receive(&request, bytes, &mut Unwatched);
    outcome.failure.map(|failure| failure.problem)
}

fn problem(pool: &Pool, name: &str, bytes: &[u8]) -> Option<ReceiveProblem> {
    let outcome = crate::receive::receive(pool, name, bytes);
    outcome.failure.map(|failure| failure.problem)
}

fn world() -> (World, Pool, Vec<u8>) {
    let world = World::without_journal(81);
    let pool = pool_on(&world, &[(Single, 1)]);
    change(&pool);
    received(&pool, "tank/got", &sent(&pool, "tank/a@1", None, PLAIN));
    let more = sent(&pool, "tank/a@2", Some("tank/a@1"), PLAIN);
    (world, pool, more)
}

fn write(pool: &Pool, name: &str, file: &str) {
    let files = pool.file_system(name).unwrap();
    make(&files, file, &content(9));
}

pub(crate) fn files_of(pool: &Pool, name: &str) -> Vec<(String, Vec<u8>)> {
    let state = state_of(&pool.committed().unwrap(), name).unwrap();
    let own = format!("{name}/");
    let files = state.into_iter().filter_map(|(key, bytes)| {
        let file = key.strip_prefix(&own)?.to_owned();
        Some((file, bytes))
    });
    files.collect()
}

#[test]
fn changes_and_later_snapshots_are_given_up_with_force_only() {
    let (world, pool, more) = world();
    let datasets = pool.datasets();
    // A snapshot alone is no change.
    datasets.snapshot(&["tank/got@same"], &[]).unwrap();
    received(&pool, "tank/got", &more);
    let names = |pool: &Pool| -> Vec<String> {
        let view = pool.committed().unwrap();
        let snapshots = view.dataset("tank/got").unwrap().snapshots().unwrap();
        snapshots
            .iter()
            .map(|one| one.inner().snapshot_name().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&pool), ["1", "same", "2"]);
    assert!(files_of(&pool, "tank/got") == files_of(&pool, "tank/a"));
    datasets.destroy("tank/got@2", Default::default()).unwrap();
    datasets.rollback("tank/got@same").unwrap();
    write(&pool, "tank/got", "own");
    datasets.snapshot(&["tank/got@own"], &[]).unwrap();
    write(&pool, "tank/got", "more");
    pool.sync().unwrap();
    let before = state_of(&pool.committed().unwrap(), "tank/got");
    let modified = Some(ReceiveProblem::Modified("tank/got".into()));
    assert_eq!(problem(&pool, "tank/got", &more), modified);
    datasets.hold(&["tank/got@own"], "keep").unwrap();
    assert!(matches!(
        forced(&pool, "tank/got", &more),
        Some(ReceiveProblem::Failed(_))
    ));
    assert!(state_of(&pool.committed().unwrap(), "tank/got") == before);
    datasets.release(&["tank/got@own"], "keep").unwrap();
    assert_eq!(forced(&pool, "tank/got", &more), None);
    assert_eq!(names(&pool), ["1", "2"]);
    assert!(files_of(&pool, "tank/got") == files_of(&pool, "tank/a"));
    // It can be changed.
    write(&pool, "tank/got", "later");
    finish(&world, pool, "received");
}

#[test]
fn a_full_stream_replaces_a_file_system_without_snapshots() {
    let (world, pool, _) = world();
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/other", &[]).unwrap();
    write(&pool, "tank/other", "own");
    let full = sent(&pool, "tank/a@2", None, PLAIN);
    let exists = Some(ReceiveProblem::Exists("tank/other".into()));
    assert_eq!(problem(&pool, "tank/other", &full), exists);
    assert_eq!(forced(&pool, "tank/other", &full), None);
    assert!(files_of(&pool, "tank/other") == files_of(&pool, "tank/a"));
    assert!(matches!(
        forced(&pool, "tank/other", &full),
        Some(ReceiveProblem::HasSnapshots(..))
    ));
    finish(&world, pool, "received");
}

#[test]
fn a_refquota_may_be_exceeded_a_little_and_a_quota_leaves_the_state_before() {
    let (world, pool, more) = world();
    let before = state_of(&pool.committed().unwrap(), "tank/got");
    let referenced = {
        let view = pool.committed().unwrap();
        let got = view.dataset("tank/got").unwrap();
        got.inner().phys().referenced_bytes
    };
    let limit = |name: &str, bytes| {
        let value = PropertyValue::Number(bytes);
        let set = (pool.datasets()).set_properties("tank/got", &[(name.to_owned(), value)]);
        set.unwrap();
    };
    limit("quota", referenced + 4096);
    let over = Some(ReceiveProblem::OverQuota("tank/got".into()));
    assert_eq!(problem(&pool, "tank/got", &more), over);
    assert!(state_of(&pool.committed().unwrap(), "tank/got") == before);
    limit("quota", 0);
    limit("refquota", referenced + 4096);
    received(&pool, "tank/got", &more);
    finish(&world, pool, "received");
}

#[test]
fn a_dataset_in_use_is_not_replaced() {
    let (world, pool, more) = world();
    let files = pool.file_system("tank/got").unwrap();
    let busy = Some(ReceiveProblem::Busy("tank/got".into()));
    assert_eq!(problem(&pool, "tank/got", &more), busy);
    drop(files);
    received(&pool, "tank/got", &more);
    finish(&world, pool, "received");
}

#[test]
fn large_blocks_go_on_in_files_that_were_split() {
    let world = World::without_journal(82);
    let pool = pool_on(&world, &[(Single, 1)]);
    let large = ("recordsize".to_owned(), PropertyValue::Number(1 << 20));
    pool.datasets()
        .create_filesystem("tank/l", &[large])
        .unwrap();
    let files = pool.file_system("tank/l").unwrap();
    make(&files, "f", &noise(1, 4 << 20));
    make(&files, "g", &noise(2, 3 << 20));
    pool.datasets().snapshot(&["tank/l@1"], &[]).unwrap();
    let change = noise(3, 300_000);
    let at = WriteAt::Offset(1_500_000);
    files
        .write(&Caller::root(), &node(&files, "f"), at, &change)
        .unwrap();
    make(&files, "h", &noise(4, 2 << 20));
    drop(files);
    pool.datasets().snapshot(&["tank/l@2"], &[]).unwrap();
    // Split first, whole then: blocks that were not sent again keep their size.
    received(&pool, "tank/split", &sent(&pool, "tank/l@1", None, PLAIN));
    received(
        &pool,
        "tank/split",
        &sent(&pool, "tank/l@2", Some("tank/l@1"), LARGE),
    );
    assert!(files_of(&pool, "tank/split") == files_of(&pool, "tank/l"));
    // Whole first: a stream that splits them is refused.
    received(&pool, "tank/whole", &sent(&pool, "tank/l@1", None, LARGE));
    let small = sent(&pool, "tank/l@2", Some("tank/l@1"), PLAIN);
    let needed = Some(ReceiveProblem::NeedsLargeBlocks);
    assert_eq!(problem(&pool, "tank/whole", &small), needed);
    finish(&world, pool, "received");
}

/// A stream that is made record by record.
struct Made {
    stream: StreamWriter<Vec<u8>>,
    guid: u64,
}

impl Made {
    fn begin(guid: u64, from: u64) -> Self {
        let mut stream = StreamWriter::new(vec![]);
        let begin = Begin {
            features: StreamFeatures::SPILL | StreamFeatures::LARGE_DNODE,
            creation_s: 77,
            // Nothing reads the objects as files.
            object_set_type: 3,
            flags: BeginFlags::FREE_RECORDS | BeginFlags::SPILL_BLOCKS,
            to_guid: guid,
            from_guid: from,
            to_name: format!("other/fs@{guid}").into_bytes(),
            ..Begin::default()
        };
        stream.begin(begin, &[]).unwrap();
        Self { stream, guid }
    }
    fn object(
        &mut self,
        object: u64,
        slots: u8,
        block_bytes: u32,
        bonus: u32,
        flags: u8,
    ) -> &mut Self {
        let record = ObjectRecord {
            object,
            object_type: ObjectType::OTHER_U64.0.into(),
            bonus_type: match bonus {
                0 => 0,
                // Only dnodes with one pointer have room for a spill block.
                8 => ObjectType::SA.0.into(),
                _ => ObjectType::OTHER_U64.0.into(),
            },
            block_bytes,
            bonus_bytes: bonus,
            slots,
            flags,
            to_guid: self.guid,
            ..ObjectRecord::default()
        };
        let payload = vec![object as u8; bonus.next_multiple_of(8) as usize];
        self.stream
            .record(&Record::Object(record), &payload)
            .unwrap();
        self
    }
    fn write(&mut self, object: u64, offset: u64, bytes: &[u8]) -> &mut Self {
        let record = Write {
            object,
            object_type: ObjectType::OTHER_U64.0.into(),
            offset,
            logical_bytes: bytes.len() as u64,
            to_guid: self.guid,
            ..Write::default()
        };
        self.stream.record(&Record::Write(record), bytes).unwrap();
        self
    }
    fn spill(&mut self, object: u64, bytes: &[u8], flags: u8) -> &mut Self {
        let record = Spill {
            object,
            length: bytes.len() as u64,
            flags,
            to_guid: self.guid,
            ..Spill::default()
        };
        self.stream.record(&Record::Spill(record), bytes).unwrap();
        self
    }
    fn free_objects(&mut self, first: u64, count: u64) -> &mut Self {
        let to_guid = self.guid;
        let record = FreeObjects {
            first,
            count,
            to_guid,
        };
        self.stream
            .record(&Record::FreeObjects(record), &[])
            .unwrap();
        self
    }
    fn end(&mut self) -> Vec<u8> {
        self.stream.end(self.guid).unwrap();
        std::mem::replace(&mut self.stream, StreamWriter::new(vec![])).output()
    }
}

#[test]
fn objects_change_their_slots_their_blocks_and_their_spill_blocks() {
    let world = World::without_journal(83);
    let pool = pool_on(&world, &[(Single, 1)]);
    let mut first = Made::begin(100, 0);
    for object in 1..12 {
        first.object(object, 1, 1024, 16, 0);
        for block in 0..5 {
            first.write(object, block * 1024, &noise(object * 100 + block, 1024));
        }
    }
    let has_spill = RecordFlags::OBJECT_SPILL;
    first
        .object(12, 1, 512, 8, has_spill)
        .spill(12, &noise(1, 1024), 0);
    first
        .object(13, 1, 512, 8, has_spill)
        .spill(13, &noise(2, 1024), 0);
    first.object(14, 1, 512, 8, 0).free_objects(15, 17);
    received(&pool, "tank/made", &first.end());

    let mut second = Made::begin(200, 100);
    // It takes the slots of 3, 4 and 5.
    second
        .object(2, 4, 1024, 900, 0)
        .write(2, 0, &noise(1, 1024));
    // Other blocks: everything of it comes again.
    second
        .object(6, 1, 4096, 16, 0)
        .write(6, 0, &noise(2, 4096));
    // Its bonus area leaves room for one pointer only.
    second
        .object(7, 1, 1024, 300, 0)
        .write(7, 1024, &noise(3, 1024));
    second.free_objects(8, 1);
    second
        .object(9, 1, 1024, 16, 0)
        .write(9, 3072, &noise(4, 1024));
    second.object(12, 1, 512, 8, 0);
    let unmodified = RecordFlags::SPILL_UNMODIFIED;
    second
        .object(13, 1, 512, 8, has_spill)
        .spill(13, &noise(3, 1024), unmodified);
    second
        .object(14, 1, 512, 8, has_spill)
        .spill(14, &noise(4, 512), 0);
    received(&pool, "tank/made", &second.end());

    let mut third = Made::begin(300, 200);
    // And gives them back.
    third.object(2, 1, 1024, 16, 0).write(2, 0, &noise(9, 1024));
    third
        .object(3, 1, 512, 0, 0)
        .object(4, 1, 512, 0, 0)
        .free_objects(5, 1);
    received(&pool, "tank/made", &third.end());

    let view = pool.committed().unwrap();
    let of = |number: u64| {
        let name = format!("tank/made@{number}");
        view.dataset(&name)
            .unwrap()
            .inner()
            .object_set(None)
            .unwrap()
    };
    let read = |number: u64, object: u64, block: u64, length: usize| {
        let mut bytes = vec![0; length];
        let object = of(number)
            .object(millpond_ondisk::ObjectId(object))
            .unwrap();
        object.read(block * length as u64, &mut bytes).unwrap();
        bytes
    };
    let exists =
        |number: u64, object: u64| of(number).object(millpond_ondisk::ObjectId(object)).is_ok();
    assert!(read(100, 4, 3, 1024) == noise(403, 1024));
    assert!(read(200, 2, 0, 1024) == noise(1, 1024));
    assert!(
        read(200, 2, 1, 1024) == vec![0; 1024],
        "the old blocks are gone"
    );
    assert!([3, 4, 5, 8].iter().all(|object| !exists(200, *object)));
    assert!(read(200, 6, 0, 4096) == noise(2, 4096));
    assert!(read(200, 6, 1, 4096) == vec![0; 4096]);
    assert!(read(200, 7, 0, 1024) == vec![0; 1024]);
    assert!(
        read(200, 9, 0, 1024) == noise(900, 1024),
        "the other blocks stay"
    );
    assert!(read(200, 9, 3, 1024) == noise(4, 1024));
    let spill = |number: u64, object: u64| {
        let object = of(number)
            .object(millpond_ondisk::ObjectId(object))
            .unwrap();
        object
            .read_spill()
            .unwrap()
            .map(|block| block.bytes.to_vec())
    };
    assert_eq!(spill(100, 12), Some(noise(1, 1024)));
    assert_eq!(spill(200, 12), None);
    assert_eq!(spill(200, 13), Some(noise(2, 1024)), "it was not modified");
    assert_eq!(spill(200, 14), Some(noise(4, 512)));
    assert!(exists(300, 3) && exists(300, 4) && !exists(300, 5));
    assert!(read(300, 2, 0, 1024) == noise(9, 1024));
    drop(view);
    pool.sync().unwrap();
    pool.export().unwrap();
    let faults = millpond_tests::recount::faults_after_a_cut(&sim::read(&world).unwrap());
    // There is no volume in these objects.
    let faults: Vec<_> = faults
        .iter()
        .filter(|fault| !fault.starts_with("missing-object: tank/made"))
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    judged_by_zdb(&world, "made");
}

/// Turns the fields of a record's header round: their offsets and lengths.
fn turn_header(header: &mut [u8], kind: u32) {
    let mut turn = |at: usize, length: usize| header[at..at + length].reverse();
    turn(0, 4);
    turn(4, 4);
    let fields: &[(usize, usize)] = match kind {
        0 => &[(8, 8), (16, 8), (24, 8), (32, 4), (36, 4), (40, 8), (48, 8)],
        1 => &[
            (8, 8),
            (16, 4),
            (20, 4),
            (24, 4),
            (28, 4),
            (36, 4),
            (40, 8),
            (56, 8),
        ],
        2 => &[(8, 8), (16, 8), (24, 8)],
        3 => &[
            (8, 8),
            (16, 4),
            (24, 8),
            (32, 8),
            (40, 8),
            (56, 8),
            (64, 8),
            (72, 8),
            (80, 8),
            (88, 8),
            (96, 8),
        ],
        4 | 10 => &[(8, 8), (16, 8), (24, 8), (32, 8)],
        5 => &[(40, 8)],
        7 => &[(8, 8), (16, 8), (24, 8), (40, 8), (84, 4)],
        8 => &[(8, 8), (16, 8), (24, 8), (32, 8), (48, 4), (52, 4)],
        other => panic!("record {other}"),
    };
    fields.iter().for_each(|(at, length)| turn(*at, *length));
}

/// Turns a block of a ZAP round.
fn turn_zap(bytes: &mut [u8]) {
    let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    if first == 0x8000_0000_0000_0003 {
        bytes[..64].chunks_mut(8).for_each(<[u8]>::reverse);
        for entry in bytes.chunks_mut(64).skip(1) {
            entry[..8].reverse();
            entry[8..12].reverse();
        }
    } else if first == 0x8000_0000_0000_0000 {
        for (at, length) in [(0, 8), (16, 8), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)] {
            bytes[at..at + length].reverse();
        }
        let chunks = 48 + bytes.len() / 16;
        bytes[48..chunks].chunks_mut(2).for_each(<[u8]>::reverse);
        for chunk in bytes[chunks..].chunks_exact_mut(24) {
            match chunk[0] {
                252 => {
                    for (at, length) in [(2, 2), (4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 8)]
                    {
                        chunk[at..at + length].reverse();
                    }
                }
                _ => chunk[22..24].reverse(),
            }
        }
    } else {
        bytes.chunks_mut(8).for_each(<[u8]>::reverse);
    }
}

/// The stream as a big-endian machine would have sent it.
fn turned(stream: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = vec![];
    let mut sum = millpond_checksum::Fletcher4::new();
    let mut reader = StreamReader::new(stream);
    while let Some(taken) = reader.take().unwrap() {
        let at = taken.at as usize;
        let mut header = stream[at..at + 312].to_vec();
        let kind = u32::from_le_bytes(header[..4].try_into().unwrap());
        turn_header(&mut header, kind);
        let mut payload = taken.payload.clone();
        if let Record::Write(write) = &taken.record {
            match ObjectType(write.object_type as u8).byteswap() {
                Some(ByteswapClass::Zap) => turn_zap(&mut payload),
                Some(ByteswapClass::U64) => payload.chunks_mut(8).for_each(<[u8]>::reverse),
                _ => {}
            }
        }
        let words = |sum: &millpond_checksum::Fletcher4| -> Vec<u8> {
            sum.words()
                .iter()
                .flat_map(|word| word.to_be_bytes())
                .collect()
        };
        if kind == 5 {
            header[8..40].copy_from_slice(&words(&sum));
        }
        sum.update(&header[..280], Endian::Big).unwrap();
        if kind != 0 {
            header[280..].copy_from_slice(&words(&sum));
        }
        sum.update(&header[280..], Endian::Big).unwrap();
        sum.update(&payload, Endian::Big).unwrap();
        out.extend(header);
        out.extend(payload);
    }
    out
}

#[test]
fn streams_of_big_endian_machines_are_received() {
    let world = World::without_journal(84);
    let pool = pool_on(&world, &[(Single, 1)]);
    let files = pool.file_system("tank/a").unwrap();
    // Many names, so that the directory has leaves.
    for number in 0..300 {
        make(
            &files,
            &format!("a rather long name of a file {number}"),
            &noise(number, 700),
        );
    }
    drop(files);
    change(&pool);
    received(
        &pool,
        "tank/big",
        &turned(&sent(&pool, "tank/a@1", None, PLAIN)),
    );
    let more = sent(&pool, "tank/a@2", Some("tank/a@1"), PLAIN);
    received(&pool, "tank/big", &turned(&more));
    assert!(files_of(&pool, "tank/big") == files_of(&pool, "tank/a"));
    assert!(files_of(&pool, "tank/big").len() > 300);
    // And it is little-endian here: the stream of it differs in the name alone.
    assert_eq!(
        sent(&pool, "tank/big@2", Some("tank/big@1"), PLAIN).len(),
        more.len()
    );
    finish(&world, pool, "received");
    let pool = sim::open(&world).unwrap();
    write(&pool, "tank/big", "later");
}
