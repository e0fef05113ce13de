//! Receives streams of forged records.

use millpond_engine::{
    NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs, Pool, ReceiveRequest,
    SyncMode, Unwatched, WriteOptions,
};
use millpond_nvlist::NvList;
use millpond_ondisk::{CryptKey, CryptSuite, DnodeArrayShape, Guid, KeyFormat, ObjectId};
use millpond_sim::World;
use millpond_stream::{
    Begin, BeginFlags, Free, FreeObjects, ObjectRange, ObjectRecord, RawKeys, Record, Spill,
    StreamFeatures, StreamWriter, Write, WriteEmbedded,
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

/// The record of a raw stream, from the same part of the input.
fn raw_record(part: &[u8; RECORD_BYTES]) -> Record {
    let [_, _, b, c, d, _, _, _, _, _, j, k, l, m, n, o] = *part;
    match record(part) {
        Record::Object(object) => Record::Object(ObjectRecord {
            raw_bonus_bytes: match object.bonus_bytes {
                0 => 0,
                bytes => (bytes + u32::from(n)) & !7,
            },
            indirect_shift: 12 + (o & 7),
            levels: m >> 5,
            pointers: n & 3,
            last_block: number([j, k, l]),
            ..object
        }),
        Record::Write(write) => Record::Write(Write {
            compression: if j & 1 == 0 { 2 } else { j & 0x1f },
            mac: [n; 16],
            ..write
        }),
        Record::Spill(spill) => Record::Spill(Spill {
            compression: if j & 1 == 0 { 2 } else { j & 0x1f },
            compressed_bytes: number([k, l, 0]) & 0xfff8,
            ..spill
        }),
        Record::WriteEmbedded(_) => Record::ObjectRange(ObjectRange {
            first: if o & 3 == 3 {
                number([b, c, d])
            } else {
                u64::from(o & 1) * 32
            },
            slots: 32 + u64::from(n == 9),
            to_guid: GUID,
            ..ObjectRange::default()
        }),
        record => record,
    }
}

/// The list at the beginning of a raw stream.
fn raw_payload() -> Vec<u8> {
    let keys = RawKeys {
        key: CryptKey {
            suite: CryptSuite::Aes256Gcm,
            guid: Guid(5),
            version: 1,
            wrapped_master: [1; 32],
            wrapped_hmac: [2; 64],
            iv: [3; 12],
            mac: [4; 16],
            root_directory: ObjectId(0),
            reference_count: 0,
            key_format: KeyFormat::Raw,
            pbkdf2_salt: 0,
            pbkdf2_iterations: 0,
        },
        portable_mac: [5; 32],
        array: DnodeArrayShape {
            levels: 6,
            indirect_shift: 17,
            last_block: 1,
            ..DnodeArrayShape::default()
        },
        to_iv_set: 6,
        from_iv_set: 0,
    };
    let mut list = NvList::new();
    keys.put(&mut list);
    list.encode_native().expect("memory")
}

/// Whatever the records say, the pool works on. An input that ends with an `r` is a raw stream.
pub fn received_records(data: &[u8]) {
    let mut stream = StreamWriter::new(vec![]);
    let (parts, tail) = data.as_chunks::<RECORD_BYTES>();
    let is_raw = tail == b"r";
    let mut begin = Begin {
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
    let mut payload = vec![];
    if is_raw {
        begin.features.remove(StreamFeatures::EMBEDDED);
        begin.features |= StreamFeatures::RAW;
        payload = raw_payload();
    }
    stream.begin(begin, &payload).expect("memory");
    for part in parts {
        let record = match is_raw {
            true => raw_record(part),
            false => record(part),
        };
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
