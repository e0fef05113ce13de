//! Send streams.

use millpond_nvlist::NvList;
use millpond_stream::{RawKeys, Record, StreamReader};

/// Reads all records of a stream.
pub fn send_stream(data: &[u8]) {
    let mut reader = StreamReader::new(data);
    let mut payload_bytes = 0;
    while let Ok(Some(taken)) = reader.take() {
        payload_bytes += taken.payload.len();
        assert!(payload_bytes <= data.len());
        if let (Record::Begin(_), Ok(list)) = (&taken.record, NvList::decode(&taken.payload))
            && let Ok(keys) = RawKeys::find(&list)
        {
            let mut again = NvList::new();
            keys.put(&mut again);
            assert_eq!(RawKeys::find(&again), Ok(keys));
        }
    }
}
