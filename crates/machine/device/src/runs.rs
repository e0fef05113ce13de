//! Runs of adjacent writes.

use crate::WriteRequest;

/// Adjacent writes of a batch are sent to the device together, up to this many bytes.
pub const RUN_BYTES_MAX: u64 = 1 << 20;

/// The number of requests, from the first, that form one run, and their bytes; at least 1.
///
/// A run is at most [`RUN_BYTES_MAX`] long; a longer single request is a run by itself.
#[must_use]
pub fn next_run(requests: &[WriteRequest<'_>]) -> (usize, u64) {
    let Some(first) = requests.first() else {
        return (1, 0);
    };
    let pairs = requests.iter().zip(requests.iter().skip(1));
    let joined = pairs.take_while(|(one, next)| {
        one.end_bytes() == next.offset_bytes
            && next.end_bytes().saturating_sub(first.offset_bytes) <= RUN_BYTES_MAX
    });
    let count = joined.count() + 1;
    let lengths = requests.iter().take(count);
    let bytes = lengths.map(|request| request.bytes.len() as u64).sum();
    (count, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_neighbours_up_to_a_mebibyte() {
        let bytes = vec![0u8; 3 << 20];
        let of = |parts: &[(u64, usize)]| {
            let requests: Vec<_> = parts
                .iter()
                .map(|(offset, length)| WriteRequest::new(*offset, &bytes[..*length]))
                .collect();
            next_run(&requests).0
        };
        assert_eq!(of(&[(0, 512), (512, 512), (1024, 512), (2048, 512)]), 3);
        let half = 512 << 10;
        assert_eq!(of(&[(0, half), (half as u64, half), (1 << 20, 512)]), 2);
        assert_eq!(of(&[(0, 3 << 20), (3 << 20, 512)]), 1);
    }
}
