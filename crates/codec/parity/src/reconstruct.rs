//! Reconstruction: each lost column is a linear combination of present columns.

use crate::{
    Implementation, PARITY_MAX, ParityError,
    field::{invert, multiply, power_of_two},
    generate::{check_shape, generate_rows},
};

/// Bytes of each column combined at a time, so that the sources are still cached for the second and third
/// lost columns.
const PIECE_BYTES: usize = 16 << 10;

/// Rebuilds the missing columns of a parity group in place.
///
/// `data` and `parity` contain all columns, in the order and with the lengths (in bytes) that
/// [`generate`](crate::generate) takes. The content of missing columns does not matter. First the data
/// columns `missing_data` are solved from the rest, using the first parity columns that are not in
/// `missing_parity`. Then the parity columns `missing_parity` are recomputed. Both lists may be in any order
/// and contain duplicates. If at most as many data columns are missing as parity columns are present, there
/// is exactly one solution. Only the block's checksum shows whether it is the *right* one.
///
/// Allocates a few bytes for each column. Page `docs/format/raidz-parity.md`.
///
/// # Errors
/// [`ParityError`] for an invalid shape, for a missing column that does not exist, or if more data columns
/// are missing than parity columns are present. Nothing is changed in these cases.
pub fn reconstruct(
    data: &mut [&mut [u8]],
    parity: &mut [&mut [u8]],
    missing_data: &[usize],
    missing_parity: &[usize],
) -> Result<(), ParityError> {
    reconstruct_with(
        Implementation::best(),
        data,
        parity,
        missing_data,
        missing_parity,
    )
}

/// As [`reconstruct`], with a given implementation, for tests and benchmarks.
///
/// # Errors
/// As [`reconstruct`], and [`ParityError::Unavailable`] if this processor cannot run it.
pub fn reconstruct_with(
    implementation: Implementation,
    data: &mut [&mut [u8]],
    parity: &mut [&mut [u8]],
    missing_data: &[usize],
    missing_parity: &[usize],
) -> Result<(), ParityError> {
    if !implementation.is_available() {
        return Err(ParityError::Unavailable);
    }
    let mut lengths = [0; PARITY_MAX];
    for (length, column) in lengths.iter_mut().zip(parity.iter()) {
        *length = column.len();
    }
    check_shape(
        data.iter().map(|column| column.len()),
        parity.len(),
        lengths,
    )?;
    let missing_data = sorted(missing_data, data.len())?;
    let missing_parity = sorted(missing_parity, parity.len())?;
    let rows: Vec<usize> = (0..parity.len())
        .filter(|row| !missing_parity.contains(row))
        .take(missing_data.len())
        .collect();
    if rows.len() < missing_data.len() {
        return Err(ParityError::TooManyMissing {
            missing: missing_data.len(),
            parity: rows.len(),
        });
    }
    let solution = Solution::solve(data.len(), &missing_data, &rows)?;

    // The missing columns are taken out of the group while the others are read.
    let mut lost: Vec<&mut [u8]> = missing_data
        .iter()
        .filter_map(|&column| data.get_mut(column).map(core::mem::take))
        .collect();
    solution.apply(implementation, data, parity, &mut lost);
    for (&column, rebuilt) in missing_data.iter().zip(lost) {
        if let Some(place) = data.get_mut(column) {
            *place = rebuilt;
        }
    }

    let data: Vec<&[u8]> = data.iter().map(|column| &**column).collect();
    generate_rows(
        &data,
        parity
            .iter_mut()
            .enumerate()
            .filter(|(row, _)| missing_parity.contains(row))
            .map(|(row, column)| (row, &mut **column)),
    );
    Ok(())
}

/// Returns the list sorted and without duplicates. All columns must be below `count`.
fn sorted(columns: &[usize], count: usize) -> Result<Vec<usize>, ParityError> {
    if let Some(&column) = columns.iter().find(|column| **column >= count) {
        return Err(ParityError::NoSuchColumn { column, count });
    }
    let mut sorted = columns.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    Ok(sorted)
}

/// The factors of each present column in each lost one.
struct Solution {
    /// For each lost column, one element per data column (0 at the lost ones).
    of_data: Vec<Vec<u8>>,
    /// For each lost column, one element per parity row used.
    of_parity: Vec<Vec<u8>>,
    /// The parity rows used.
    rows: Vec<usize>,
}

impl Solution {
    /// Inverts the matrix of the lost columns' coefficients in `rows` and multiplies it by the coefficients
    /// of the present columns. `missing` and `rows` have the same length, at most 3.
    fn solve(count: usize, missing: &[usize], rows: &[usize]) -> Result<Self, ParityError> {
        // Column i of n has coefficient (2^row)^(n-1-i) in parity `row`.
        let coefficient = |row: usize, column: usize| {
            power_of_two(row.saturating_mul(count.saturating_sub(column).saturating_sub(1)))
        };
        let inverse = inverted(
            rows.iter()
                .map(|&row| {
                    missing
                        .iter()
                        .map(|&column| coefficient(row, column))
                        .collect()
                })
                .collect(),
        )
        .ok_or(ParityError::Singular)?;
        let of_data = inverse
            .iter()
            .map(|line| {
                (0..count)
                    .map(|column| {
                        if missing.contains(&column) {
                            return 0;
                        }
                        line.iter().zip(rows).fold(0, |sum, (&factor, &row)| {
                            sum ^ multiply(factor, coefficient(row, column))
                        })
                    })
                    .collect()
            })
            .collect();
        Ok(Self {
            of_data,
            of_parity: inverse,
            rows: rows.to_vec(),
        })
    }

    /// Writes the lost columns. `data` contains empty slices in their places.
    fn apply(
        &self,
        implementation: Implementation,
        data: &[&mut [u8]],
        parity: &[&mut [u8]],
        lost: &mut [&mut [u8]],
    ) {
        let total = lost.iter().map(|column| column.len()).max().unwrap_or(0);
        let mut offset = 0usize;
        while offset < total {
            // Within a piece each column is present entirely or not at all.
            let end = data
                .iter()
                .map(|column| column.len())
                .chain(lost.iter().map(|column| column.len()))
                .filter(|length| *length > offset)
                .fold(total.min(offset.saturating_add(PIECE_BYTES)), usize::min);
            let mut sources: Vec<&[u8]> = Vec::with_capacity(data.len().saturating_add(3));
            let present: Vec<usize> = (0..data.len())
                .filter(|&column| {
                    data.get(column)
                        .and_then(|column| column.get(offset..end))
                        .map(|piece| sources.push(piece))
                        .is_some()
                })
                .collect();
            sources.extend(
                self.rows
                    .iter()
                    .filter_map(|&row| parity.get(row)?.get(offset..end)),
            );
            for ((lost, of_data), of_parity) in
                lost.iter_mut().zip(&self.of_data).zip(&self.of_parity)
            {
                let Some(out) = lost.get_mut(offset..end) else {
                    continue;
                };
                let coefficients: Vec<u8> = present
                    .iter()
                    .filter_map(|&column| of_data.get(column).copied())
                    .chain(of_parity.iter().copied())
                    .collect();
                implementation.combine(out, &sources, &coefficients);
            }
            offset = end;
        }
    }
}

/// Returns the inverse of a square matrix by Gauss-Jordan elimination, or `None` if it has none.
fn inverted(mut left: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let size = left.len();
    let mut right: Vec<Vec<u8>> = (0..size)
        .map(|i| (0..size).map(|j| u8::from(i == j)).collect())
        .collect();
    for pivot in 0..size {
        let found = (pivot..size).find(|&line| {
            left.get(line)
                .and_then(|line| line.get(pivot))
                .is_some_and(|&element| element != 0)
        })?;
        left.swap(pivot, found);
        right.swap(pivot, found);
        let scale = invert(*left.get(pivot)?.get(pivot)?)?;
        for matrix in [&mut left, &mut right] {
            for element in matrix.get_mut(pivot)? {
                *element = multiply(*element, scale);
            }
        }
        let (pivot_left, pivot_right) = (left.get(pivot)?.clone(), right.get(pivot)?.clone());
        for line in (0..size).filter(|&line| line != pivot) {
            let factor = *left.get(line)?.get(pivot)?;
            for (matrix, pivot_line) in [(&mut left, &pivot_left), (&mut right, &pivot_right)] {
                for (element, &other) in matrix.get_mut(line)?.iter_mut().zip(pivot_line) {
                    *element ^= multiply(factor, other);
                }
            }
        }
    }
    Some(right)
}

#[cfg(test)]
pub(crate) mod tests;
