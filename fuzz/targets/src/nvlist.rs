//! Name/value lists.

use millpond_nvlist::NvList;

pub fn nvlist(data: &[u8]) {
    let Ok((list, length)) = NvList::decode_prefix(data) else {
        return;
    };
    assert!(length <= data.len());
    let _ = format!("{list:?}");
    // What was read can be written, and reads as the same.
    if let Ok(bytes) = list.encode_xdr() {
        let again = NvList::decode(&bytes).expect("our own bytes");
        assert_eq!(format!("{again:?}"), format!("{list:?}"));
    }
}
