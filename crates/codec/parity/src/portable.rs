//! The linear combination for reconstruction, in portable code. Tests compare the paths in `src/simd/` with
//! it.

use multiversion::multiversion;

use crate::field::double;

/// `out = sum of coefficients[i] * sources[i]`. Sources should be at least as long as `out`, with one
/// coefficient each; missing bytes count as zero.
#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1", "aarch64+neon"))]
pub(crate) fn combine(out: &mut [u8], sources: &[&[u8]], coefficients: &[u8]) {
    out.fill(0);
    for (source, coefficient) in sources.iter().zip(coefficients) {
        // Shift and add for all eight bits of the coefficient, with masks instead of branches, so that the
        // loop over bytes is vectorised.
        let masks: [u8; 8] =
            core::array::from_fn(|bit| if coefficient >> bit & 1 == 1 { 0xff } else { 0 });
        for (out, source) in out.iter_mut().zip(*source) {
            let mut x = *source;
            let mut product = 0;
            for mask in masks {
                product ^= x & mask;
                x = double(x);
            }
            *out ^= product;
        }
    }
}
