//! `millpond stream dump`: the headers of a stream, its records, and how many there are.

use crate::session::{Ending, Session};
use millpond_inspect::nvlist::NvList;
use millpond_inspect::stream::{Begin, HEADER_BYTES, Record, StreamKind, StreamReader, Taken};
use std::io::Read;

/// How many records of a kind there are, and the bytes of their payloads.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    records: u64,
    payload_bytes: u64,
}

/// The kinds that the summary names, in its order.
const NAMES: [&str; 9] = [
    "BEGIN",
    "END",
    "OBJECT",
    "FREEOBJECTS",
    "WRITE",
    "WRITE_BYREF",
    "WRITE_EMBEDDED",
    "FREE",
    "SPILL",
];

const HEX_LINE: usize = 16;
const HEX_GROUP: usize = 4;
/// Of a whole line.
const HEX_WIDTH: usize = HEX_LINE * 3 + HEX_LINE / HEX_GROUP;

#[derive(Debug, Default)]
struct Counts {
    named: [Count; NAMES.len()],
    all: Count,
}

/// What is dumped.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dumped {
    /// Every record.
    pub records: bool,
    /// Its payload and checksum too.
    pub payloads: bool,
    /// Damaged records like others.
    pub unverified: bool,
}

/// Dumps a stream. Everything before the first damaged record is listed and counted.
pub fn run(session: &mut Session, input: impl Read, dumped: Dumped) -> Ending {
    let is_verbose = dumped.records || dumped.payloads;
    let mut reader = match dumped.unverified {
        true => StreamReader::without_checksums(input),
        false => StreamReader::new(input),
    };
    let mut counts = Counts::default();
    let failure = loop {
        match reader.take() {
            Ok(Some(taken)) => {
                counts.add(&taken);
                let text = match &taken.record {
                    Record::Begin(begin) => begin_text(begin, &taken.payload, is_verbose),
                    Record::End(end) => {
                        let [a, b, c, d] = end.checksum;
                        format!("END checksum = {a:x}/{b:x}/{c:x}/{d:x}\n")
                    }
                    record if is_verbose => record_text(record),
                    _ => continue,
                };
                session.out.write_all(text.as_bytes())?;
                if dumped.payloads && !matches!(taken.record, Record::Begin(_)) {
                    hexdump(session, &taken.payload)?;
                    let [a, b, c, d] = reader.stored_checksum();
                    writeln!(session.out, "    checksum = {a:x}/{b:x}/{c:x}/{d:x}")?;
                }
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    session.out.write_all(counts.text().as_bytes())?;
    match failure {
        None => Ok(0),
        Some(error) => {
            session.out.flush()?;
            writeln!(session.err, "millpond: the stream is damaged: {error}")?;
            Ok(1)
        }
    }
}

/// Bytes in lines of sixteen, in groups of four, with those that are text beside them.
fn hexdump(session: &mut Session, bytes: &[u8]) -> std::io::Result<()> {
    for line in bytes.chunks(HEX_LINE) {
        let groups = line.chunks(HEX_GROUP);
        let (mut hex, mut text) = (String::new(), vec![]);
        for group in groups {
            for byte in group {
                hex += &format!(" {byte:02x}");
            }
            hex.push(' ');
            let shown = |byte: &u8| match byte {
                b' '..=b'~' => char::from(*byte),
                _ => '.',
            };
            text.push(group.iter().map(shown).collect::<String>());
        }
        writeln!(session.out, "{hex:HEX_WIDTH$}  {}", text.join(" "))?;
    }
    Ok(())
}

impl Counts {
    fn add(&mut self, taken: &Taken) {
        let index = match &taken.record {
            Record::Begin(_) => Some(0),
            Record::End(_) => Some(1),
            Record::Object(_) => Some(2),
            Record::FreeObjects(_) => Some(3),
            Record::Write(_) => Some(4),
            Record::WriteByRef(_) => Some(5),
            Record::WriteEmbedded(_) => Some(6),
            Record::Free(_) => Some(7),
            Record::Spill(_) => Some(8),
            Record::ObjectRange(_) | Record::Redact(_) => None,
        };
        let bytes = taken.payload.len() as u64;
        let named = index.and_then(|index| self.named.get_mut(index));
        for count in named.into_iter().chain([&mut self.all]) {
            count.records += 1;
            count.payload_bytes += bytes;
        }
    }

    fn text(&self) -> String {
        let mut text = String::from("SUMMARY:\n");
        for (name, count) in NAMES.iter().zip(&self.named) {
            let (records, bytes) = (count.records, count.payload_bytes);
            text += &format!("\tTotal DRR_{name} records = {records} ({bytes} bytes)\n");
        }
        let payload = self.all.payload_bytes;
        let headers = self.all.records * HEADER_BYTES as u64;
        text += &format!("\tTotal records = {}\n", self.all.records);
        for (name, bytes) in [
            ("payload size", payload),
            ("header overhead", headers),
            ("stream length", payload + headers),
        ] {
            text += &format!("\tTotal {name} = {bytes} ({bytes:#x})\n");
        }
        text
    }
}

fn begin_text(begin: &Begin, payload: &[u8], is_verbose: bool) -> String {
    let kind = match begin.kind {
        StreamKind::Stream => 1,
        StreamKind::Package => 2,
    };
    let mut text = format!(
        "BEGIN record\n\thdrtype = {kind}\n\tfeatures = {:x}\n\tmagic = 2f5bacbac\n\tcreation_time = {:x}\n\
         \ttype = {}\n\tflags = {:#x}\n\ttoguid = {:x}\n\tfromguid = {:x}\n\ttoname = {}\n\tpayloadlen = {}\n",
        begin.features.bits(),
        begin.creation_s,
        begin.object_set_type,
        begin.flags.bits(),
        begin.to_guid,
        begin.from_guid,
        String::from_utf8_lossy(&begin.to_name),
        payload.len(),
    );
    if is_verbose {
        text.push('\n');
    }
    if !payload.is_empty() {
        text += &match NvList::decode(payload) {
            Ok(list) => list.to_tool_text(1),
            Err(error) => format!("\t(not an nvlist: {error})\n"),
        };
    }
    text
}

fn bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn record_text(record: &Record) -> String {
    match record {
        Record::Begin(_) | Record::End(_) => String::new(),
        Record::Object(object) => format!(
            "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} raw_bonuslen = {} \
             flags = {} maxblkid = {} indblkshift = {} nlevels = {} nblkptr = {}\n",
            object.object,
            object.object_type,
            object.bonus_type,
            object.block_bytes,
            object.bonus_bytes,
            object.slots,
            object.raw_bonus_bytes,
            object.flags,
            object.last_block,
            object.indirect_shift,
            object.levels,
            object.pointers,
        ),
        Record::FreeObjects(free) => {
            let (first, count) = (free.first, free.count);
            format!("FREEOBJECTS firstobj = {first} numobjs = {count}\n")
        }
        Record::Write(write) => format!(
            "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} offset = {} \
             logical_size = {} compressed_size = {} payload_size = {} props = {:x} salt = {} iv = {} mac = {}\n",
            write.object,
            write.object_type,
            write.checksum,
            write.compression,
            write.flags,
            write.offset,
            write.logical_bytes,
            write.compressed_bytes,
            payload_bytes(record),
            write.key_properties,
            bytes(&write.salt),
            bytes(&write.iv),
            bytes(&write.mac),
        ),
        Record::WriteByRef(write) => format!(
            "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} length = {} toguid = {:x} \
             refguid = {:x} refobject = {} refoffset = {}\n",
            write.object,
            write.checksum,
            write.key_properties,
            write.offset,
            write.length,
            write.to_guid,
            write.source_guid,
            write.source_object,
            write.source_offset,
        ),
        Record::Free(free) => format!(
            "FREE object = {} offset = {} length = {}\n",
            free.object,
            free.offset,
            free.length.cast_signed(),
        ),
        Record::Redact(range) => format!(
            "REDACT object = {} offset = {} length = {}\n",
            range.object, range.offset, range.length,
        ),
        Record::Spill(spill) => format!(
            "SPILL block for object = {} length = {} flags = {} compression type = {} compressed_size = {} \
             payload_size = {} salt = {} iv = {} mac = {}\n",
            spill.object,
            spill.length,
            spill.flags,
            spill.compression,
            spill.compressed_bytes,
            payload_bytes(record),
            bytes(&spill.salt),
            bytes(&spill.iv),
            bytes(&spill.mac),
        ),
        Record::WriteEmbedded(write) => format!(
            "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} lsize = {} psize = {}\n",
            write.object,
            write.offset,
            write.length,
            write.to_guid,
            write.compression,
            write.kind,
            write.logical_bytes,
            write.stored_bytes,
        ),
        Record::ObjectRange(range) => format!(
            "OBJECT_RANGE firstobj = {} numslots = {} flags = {} salt = {} iv = {} mac = {}\n",
            range.first,
            range.slots,
            range.flags,
            bytes(&range.salt),
            bytes(&range.iv),
            bytes(&range.mac),
        ),
    }
}

fn payload_bytes(record: &Record) -> u64 {
    record.payload_bytes().unwrap_or(0)
}
