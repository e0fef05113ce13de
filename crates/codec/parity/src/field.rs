//! The field GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), of which 2 is a generator.

/// The polynomial without its x^8 term.
pub(crate) const REDUCTION: u8 = 0x1d;

/// `EXP[i]` is 2^i for i below 255. The values are repeated so that a sum of two logarithms needs no modulo.
const EXP: [u8; 512] = exp_table();
/// The logarithm of a non-zero element to base 2. Entry 0 has no meaning.
const LOG: [u8; 256] = log_table();

/// Twice `x`.
#[inline(always)]
pub(crate) const fn double(x: u8) -> u8 {
    // The top bit is spread over the byte. Compilers turn this into one compare per vector.
    (x << 1) ^ (((x as i8) >> 7) as u8 & REDUCTION)
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "evaluated by the compiler"
)]
const fn exp_table() -> [u8; 512] {
    let mut table = [0u8; 512];
    let mut x = 1u8;
    let mut i = 0;
    while i < 512 {
        table[i] = x;
        x = double(x);
        i += 1;
    }
    table
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "evaluated by the compiler"
)]
const fn log_table() -> [u8; 256] {
    let mut table = [0u8; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
}

fn log(x: u8) -> usize {
    LOG.get(usize::from(x)).copied().map_or(0, usize::from)
}

/// 2 to the power of `exponent`.
pub(crate) fn power_of_two(exponent: usize) -> u8 {
    EXP.get(exponent % 255).copied().unwrap_or(1)
}

/// The product of two elements.
pub(crate) fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    power_of_two(log(a).saturating_add(log(b)))
}

/// The inverse of `x`, or `None` for 0.
pub(crate) fn invert(x: u8) -> Option<u8> {
    (x != 0).then(|| power_of_two(255usize.saturating_sub(log(x))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shift and add, as in the definition.
    fn slow(mut a: u8, mut b: u8) -> u8 {
        let mut product = 0;
        while b != 0 {
            if b & 1 == 1 {
                product ^= a;
            }
            a = if a & 0x80 == 0 {
                a << 1
            } else {
                (a << 1) ^ 0x1d
            };
            b >>= 1;
        }
        product
    }

    #[test]
    fn the_tables_agree_with_shift_and_add_for_every_pair() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(multiply(a, b), slow(a, b), "{a} * {b}");
            }
            assert_eq!(double(a), slow(a, 2));
        }
    }
    #[test]
    fn every_nonzero_element_has_an_inverse_and_2_generates_all() {
        assert_eq!(invert(0), None);
        for a in 1..=255u8 {
            assert_eq!(multiply(a, invert(a).unwrap()), 1);
        }
        let powers: std::collections::BTreeSet<u8> = (0..255).map(power_of_two).collect();
        assert_eq!(powers.len(), 255);
    }
}
