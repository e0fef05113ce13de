use super::*;
use std::collections::VecDeque;

/// A mock stream: returns prepared pieces on read, and records what is written.
#[derive(Default)]
struct Pretended {
    asked: VecDeque<Vec<u8>>,
    told: Vec<u8>,
    reads: usize,
}

impl Read for Pretended {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        let piece = self.asked.pop_front().unwrap_or_default();
        let count = piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&piece[..count]);
        Ok(count)
    }
}

impl Write for Pretended {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.told.extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ask(pieces: &[&[u8]]) -> (io::Result<()>, String) {
    let mut stream = Pretended {
        asked: pieces.iter().map(|piece| piece.to_vec()).collect(),
        ..Pretended::default()
    };
    let outcome = answer(&mut stream, &Env::real(), &|| "a 1\n".into());
    (outcome, String::from_utf8(stream.told).unwrap())
}

#[test]
fn the_page_is_had_by_get_in_pieces_and_nothing_else_is() {
    let (outcome, told) = ask(&[b"GET /met", b"rics?x=1 HTTP/1.1\r\nHost: h\r", b"\n\r\n"]);
    outcome.unwrap();
    assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{told}");
    assert!(
        told.ends_with("Content-Length: 4\r\nConnection: close\r\n\r\na 1\n"),
        "{told}"
    );
    let (_, told) = ask(&[b"HEAD /metrics HTTP/1.0\n\n"]);
    assert!(told.ends_with("\r\n\r\n"), "{told}");
    let (_, told) = ask(&[b"GET / HTTP/1.1\r\n\r\n"]);
    assert!(told.starts_with("HTTP/1.1 404 "), "{told}");
    let (_, told) = ask(&[b"POST /metrics HTTP/1.1\r\n\r\n"]);
    assert!(told.starts_with("HTTP/1.1 405 "), "{told}");
    let (_, told) = ask(&[b"\xff\x00\r\n\r\n"]);
    assert!(told.starts_with("HTTP/1.1 405 "), "{told}");
}

#[test]
fn a_request_without_end_is_given_up() {
    let endless = vec![b'a'; 1000];
    let pieces: Vec<&[u8]> = (0..100).map(|_| endless.as_slice()).collect();
    let (_, told) = ask(&pieces);
    assert!(told.starts_with("HTTP/1.1 431 "), "{told}");
    let (outcome, told) = ask(&[b"GET /metrics HTTP/1.1\r\n"]);
    assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(told, "");
}

/// A clock that advances by a second at every reading.
struct Hasty(millpond_env::sync::atomic::AtomicU64);

impl millpond_env::Clock for Hasty {
    fn wall_ns(&self) -> u64 {
        self.monotonic_ns()
    }
    fn monotonic_ns(&self) -> u64 {
        let order = millpond_env::sync::atomic::Ordering::Relaxed;
        self.0.fetch_add(1_000_000_000, order)
    }
}

#[test]
fn who_sends_byte_after_byte_gets_no_more_time_for_it() {
    let env = Env {
        clock: Arc::new(Hasty(0.into())),
        ..Env::real()
    };
    let mut stream = Pretended {
        asked: (0..1000).map(|_| vec![b'G']).collect(),
        ..Pretended::default()
    };
    let outcome = answer(&mut stream, &env, &String::new);
    assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(stream.reads < 12, "{}", stream.reads);
}
