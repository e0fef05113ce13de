//! Requests of the kernel to a mounted file system.

use millpond_fuse::abi::{Request, feature};

/// A message; once as it is, once with the length that it says of itself made true, so that more of it is read.
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
