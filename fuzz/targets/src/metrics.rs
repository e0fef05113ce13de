//! Requests to the daemon's metrics socket.

use millpond_daemon::metrics::{REQUEST_BYTES_MAX, answer};
use millpond_env::Env;
use std::io::{self, Read, Write};

/// A connection that delivers the input in pieces of the length in its first byte.
struct Connection<'a> {
    rest: &'a [u8],
    piece_bytes: usize,
    read_bytes: usize,
    told: Vec<u8>,
}

impl Read for Connection<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.piece_bytes.min(buffer.len()).min(self.rest.len());
        let (piece, rest) = self.rest.split_at(count);
        buffer[..count].copy_from_slice(piece);
        self.rest = rest;
        self.read_bytes += count;
        Ok(count)
    }
}

impl Write for Connection<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.told.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Every request is answered with one of four status lines, or the connection is closed.
///
/// Reading stops at the maximum request length plus one piece.
pub fn request(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let mut connection = Connection {
        rest,
        piece_bytes: usize::from(*first) + 1,
        read_bytes: 0,
        told: vec![],
    };
    let outcome = answer(&mut connection, &Env::real(), &|| "a 1\n".to_owned());
    assert!(connection.read_bytes <= REQUEST_BYTES_MAX + 1024);
    let told = connection.told.as_slice();
    match outcome {
        Ok(()) => {
            let lines = [
                "HTTP/1.1 200 OK\r\n",
                "HTTP/1.1 404 Not Found\r\n",
                "HTTP/1.1 405 Method Not Allowed\r\n",
                "HTTP/1.1 431 Request Header Fields Too Large\r\n",
            ];
            assert!(lines.iter().any(|line| told.starts_with(line.as_bytes())));
        }
        // The peer closed the connection before sending a request.
        Err(_) => assert!(told.is_empty()),
    }
}
