//! The layout of the memory that is shared with the kernel for requests through io_uring.
//!
//! The layout of a slot's memory in bytes (`fuse_uring_req_header` of `linux/fuse.h`, interface 7.42, then
//! the payload):
//!
//! ```text
//! 0    header of the request, 40; of the reply, 16
//! 128  the request's first arguments, whose length is what the others leave of the message
//! 256  flags (8), number to commit (8), bytes of payload (4), zero (12)
//! 4096 payload: what follows the first arguments, names and data; all of the reply but its header
//! ```

use super::{DATA_BYTES_MAX, REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES};
use std::ops::Range;

const ARGUMENTS_AT: usize = 128;
const ARGUMENTS_BYTES_MAX: usize = 128;
const FLAGS_AT: usize = 256;
/// The offset of the commit number, which the kernel expects back with the reply.
pub const COMMIT_AT: usize = 264;
/// The offset of the payload length in bytes.
pub const PAYLOAD_BYTES_AT: usize = 272;
/// The size of the area before the payload that the kernel reads and writes, in bytes.
pub const HEAD_BYTES: usize = 288;
/// The offset of the payload.
pub const PAYLOAD_AT: usize = 4096;
/// The size of a slot's memory in bytes.
pub const MEMORY_BYTES: usize = PAYLOAD_AT + DATA_BYTES_MAX;
/// The offset of a reply. Its body then starts exactly at the payload.
pub const REPLY_AT: usize = PAYLOAD_AT - REPLY_HEADER_BYTES;
const EINVAL: i32 = 22;

fn get_u32(memory: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*memory.get(at..)?.first_chunk()?))
}
/// The integer at `at`, in the machine's byte order; `None` if the memory ends before it.
#[must_use]
pub fn get_u64(memory: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*memory.get(at..)?.first_chunk()?))
}

/// Moves the header and the first arguments next to the payload, so that the message is contiguous, as
/// `/dev/fuse` delivers it.
///
/// Returns the message's range. Returns `None`, and changes nothing, if the lengths are inconsistent or
/// exceed the memory.
#[must_use]
pub fn unpack(memory: &mut [u8]) -> Option<Range<usize>> {
    let length = usize::try_from(get_u32(memory, 0)?).ok()?;
    let payload = usize::try_from(get_u32(memory, PAYLOAD_BYTES_AT)?).ok()?;
    let arguments = length
        .checked_sub(REQUEST_HEADER_BYTES)?
        .checked_sub(payload)?;
    if arguments > ARGUMENTS_BYTES_MAX
        || payload > DATA_BYTES_MAX
        || memory.len() < PAYLOAD_AT + payload
    {
        return None;
    }
    let arguments_at = PAYLOAD_AT - arguments;
    let begin = arguments_at - REQUEST_HEADER_BYTES;
    memory.copy_within(0..REQUEST_HEADER_BYTES, begin);
    memory.copy_within(ARGUMENTS_AT..ARGUMENTS_AT + arguments, arguments_at);
    Some(begin..PAYLOAD_AT + payload)
}

/// Writes a reply that reports an invalid request (`EINVAL`). Returns its length.
pub fn refuse(memory: &mut [u8], unique: u64) -> usize {
    if let Some(reply) = memory.get_mut(REPLY_AT..)
        && let Some((length, rest)) = reply.split_first_chunk_mut::<4>()
        && let Some((error, rest)) = rest.split_first_chunk_mut::<4>()
        && let Some(number) = rest.first_chunk_mut::<8>()
    {
        *length = (REPLY_HEADER_BYTES as u32).to_ne_bytes();
        *error = (-EINVAL).to_ne_bytes();
        *number = unique.to_ne_bytes();
    }
    REPLY_HEADER_BYTES
}

/// Moves the header of a reply of `length` bytes from [`REPLY_AT`] to where the kernel reads it, and sets the
/// payload length.
///
/// Does nothing if the memory is too short.
pub fn commit(memory: &mut [u8], length: usize) {
    if memory.len() < PAYLOAD_AT {
        return;
    }
    memory.copy_within(REPLY_AT..PAYLOAD_AT, 0);
    let payload = u32::try_from(length.saturating_sub(REPLY_HEADER_BYTES)).unwrap_or(0);
    for (at, bytes) in [
        (FLAGS_AT, &[0; 8][..]),
        (PAYLOAD_BYTES_AT, &payload.to_ne_bytes()[..]),
    ] {
        if let Some(room) = memory.get_mut(at..).and_then(|m| m.get_mut(..bytes.len())) {
            room.copy_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot's memory with a request, laid out as the kernel does it.
    fn given(header: &[u8; 40], arguments: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut memory = vec![0xee; MEMORY_BYTES];
        let length = (40 + arguments.len() + payload.len()) as u32;
        memory[..40].copy_from_slice(header);
        memory[..4].copy_from_slice(&length.to_ne_bytes());
        memory[ARGUMENTS_AT..ARGUMENTS_AT + arguments.len()].copy_from_slice(arguments);
        memory[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4]
            .copy_from_slice(&(payload.len() as u32).to_ne_bytes());
        memory[PAYLOAD_AT..PAYLOAD_AT + payload.len()].copy_from_slice(payload);
        memory
    }

    #[test]
    fn a_request_is_contiguous_in_its_slot() {
        for (arguments, payload) in [(0, 0), (16, 0), (0, 7), (40, 4096), (128, DATA_BYTES_MAX)] {
            let arguments: Vec<u8> = (0..arguments).map(|n| n as u8 + 1).collect();
            let payload: Vec<u8> = (0..payload).map(|n| (n % 251) as u8).collect();
            let mut memory = given(&[7; 40], &arguments, &payload);
            let at = unpack(&mut memory).unwrap();
            let whole = &memory[at];
            assert_eq!(whole.len(), 40 + arguments.len() + payload.len());
            assert_eq!(whole[4..40], [7; 36]);
            assert_eq!(whole[40..40 + arguments.len()], arguments);
            assert_eq!(whole[40 + arguments.len()..], payload);
        }
    }

    #[test]
    fn lengths_that_contradict_each_other_are_no_request() {
        for (length, payload) in [
            (39u32, 0u32),
            (0, 0),
            (40, 1),
            (u32::MAX, 0),
            (40 + 129, 0),
            (40 + (1 << 20) + 1, (1 << 20) + 1),
            (u32::MAX, u32::MAX),
        ] {
            let mut memory = given(&[0; 40], &[], &[]);
            memory[..4].copy_from_slice(&length.to_ne_bytes());
            memory[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4].copy_from_slice(&payload.to_ne_bytes());
            assert_eq!(unpack(&mut memory), None, "{length} {payload}");
        }
    }

    #[test]
    fn a_reply_is_put_where_the_kernel_looks() {
        let mut memory = vec![0xee; MEMORY_BYTES];
        memory[REPLY_AT..PAYLOAD_AT].copy_from_slice(&[3; 16]);
        commit(&mut memory, 16 + 104);
        assert_eq!(memory[..16], [3; 16]);
        assert_eq!(get_u32(&memory, PAYLOAD_BYTES_AT), Some(104));
        assert_eq!(get_u64(&memory, FLAGS_AT), Some(0));
        let length = refuse(&mut memory, 77);
        commit(&mut memory, length);
        assert_eq!(get_u32(&memory, 0), Some(16));
        assert_eq!(get_u32(&memory, 4), Some((-22i32) as u32));
        assert_eq!(get_u64(&memory, 8), Some(77));
        assert_eq!(get_u32(&memory, PAYLOAD_BYTES_AT), Some(0));
    }

    #[test]
    fn a_too_short_slot_is_left_unchanged() {
        let whole = given(&[7; 40], &[1; 8], &[2; 100]);
        for length in [0, 3, 40, FLAGS_AT, PAYLOAD_AT - 1, PAYLOAD_AT + 99] {
            let mut memory = whole[..length].to_vec();
            assert_eq!(unpack(&mut memory), None, "{length}");
            assert_eq!(memory, whole[..length]);
            if length < PAYLOAD_AT {
                commit(&mut memory, 16);
                assert_eq!(memory, whole[..length]);
            }
        }
        assert!(unpack(&mut whole[..PAYLOAD_AT + 100].to_vec()).is_some());
    }
}
