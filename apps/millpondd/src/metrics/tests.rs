use super::server::{MetricsListener, MetricsServer, PageSource, answer, serve};
use super::{CONNECTION_TIME, CONNECTIONS, HEADER_TIME, REQUEST_BYTES_MAX};
use crate::permits::ConnectionPermits;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

#[test]
fn the_cache_has_the_names_of_arcstats() {
    use millpond_control::{ArcInfo, ArcLookups};
    let lookups = |hits, io_hits, misses| ArcLookups {
        hits,
        io_hits,
        misses,
    };
    let mut page = super::page::Page::default();
    let arc = ArcInfo {
        demand_data: lookups(1, 2, 3),
        demand_metadata: lookups(10, 20, 30),
        prefetch_data: lookups(100, 200, 300),
        prefetch_metadata: lookups(1000, 2000, 3000),
        evictions: 7,
        c_max_bytes: 8,
        ..ArcInfo::default()
    };
    super::arc::add(&mut page, &arc);
    let text = page.text();
    for line in [
        "millpond_arc_hits_total 1111\n",
        "millpond_arc_iohits_total 2222\n",
        "millpond_arc_misses_total 3333\n",
        "millpond_arc_demand_data_hits_total 1\n",
        "millpond_arc_demand_metadata_iohits_total 20\n",
        "millpond_arc_prefetch_data_misses_total 300\n",
        "millpond_arc_prefetch_metadata_hits_total 1000\n",
        "millpond_arc_evictions_total 7\n",
        "millpond_arc_c_max_bytes 8\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("no_grow"), "the memory is not known");
}

fn page() -> PageSource {
    Arc::new(|| "a 1\n".to_owned())
}

fn ask(request: &[u8]) -> String {
    ask_in_pieces(request, 4096)
}

fn ask_in_pieces(request: &[u8], buffer_bytes: usize) -> String {
    String::from_utf8(answer(request, buffer_bytes, page()).unwrap()).unwrap()
}

#[test]
fn the_page_is_served_for_get_and_head_only() {
    let request = b"GET /metrics?x=1 HTTP/1.1\r\nHost: h\r\n\r\n";
    for buffer_bytes in [1, 7, 4096] {
        let response = ask_in_pieces(request, buffer_bytes);
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(response.ends_with("\r\n\r\na 1\n"), "{response}");
        let head = response.to_ascii_lowercase();
        for line in [
            "\r\ncontent-length: 4\r\n",
            "\r\nconnection: close\r\n",
            "\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n",
        ] {
            assert!(head.contains(line), "{line}: {response}");
        }
    }
    let response = ask(b"HEAD /metrics HTTP/1.0\n\n");
    assert!(response.contains(" 200 OK\r\n"), "{response}");
    assert!(response.contains("\r\ncontent-length: 4\r\n"), "{response}");
    assert!(response.ends_with("\r\n\r\n"), "{response}");
    for path in ["/", "/metrics/", "/metrics/x", "//metrics", "/%6detrics"] {
        let response = ask(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
        assert!(response.starts_with("HTTP/1.1 404 "), "{path}: {response}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "X"] {
        let response = ask(format!("{method} /metrics HTTP/1.1\r\n\r\n").as_bytes());
        assert!(
            response.starts_with("HTTP/1.1 405 "),
            "{method}: {response}"
        );
    }
}

#[test]
fn bytes_that_are_no_request_are_refused() {
    for hostile in [
        b"\xff\x00\r\n\r\n".as_slice(),
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    ] {
        let response = ask(hostile);
        assert!(
            response.starts_with("HTTP/1.1 400 "),
            "{hostile:?}: {response}"
        );
    }
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for silent in [b"".as_slice(), b"GET /metrics HTTP/1.1\r\n", http2] {
        assert_eq!(ask(silent), "", "{silent:?}");
    }
}

#[test]
fn a_request_is_read_up_to_its_limit() {
    let response = ask(&vec![b'a'; 100_000]);
    assert!(response.starts_with("HTTP/1.1 4"), "{response}");
    let long = |bytes: usize| {
        let start = "GET /metrics HTTP/1.1\r\nX: ";
        let filler = bytes - start.len() - "\r\n\r\n".len();
        ask(format!("{start}{}\r\n\r\n", "a".repeat(filler)).as_bytes())
    };
    let response = long(REQUEST_BYTES_MAX - 1);
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let response = long(REQUEST_BYTES_MAX + 1);
    assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
    // A body is not read, however long it claims to be.
    let response = ask(b"GET /metrics HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\nx");
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let response = ask(b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n");
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    // Only the first request of a connection is answered.
    let response = ask(&b"GET /metrics HTTP/1.1\r\n\r\n".repeat(5));
    assert_eq!(response.matches("HTTP/1.1").count(), 1, "{response}");
}

/// Runs `client` against a connection on a clock that jumps to the next timer when all tasks wait. Returns
/// how long the connection lived.
fn lifetime<F: Future<Output = ()> + Send + 'static>(
    text: String,
    client: impl FnOnce(tokio::io::DuplexStream) -> F,
) -> Duration {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (own, stream) = tokio::io::duplex(64);
        // No thread collects this page: the clock would not wait for it.
        let pages = axum::Router::new().route("/metrics", axum::routing::get(|| async { text }));
        let began = Instant::now();
        tokio::spawn(client(own));
        serve(stream, pages).await;
        began.elapsed()
    })
}

#[test]
fn slow_requests_do_not_extend_a_connections_deadline() {
    let taken = lifetime(String::new(), |mut stream| async move {
        while stream.write_all(b"G").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    assert!(
        taken <= HEADER_TIME + Duration::from_millis(10),
        "{taken:?}"
    );
    let taken = lifetime(String::new(), |stream| async move {
        tokio::time::sleep(Duration::from_secs(1000)).await;
        drop(stream);
    });
    assert!(
        taken <= HEADER_TIME + Duration::from_millis(10),
        "{taken:?}"
    );
}

#[test]
fn slow_reads_do_not_extend_a_connections_deadline() {
    let taken = lifetime("a 1\n".repeat(10_000), |mut stream| async move {
        let request = b"GET /metrics HTTP/1.1\r\n\r\n";
        stream.write_all(request).await.unwrap();
        while stream.read_u8().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let limit = CONNECTION_TIME;
    assert!(
        (limit..=limit + Duration::from_millis(10)).contains(&taken),
        "{taken:?}"
    );
}

/// A server on a loopback port, or `None` without a network.
fn server(page: PageSource) -> Option<(MetricsServer, SocketAddr)> {
    let listener = MetricsListener::net("127.0.0.1:0").ok()?;
    let address = listener.address().unwrap();
    Some((MetricsServer::start(vec![listener], page).unwrap(), address))
}

fn fetch(mut stream: impl Read + Write) -> String {
    let mut text = String::new();
    // A connection without a permit is closed, also in the middle of this.
    let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn connections_above_the_limit_are_closed_and_permits_return() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = MetricsListener::local(&path).unwrap();
    let own = MetricsServer::start(vec![listener], page()).unwrap();
    // The daemon's own user has all but the permits that are kept for root.
    let silent: Vec<_> = (0..CONNECTIONS.all)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    assert_eq!(fetch(UnixStream::connect(&path).unwrap()), "");
    drop(silent);
    let is_served = || fetch(UnixStream::connect(&path).unwrap()).contains(" 200 OK");
    assert!((0..1000).any(|_| is_served()));
    drop(own);
    assert!(!path.exists());

    let Some((server, address)) = server(page()) else {
        return println!("no network here: only the unix socket was tried");
    };
    let silent: Vec<_> = (0..super::NET_CONNECTIONS_MAX)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    assert_eq!(fetch(TcpStream::connect(address).unwrap()), "");
    drop(silent);
    let is_served = || fetch(TcpStream::connect(address).unwrap()).contains(" 200 OK");
    assert!((0..1000).any(|_| is_served()));
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_page_that_waits_keeps_its_permit_after_its_client_left() {
    let gate: Arc<millpond_env::sync::Mutex<_>> = Arc::new(millpond_env::sync::Mutex::new(()));
    let closed = gate.lock();
    let begun = Arc::new(AtomicUsize::new(0));
    let (waiting, counted) = (Arc::clone(&gate), Arc::clone(&begun));
    let Some((server, address)) = server(Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        drop(waiting.lock());
        "a 1\n".to_owned()
    })) else {
        return println!("no network here: nothing tried");
    };
    for _ in 0..super::NET_CONNECTIONS_MAX {
        let before = begun.load(Ordering::Relaxed);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        while begun.load(Ordering::Relaxed) == before {
            std::thread::yield_now();
        }
    }
    for _ in 0..20 {
        assert_eq!(fetch(TcpStream::connect(address).unwrap()), "");
    }
    assert_eq!(begun.load(Ordering::Relaxed), super::NET_CONNECTIONS_MAX);
    drop(closed);
    let is_served = || fetch(TcpStream::connect(address).unwrap()).contains(" 200 OK");
    assert!((0..1000).any(|_| is_served()));
    drop(server);
}

#[test]
fn a_server_stops_beside_open_connections_and_waiting_pages() {
    let gate: Arc<millpond_env::sync::Mutex<_>> = Arc::new(millpond_env::sync::Mutex::new(()));
    let closed = gate.lock();
    let waiting = Arc::clone(&gate);
    let Some((server, address)) = server(Arc::new(move || {
        drop(waiting.lock());
        String::new()
    })) else {
        return println!("no network here: nothing tried");
    };
    let _silent = TcpStream::connect(address).unwrap();
    let mut asking = TcpStream::connect(address).unwrap();
    asking.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    drop(server);
    let mut rest = vec![];
    let _ = asking.read_to_end(&mut rest);
    assert_eq!(rest, b"");
    drop(closed);
}

#[test]
fn a_page_that_panics_is_an_error_of_the_server() {
    let page: PageSource = Arc::new(|| panic!("a page that panics"));
    let response = answer(b"GET /metrics HTTP/1.1\r\n\r\n", 4096, page).unwrap();
    assert!(response.starts_with(b"HTTP/1.1 500 "), "{response:?}");
}

#[test]
fn a_user_cannot_take_the_permits_of_others() {
    let permits = ConnectionPermits::new(CONNECTIONS, 1000);
    let strangers: Vec<_> = (1..=9)
        .filter_map(|user| permits.take(Some(user)).ok())
        .collect();
    assert_eq!(strangers.len(), CONNECTIONS.strangers);
    assert!(permits.take(Some(1000)).is_ok());
    assert!(permits.take(Some(0)).is_ok());
}
