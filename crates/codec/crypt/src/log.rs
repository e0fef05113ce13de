//! Intent log blocks. The chain's header and the records' headers stay plain, so that a pool without loaded
//! keys can claim its logs. The records' contents are encrypted.

use crate::CryptError;
use crate::message::Message;
use millpond_ondisk::Endian;

const STRUCTURE: &str = "intent log block";
/// Pad, next pointer, bytes used, magic, checksum.
const HEADER_BYTES: usize = 184;
const USED_OFFSET: usize = 136;
/// Authenticated part of the header: everything except the trailer.
const HEADER_AUTH_BYTES: usize = 144;
/// Offset of the MAC: the last two words of the embedded checksum.
pub(crate) const MAC_OFFSET: usize = 168;
const RECORD_HEADER_BYTES: usize = 32;
const WRITE: u64 = 9;
/// Offsets of a write record's block pointer and of its data.
const WRITE_POINTER: usize = 64;
const WRITE_DATA: usize = 192;
const CLONE_RANGE: u64 = 24;
/// Offset of a clone record's count and pointers.
const CLONE_POINTERS: usize = 64;

/// Separates the encrypted and authenticated bytes of a log block that starts with its header (`zilog2`;
/// older logs are never encrypted).
pub(crate) fn message(block: &[u8], endian: Endian) -> Result<Message, CryptError> {
    let fail = |reason, offset| CryptError::malformed(STRUCTURE, reason, offset);
    let header = block
        .get(..HEADER_BYTES)
        .ok_or(fail("shorter than its header", 0))?;
    let used = read_word(header, USED_OFFSET, endian)
        .and_then(|used| usize::try_from(used).ok())
        .filter(|used| (HEADER_BYTES..=block.len()).contains(used))
        .ok_or(fail("bytes used exceed the block", USED_OFFSET))?;
    let mut message = Message::default();
    message
        .aad
        .extend_from_slice(header.get(..HEADER_AUTH_BYTES).unwrap_or(&[]));
    let mut start = HEADER_BYTES;
    while start < used {
        let rest = block.get(start..used).unwrap_or(&[]);
        let length = read_word(rest, 8, endian)
            .and_then(|length| usize::try_from(length).ok())
            .filter(|length| *length >= RECORD_HEADER_BYTES)
            .ok_or(fail("record shorter than its header", start))?;
        let record = rest
            .get(..length)
            .ok_or(fail("record exceeds the bytes used", start))?;
        add_record(record, start, endian, &mut message)
            .ok_or(fail("record shorter than its type wants", start))?;
        start = start.saturating_add(length);
    }
    Ok(message)
}

fn add_record(record: &[u8], start: usize, endian: Endian, message: &mut Message) -> Option<()> {
    let mut authenticate = |from: usize, to: usize| -> Option<()> {
        message.aad.extend_from_slice(record.get(from..to)?);
        Some(())
    };
    let area = |from: usize, to: usize| start.saturating_add(from)..start.saturating_add(to);
    authenticate(0, RECORD_HEADER_BYTES)?;
    let end = record.len();
    match read_word(record, 0, endian)? {
        WRITE => {
            authenticate(WRITE_POINTER, WRITE_DATA)?;
            message.areas.push(area(RECORD_HEADER_BYTES, WRITE_POINTER));
            if end > WRITE_DATA {
                message.areas.push(area(WRITE_DATA, end));
            }
        }
        CLONE_RANGE => {
            authenticate(CLONE_POINTERS, end)?;
            message
                .areas
                .push(area(RECORD_HEADER_BYTES, CLONE_POINTERS));
        }
        _ => message.areas.push(area(RECORD_HEADER_BYTES, end)),
    }
    Some(())
}

fn read_word(bytes: &[u8], offset: usize, endian: Endian) -> Option<u64> {
    bytes
        .get(offset..)?
        .first_chunk::<8>()
        .map(|word| endian.u64(*word))
}
