//! Requests to the daemon's metrics socket.

use millpond_daemon::metrics::answer;
use std::sync::Arc;

/// Every request is answered with a status line, or the connection is closed.
///
/// The first byte is the size of the buffer through which the rest reaches the server.
pub fn request(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let page = Arc::new(|| "a 1\n".to_owned());
    let response = answer(rest, usize::from(*first) + 1, page).expect("a runtime");
    let statuses = [200, 400, 404, 405, 414, 431, 505];
    let is_known = |status: u16| response.starts_with(format!("HTTP/1.1 {status} ").as_bytes());
    // HTTP/1.0 requests get a response in their version.
    let is_old = response.starts_with(b"HTTP/1.0 ");
    assert!(response.is_empty() || is_old || statuses.into_iter().any(is_known));
}
