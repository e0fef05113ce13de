//! The linear combination that reconstruction needs, in code that any processor runs. The paths
//! in `src/simd/` are held equal to it.

use multiversion::multiversion;

use crate::field::double;

/// `out = sum of coefficients[i] * sources[i]`. Sources at least as long as `out`, one coefficient
/// each; what is missing counts as zero.
#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1", "aarch64+neon"))]
pub(crate) fn combine(out: &mut [u8], sources: &[&[u8]], coefficients: &[u8]) {
    out.fill(0);
    for (source, coefficient) in sources.iter().zip(coefficients) {
        // Shift and add for all eight bits of the coefficient, with masks in place of branches, so
        // that the loop over bytes becomes vector code.
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
