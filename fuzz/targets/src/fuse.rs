//! Requests from the kernel to a mounted file system.

use millpond_fuse::abi::slot::{
    HEAD_BYTES, PAYLOAD_AT, PAYLOAD_BYTES_AT, REPLY_AT, commit, get_u64, refuse, unpack,
};
use millpond_fuse::abi::{DATA_BYTES_MAX, REQUEST_HEADER_BYTES, Request, feature};

/// Decodes a message twice.
///
/// The first time it is unchanged. The second time its length field has the actual length, so that more of
/// it is decoded.
pub fn request(data: &[u8]) {
    let _ = Request::unique_of(data);
    let _ = Request::decode(data, 0);
    let mut whole = data.to_vec();
    let length = u32::try_from(whole.len()).unwrap_or(u32::MAX);
    if let Some(word) = whole.first_chunk_mut::<4>() {
        *word = length.to_ne_bytes();
    }
    for features in [0, feature::SETXATTR_EXT, u64::MAX] {
        if let Ok(request) = Request::decode(&whole, features) {
            assert_eq!(Some(request.unique), Request::unique_of(&whole));
        }
    }
}

/// The memory of a ring slot as filled by the kernel: the first 288 bytes, then the payload from the input.
///
/// First unchanged, then with consistent lengths, so that it contains a complete message.
pub fn slot(data: &[u8]) {
    let (head, payload) = data.split_at(data.len().min(HEAD_BYTES));
    let mut memory = vec![0; PAYLOAD_AT + payload.len()];
    memory[..head.len()].copy_from_slice(head);
    memory[PAYLOAD_AT..].copy_from_slice(payload);
    of_slot(memory.clone());
    let arguments = usize::from(memory[287]) % 129;
    let length = (REQUEST_HEADER_BYTES + arguments + payload.len()) as u32;
    memory[..4].copy_from_slice(&length.to_ne_bytes());
    memory[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4]
        .copy_from_slice(&(payload.len() as u32).to_ne_bytes());
    assert_eq!(of_slot(memory), payload.len() <= DATA_BYTES_MAX);
}

/// Whether there is a message.
///
/// A message is where it was found, has the stated length, and ends with its payload.
fn of_slot(mut memory: Vec<u8>) -> bool {
    let given = memory.clone();
    let unique = get_u64(&memory, 8).expect("a header");
    let message = unpack(&mut memory);
    if let Some(at) = &message {
        let payload = at.end - PAYLOAD_AT;
        let (arguments, length) = (PAYLOAD_AT - at.start - REQUEST_HEADER_BYTES, at.len());
        let message = &memory[at.clone()];
        assert_eq!(message[..4], (length as u32).to_ne_bytes());
        assert_eq!(
            message[..REQUEST_HEADER_BYTES],
            given[..REQUEST_HEADER_BYTES]
        );
        let whole = [
            &given[128..128 + arguments],
            &given[PAYLOAD_AT..PAYLOAD_AT + payload],
        ]
        .concat();
        assert_eq!(message[REQUEST_HEADER_BYTES..], whole);
        assert_eq!(Request::unique_of(message), Some(unique));
        let _ = Request::decode(message, feature::SETXATTR_EXT);
    } else {
        assert_eq!(memory, given);
    }
    let reply_bytes = refuse(&mut memory, unique);
    let reply = memory[REPLY_AT..PAYLOAD_AT].to_vec();
    commit(&mut memory, reply_bytes);
    assert_eq!(memory[..reply_bytes], reply);
    assert_eq!(get_u64(&memory, 8), Some(unique));
    message.is_some()
}
