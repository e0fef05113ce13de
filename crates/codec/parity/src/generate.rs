//! Parity generation with Horner's rule over the columns, strip by strip.

use multiversion::multiversion;

use crate::{DATA_COLUMNS_MAX, PARITY_MAX, ParityError, field::double};

/// Bytes of a column processed at a time. A strip of every column and of the sums stays in the first two
/// cache levels while the second and third parity read it again.
const STRIP_BYTES: usize = 4096;
/// The contribution of a column that has ended.
static ZEROS: [u8; STRIP_BYTES] = [0; STRIP_BYTES];

/// Computes the parity columns of `data`: P, Q and R, or only the first one or two if `parity` has fewer.
///
/// All parity columns have the same length in bytes. A data column may be shorter and then counts as padded
/// with zeros at its end. The previous content of the parity columns does not matter. Allocates nothing. Page
/// `docs/format/raidz-parity.md`.
///
/// # Errors
/// [`ParityError`] for an invalid shape: not 1 to 3 parity columns, not 1 to 255 data columns, parity columns
/// of unequal length, or a data column longer than these.
pub fn generate(data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), ParityError> {
    let lengths = |columns: &[&mut [u8]]| -> [usize; PARITY_MAX] {
        let mut lengths = [0; PARITY_MAX];
        for (length, column) in lengths.iter_mut().zip(columns) {
            *length = column.len();
        }
        lengths
    };
    check_shape(
        data.iter().map(|column| column.len()),
        parity.len(),
        lengths(parity),
    )?;
    generate_rows(
        data,
        parity
            .iter_mut()
            .enumerate()
            .map(|(row, column)| (row, &mut **column)),
    );
    Ok(())
}

/// Refuses columns that do not form a parity group. Only the first `parity_count` of `parity_lengths` count.
pub(crate) fn check_shape(
    data_lengths: impl ExactSizeIterator<Item = usize>,
    parity_count: usize,
    parity_lengths: [usize; PARITY_MAX],
) -> Result<usize, ParityError> {
    if parity_count == 0 || parity_count > PARITY_MAX {
        return Err(ParityError::ParityCount {
            count: parity_count,
        });
    }
    let count = data_lengths.len();
    if count == 0 || count > DATA_COLUMNS_MAX {
        return Err(ParityError::DataCount { count });
    }
    let [expected, ..] = parity_lengths;
    for (column, length) in parity_lengths.into_iter().take(parity_count).enumerate() {
        if length != expected {
            return Err(ParityError::ParityLength {
                column,
                length,
                expected,
            });
        }
    }
    for (column, length) in data_lengths.enumerate() {
        if length > expected {
            return Err(ParityError::DataTooLong {
                column,
                length,
                parity: expected,
            });
        }
    }
    Ok(expected)
}

/// Computes the given rows (0 = P, 1 = Q, 2 = R) of a group whose shape was checked.
pub(crate) fn generate_rows<'p>(data: &[&[u8]], rows: impl Iterator<Item = (usize, &'p mut [u8])>) {
    let mut sums: [Option<(usize, &mut [u8])>; PARITY_MAX] = [const { None }; PARITY_MAX];
    for (slot, row) in sums.iter_mut().zip(rows) {
        *slot = Some(row);
    }
    let total = sums
        .iter()
        .flatten()
        .map(|(_, sum)| sum.len())
        .max()
        .unwrap_or(0);
    let mut offset = 0usize;
    while offset < total {
        let end = strip_end(data, offset, total);
        for (row, sum) in sums.iter_mut().flatten() {
            if let Some(strip) = sum.get_mut(offset..end) {
                horner(strip, data, offset, *row);
            }
        }
        offset = end;
    }
}

/// The end of the strip that begins at `offset`. Within the strip each column is present entirely or not at
/// all.
fn strip_end(data: &[&[u8]], offset: usize, total: usize) -> usize {
    data.iter()
        .map(|column| column.len())
        .filter(|length| *length > offset)
        .fold(total.min(offset.saturating_add(STRIP_BYTES)), usize::min)
}

/// `sum = (..(D0 * 2^row + D1) * 2^row + ..)` for one strip of at most [`STRIP_BYTES`].
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx2",
    "x86_64+avx2",
    "x86_64+sse4.1",
    "aarch64+neon"
))]
fn horner(sum: &mut [u8], data: &[&[u8]], offset: usize, row: usize) {
    horner_plain(sum, data, offset, row);
}

#[inline(always)]
fn horner_plain(sum: &mut [u8], data: &[&[u8]], offset: usize, row: usize) {
    match row {
        0 => horner_row::<0>(sum, data, offset),
        1 => horner_row::<1>(sum, data, offset),
        _ => horner_row::<2>(sum, data, offset),
    }
}

#[inline(always)]
fn horner_row<const DOUBLINGS: usize>(sum: &mut [u8], data: &[&[u8]], offset: usize) {
    let length = sum.len();
    sum.fill(0);
    // Four columns at a time: one load and store of the sum serves four.
    let mut groups = data.chunks_exact(4);
    for group in &mut groups {
        if let [a, b, c, d] = group {
            step_four::<DOUBLINGS>(
                sum,
                part(a, offset, length),
                part(b, offset, length),
                part(c, offset, length),
                part(d, offset, length),
            );
        }
    }
    for column in groups.remainder() {
        step_one::<DOUBLINGS>(sum, part(column, offset, length));
    }
}

/// Returns a strip of a column, or zeros if the column has ended.
#[inline(always)]
fn part(column: &[u8], offset: usize, length: usize) -> &[u8] {
    offset
        .checked_add(length)
        .and_then(|end| column.get(offset..end))
        .or_else(|| ZEROS.get(..length))
        .unwrap_or(&[])
}

#[inline(always)]
fn times<const DOUBLINGS: usize>(mut x: u8) -> u8 {
    for _ in 0..DOUBLINGS {
        x = double(x);
    }
    x
}

#[inline(always)]
fn step_four<const DOUBLINGS: usize>(sum: &mut [u8], a: &[u8], b: &[u8], c: &[u8], d: &[u8]) {
    for ((((sum, a), b), c), d) in sum.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let mut x = *sum;
        x = times::<DOUBLINGS>(x) ^ a;
        x = times::<DOUBLINGS>(x) ^ b;
        x = times::<DOUBLINGS>(x) ^ c;
        *sum = times::<DOUBLINGS>(x) ^ d;
    }
}

#[inline(always)]
fn step_one<const DOUBLINGS: usize>(sum: &mut [u8], a: &[u8]) {
    for (sum, a) in sum.iter_mut().zip(a) {
        *sum = times::<DOUBLINGS>(*sum) ^ a;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{multiply, power_of_two};
    use proptest::prelude::*;

    #[test]
    fn the_known_group_with_a_short_column_gives_the_known_parity() {
        let (mut p, mut q, mut r) = ([0xffu8; 4], [0xffu8; 4], [0xffu8; 4]);
        generate(
            &[&[1, 2, 3, 4], &[0x80, 0xff, 0x10, 0], &[0xaa, 0x55]],
            &mut [&mut p, &mut q, &mut r],
        )
        .unwrap();
        assert_eq!(p, [0x2b, 0xa8, 0x13, 0x04]);
        assert_eq!(q, [0xb3, 0xbe, 0x2c, 0x10]);
        assert_eq!(r, [0x80, 0xae, 0x70, 0x40]);
    }
    #[test]
    fn all_parity_of_a_single_data_column_is_that_column() {
        let data: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
        let mut parity = vec![vec![1u8; data.len()]; 3];
        let mut columns: Vec<&mut [u8]> = parity.iter_mut().map(|c| &mut c[..]).collect();
        generate(&[&data], &mut columns).unwrap();
        assert!(parity.iter().all(|column| *column == data));
    }
    #[test]
    fn impossible_shapes_are_refused_and_change_nothing() {
        let mut p = [7u8; 4];
        let mut others = [[7u8; 4]; 4];
        assert_eq!(
            generate(&[&[1]], &mut []),
            Err(ParityError::ParityCount { count: 0 })
        );
        let mut four: Vec<&mut [u8]> = others.iter_mut().map(|c| &mut c[..]).collect();
        assert_eq!(
            generate(&[&[1]], &mut four),
            Err(ParityError::ParityCount { count: 4 })
        );
        assert_eq!(
            generate(&[], &mut [&mut p]),
            Err(ParityError::DataCount { count: 0 })
        );
        let column: &[u8] = &[1];
        assert_eq!(
            generate(&[column; 256], &mut [&mut p]),
            Err(ParityError::DataCount { count: 256 })
        );
        assert_eq!(
            generate(&[column, &[0; 5]], &mut [&mut p]),
            Err(ParityError::DataTooLong {
                column: 1,
                length: 5,
                parity: 4
            })
        );
        let mut q = [7u8; 3];
        assert_eq!(
            generate(&[column], &mut [&mut p, &mut q]),
            Err(ParityError::ParityLength {
                column: 1,
                length: 3,
                expected: 4
            })
        );
        assert_eq!((p, q), ([7; 4], [7; 3]));
        generate(&[column; 255], &mut [&mut p]).unwrap();
        assert_eq!(p, [1, 0, 0, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn parity_matches_its_definition_for_all_columns(
            columns in 1usize..20,
            length in prop_oneof![0usize..200, 3900usize..9000],
            seed in any::<u64>(),
        ) {
            let mut random = crate::reconstruct::tests::Random(seed);
            let data: Vec<Vec<u8>> = (0..columns)
                .map(|_| {
                    let short = if random.next().is_multiple_of(3) { random.next() as usize % (length + 1) } else { 0 };
                    random.bytes(length - short)
                })
                .collect();
            let views: Vec<&[u8]> = data.iter().map(|c| &c[..]).collect();
            let mut parity = vec![vec![0xa5u8; length]; 3];
            let mut outs: Vec<&mut [u8]> = parity.iter_mut().map(|c| &mut c[..]).collect();
            generate(&views, &mut outs).unwrap();
            for (row, column) in parity.iter().enumerate() {
                for (at, found) in column.iter().enumerate() {
                    let expected = data.iter().enumerate().fold(0, |sum, (i, column)| {
                        let byte = column.get(at).copied().unwrap_or(0);
                        sum ^ multiply(power_of_two(row * (columns - 1 - i)), byte)
                    });
                    prop_assert_eq!(*found, expected, "row {} byte {}", row, at);
                }
            }
            // The portable form must give the same result.
            for (row, column) in parity.iter().enumerate() {
                let mut offset = 0;
                while offset < length {
                    let end = strip_end(&views, offset, length);
                    let mut strip = vec![3u8; end - offset];
                    horner_plain(&mut strip, &views, offset, row);
                    prop_assert_eq!(&strip[..], &column[offset..end]);
                    offset = end;
                }
            }
        }
    }
}
