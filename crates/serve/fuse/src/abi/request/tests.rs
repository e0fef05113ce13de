use super::*;
use proptest::prelude::*;

pub(crate) fn message(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let mut message = vec![];
    let length = u32::try_from(REQUEST_HEADER_BYTES + body.len()).unwrap();
    message.extend(length.to_ne_bytes());
    message.extend(opcode.to_ne_bytes());
    message.extend(7u64.to_ne_bytes());
    message.extend(node.to_ne_bytes());
    for word in [1000u32, 100, 4242, 0] {
        message.extend(word.to_ne_bytes());
    }
    message.extend(body);
    message
}

#[test]
fn a_lookup_has_a_header_and_a_name() {
    let bytes = message(opcode::LOOKUP, 34, b"notes.txt\0");
    let request = Request::decode(&bytes, 0).unwrap();
    assert_eq!((request.unique, request.node), (7, 34));
    assert_eq!((request.uid, request.gid, request.pid), (1000, 100, 4242));
    let name: &[u8] = b"notes.txt";
    assert_eq!(request.operation, Operation::Lookup { name });
    assert!(Request::decode(&message(opcode::LOOKUP, 34, b"notes"), 0).is_err());
    assert!(Request::decode(&bytes[..39], 0).is_err());
    assert!(Request::decode(&bytes[..45], 0).is_err());
    assert_eq!(Request::unique_of(&bytes[..45]), Some(7));
    assert_eq!(Request::unique_of(&bytes[..39]), None);
}

#[test]
fn extensions_at_the_end_are_no_arguments() {
    let mut bytes = message(opcode::LOOKUP, 34, b"ab\0\0\0\0\0\0");
    bytes[36..38].copy_from_slice(&1u16.to_ne_bytes());
    assert!(Request::decode(&bytes, 0).is_err());
    bytes[36..38].copy_from_slice(&2u16.to_ne_bytes());
    assert!(Request::decode(&bytes, 0).is_err());
}

#[test]
fn a_write_carries_its_data_and_no_more() {
    let mut body = vec![];
    body.extend(0u64.to_ne_bytes());
    body.extend(4096u64.to_ne_bytes());
    body.extend(3u32.to_ne_bytes());
    body.extend(4u32.to_ne_bytes());
    body.extend(0u64.to_ne_bytes());
    body.extend(0o2000u32.to_ne_bytes());
    body.extend(0u32.to_ne_bytes());
    body.extend(b"abc");
    let bytes = message(opcode::WRITE, 99, &body);
    let request = Request::decode(&bytes, 0).unwrap();
    let expected = Operation::Write {
        offset: 4096,
        write_flags: 4,
        flags: 0o2000,
        data: b"abc",
    };
    assert_eq!(request.operation, expected);
    let cut = message(opcode::WRITE, 99, &body[..body.len() - 1]);
    assert!(Request::decode(&cut, 0).is_err());
}

#[test]
fn device_numbers_have_twelve_and_twenty_bits() {
    for (major, minor) in [(8, 1), (259, 65_537), (0xfff, 0xf_ffff), (0, 0)] {
        let encoded = super::super::encode_device(major, minor);
        assert_eq!(decode_device(encoded), (major, minor));
    }
    assert_eq!(super::super::encode_device(8, 1), 0x801);
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_an_error(
        opcode in 0u32..60,
        body in proptest::collection::vec(any::<u8>(), 0..200),
        features in any::<u64>(),
        cut in 0usize..240
    ) {
        let bytes = message(opcode, 1, &body);
        let _ = Request::decode(&bytes, features);
        let _ = Request::decode(&bytes[..cut.min(bytes.len())], features);
        let _ = Request::decode(&body, features);
    }
}
