//! Receives streams of forged records.

use millpond_engine::{
    NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs, Pool, ReceiveRequest,
    SyncMode, Unwatched, WriteOptions,
};
use millpond_sim::World;
use millpond_stream::{
    Begin, BeginFlags, Free, FreeObjects, ObjectRecord, Record, Spill, StreamFeatures,
    StreamWriter, Write, WriteEmbedded,
};
use millpond_vdev::AllocationClass::Normal;
use std::cell::OnceCell;

/// Bytes of the input for each record.
const RECORD_BYTES: usize = 16;
const GUID: u64 = 77;

thread_local! {
    /// Creating a pool takes longer than receiving a stream.
    static POOL: OnceCell<Pool> = const { OnceCell::new() };
}

fn make() -> Pool {
    let world = World::without_journal(1);
    let top = NewTop {
        layout: NewLayout::Single,
        class: Normal,
        devices: vec![NewDevice::file("/sim/d0.img", world.disk(64 << 20, 512))],
    };
    let new = NewPool {
        vdev_options: NewVdevOptions {
            ashift: Some(9),
            force: true,
        },
        writing: WriteOptions {
            sync_mode: SyncMode::Caller,
            ..WriteOptions::default()
        },
        cache_bytes: Some(4 << 20),
        ..NewPool::new("fuzz", NewVdevs::of(vec![top]))
    };
    Pool::create(&world.env(), &new).expect("a pool")
}

/// A number: small ones are likely, all are possible.
fn number(bytes: [u8; 3]) -> u64 {
    let [low, high, shift] = bytes;
    u64::from(u16::from_le_bytes([low, high])).rotate_left((shift & 0x3f).into())
}

/// A record from its part of the input.
fn record(part: &[u8; RECORD_BYTES]) -> Record {
    let [kind, a, b, c, d, e, f, g, h, i, j, k, l, m, _, _] = *part;
    let object = u64::from(a & 0x3f);
    let (one, other) = (number([b, c, d]), number([e, f, g]));
    match kind % 7 {
        0 => Record::Object(ObjectRecord {
            object,
            object_type: h.into(),
            bonus_type: i.into(),
            block_bytes: one as u32,
            bonus_bytes: other as u32 & 0x1ff,
            checksum: j & 0xf,
            compression: k & 0x1f,
            slots: l & 0x1f,
            flags: m & 4,
            to_guid: GUID,
            ..ObjectRecord::default()
        }),
        1 => Record::FreeObjects(FreeObjects {
            first: one,
            count: other,
            to_guid: GUID,
        }),
        2 | 3 => Record::Write(Write {
            object,
            object_type: h.into(),
            offset: one,
            logical_bytes: other & 0x3_fe00,
            compression: if i & 1 == 0 { 0 } else { j & 0x1f },
            compressed_bytes: number([k, l, 0]) & 0xfff8,
            to_guid: GUID,
            ..Write::default()
        }),
        4 => Record::Free(Free {
            object,
            offset: one,
            length: other,
            to_guid: GUID,
        }),
        5 => Record::Spill(Spill {
            object,
            length: one & 0x3_fe00,
            flags: h & 4,
            to_guid: GUID,
            ..Spill::default()
        }),
        _ => Record::WriteEmbedded(WriteEmbedded {
            object,
            offset: one,
            length: other,
            compression: h & 0x1f,
            logical_bytes: number([i, j, 0]) as u32,
            stored_bytes: u32::from(k) % 113,
            to_guid: GUID,
            ..WriteEmbedded::default()
        }),
    }
}

/// Whatever the records say, the pool works on.
pub fn received_records(data: &[u8]) {
    let mut stream = StreamWriter::new(vec![]);
    let begin = Begin {
        features: StreamFeatures::SPILL
            | StreamFeatures::EMBEDDED
            | StreamFeatures::COMPRESSED
            | StreamFeatures::LZ4
            | StreamFeatures::LARGE_DNODE,
        object_set_type: 3,
        flags: BeginFlags::FREE_RECORDS | BeginFlags::SPILL_BLOCKS,
        to_guid: GUID,
        to_name: b"other/volume@s".to_vec(),
        ..Begin::default()
    };
    stream.begin(begin, &[]).expect("memory");
    for part in data.as_chunks::<RECORD_BYTES>().0 {
        let record = record(part);
        let length = record.payload_bytes().unwrap_or(0);
        let fill = part.iter().cycle().copied();
        let payload: Vec<u8> = fill.take(length as usize).collect();
        stream.record(&record, &payload).expect("memory");
    }
    stream.end(GUID).expect("memory");
    let stream = stream.output();
    POOL.with(|pool| {
        let pool = pool.get_or_init(make);
        let request = ReceiveRequest {
            name: "fuzz/got".to_owned(),
            ..ReceiveRequest::default()
        };
        let outcome = pool.receive(&request, &stream[..], &mut Unwatched);
        assert!(pool.inner().suspension().is_none(), "{outcome:?}");
        if outcome.failure.is_none() {
            let datasets = pool.datasets();
            let gone = datasets.destroy("fuzz/got@s", Default::default());
            gone.and_then(|()| datasets.destroy("fuzz/got", Default::default()))
                .expect("it was received");
        }
        pool.sync().expect("the pool works on");
    });
}
