//! Messages on the daemon's socket.

use millpond_control::Request;
use millpond_rpc::{Messages, decode_head, decode_reply, decode_request};

/// A stream of messages, decoded as requests and as replies.
///
/// A decoded message decodes to the same after encoding.
pub fn rpc(data: &[u8]) {
    let mut stream = Messages::new(data);
    let mut held = 0usize;
    while let Ok(Some(message)) = stream.read() {
        held = held.saturating_add(message.len()).saturating_add(1);
        assert!(held <= data.len(), "more was given out than came in");
        if let Ok(request) = decode_request(&message) {
            // The header decoded before the parameters agrees with the complete message.
            if let Ok(head) = decode_head(&message) {
                assert_eq!(head.rights(), Request::rights_of(request.name()));
            }
            let mut again = Messages::new(vec![]);
            if again.write(&request).is_ok() {
                let bytes = again.stream().strip_suffix(&[0]).unwrap_or_default();
                assert_eq!(decode_request(bytes).ok(), Some(request));
            }
        }
        if let Ok(reply) = decode_reply(&message) {
            let mut again = Messages::new(vec![]);
            if again.write(&reply).is_ok() {
                let bytes = again.stream().strip_suffix(&[0]).unwrap_or_default();
                assert!(decode_reply(bytes).is_ok(), "a reply of ours is not read");
            }
        }
    }
}
