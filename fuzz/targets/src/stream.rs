//! Send streams.

use millpond_stream::StreamReader;

/// Reads all records of a stream.
pub fn send_stream(data: &[u8]) {
    let mut reader = StreamReader::new(data);
    let mut payload_bytes = 0;
    while let Ok(Some(taken)) = reader.take() {
        payload_bytes += taken.payload.len();
        assert!(payload_bytes <= data.len());
    }
}
