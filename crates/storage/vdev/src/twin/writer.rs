//! Writes one block in the simplest way.

use super::Twin;
use crate::VdevKind;

const START: u64 = 4 << 20;
const ROW: u64 = 16 << 20;

fn double(byte: u8) -> u8 {
    (byte << 1) ^ if byte & 0x80 != 0 { 0x1d } else { 0 }
}

/// The parity sectors of one row of data sectors.
fn parity_of(data: &[Vec<u8>], parity: u64) -> Vec<Vec<u8>> {
    let length = data[0].len();
    (0..parity)
        .map(|power| {
            let mut sum = vec![0u8; length];
            for column in data {
                for (sum, byte) in sum.iter_mut().zip(column) {
                    for _ in 0..power {
                        *sum = double(*sum);
                    }
                    *sum ^= byte;
                }
            }
            sum
        })
        .collect()
}

impl Twin {
    fn padded(&self, sector: u64) -> Vec<u8> {
        let mut data = self.data.clone();
        data.resize(data.len().next_multiple_of(sector as usize), 0);
        data
    }

    pub(crate) fn write_mirror(&mut self, sector: u64) {
        let data = self.padded(sector);
        for device in &mut self.devices {
            device.write(self.range.offset_bytes + START, &data);
        }
    }

    /// `places` maps a raid sector and the first sector after its row to its places: each a child, a row of that child,
    /// and the distance in bytes by which it lies before that row's position.
    pub(crate) fn write_raidz(
        &mut self,
        sector: u64,
        width: u64,
        parity: u64,
        places: &dyn Fn(u64, u64) -> Vec<(u64, u64, u64)>,
    ) {
        let data = self.padded(sector);
        let sectors: Vec<&[u8]> = data.chunks_exact(sector as usize).collect();
        let count = sectors.len() as u64;
        let per_row = width - parity;
        let rows = count.div_ceil(per_row);
        // How many sectors each data column has, and where each begins in the block.
        let tall = |column: u64| count / per_row + u64::from(column < count % per_row);
        let begin = |column: u64| (0..column).map(tall).sum::<u64>();
        let is_swapped = parity == 1 && self.range.offset_bytes & 0x10_0000 != 0;
        for row in 0..rows {
            let columns: Vec<Vec<u8>> = (0..per_row)
                .map(|column| match row < tall(column) {
                    true => sectors[(begin(column) + row) as usize].to_vec(),
                    false => vec![0; sector as usize],
                })
                .collect();
            // A block of less than one row has no columns, and no parity, after its last column.
            let used = if rows == 1 {
                count as usize
            } else {
                per_row as usize
            };
            let sums = parity_of(&columns[..used], parity);
            let first = self.range.offset_bytes / sector + row * width;
            let row_end = first
                + if rows == 1 {
                    count.min(per_row) + parity
                } else {
                    width
                };
            for at in 0..width {
                let column = match (is_swapped, at) {
                    (true, 0) => 1,
                    (true, 1) => 0,
                    _ => at,
                };
                let bytes = match column.checked_sub(parity) {
                    None => &sums[column as usize],
                    Some(data) if row < tall(data) => &columns[data as usize],
                    Some(_) => continue,
                };
                for (child, child_row, back) in places(first + at, row_end) {
                    self.devices[child as usize].write(START + child_row * sector - back, bytes);
                }
            }
        }
    }

    pub(crate) fn write_draid(&mut self, sector: u64, shape: (u64, u64, u64, u64)) {
        let (children, parity, data_columns, spares) = shape;
        let node = self.tree.top(self.range.vdev).unwrap();
        let VdevKind::Draid(geometry) = node.kind.clone() else {
            panic!()
        };
        let (width, disks) = (data_columns + parity, children - spares);
        let groups = (1..).find(|groups| groups * width % disks == 0).unwrap();
        let data = self.padded(sector);
        let sectors: Vec<Vec<u8>> = data
            .chunks_exact(sector as usize)
            .map(<[u8]>::to_vec)
            .collect();
        let mut left = sectors.as_slice();
        let mut offset = self.range.offset_bytes;
        while !left.is_empty() {
            let group = offset / (width * ROW);
            let stripes_left = ((group + 1) * width * ROW - offset) / (width * sector);
            let fit = (stripes_left * data_columns).min(left.len() as u64);
            let (part, rest) = left.split_at(fit as usize);
            left = rest;
            let rows = fit.div_ceil(data_columns);
            let tall = |column: u64| fit / data_columns + u64::from(column < fit % data_columns);
            let begin = |column: u64| (0..column).map(tall).sum::<u64>();
            for row in 0..rows {
                let columns: Vec<Vec<u8>> = (0..data_columns)
                    .map(|column| match row < tall(column) {
                        true => part[(begin(column) + row) as usize].clone(),
                        false => vec![0; sector as usize],
                    })
                    .collect();
                let sums = parity_of(&columns, parity);
                let stripe = (offset % (width * ROW)) / (width * sector) + row;
                for (at, bytes) in (0u64..).zip(sums.iter().chain(&columns)) {
                    // Groups fill the vdev slot by slot, with `disks` slots in each 16 MiB row.
                    let slot = group * width + at;
                    let child = geometry.child_at(group / groups, slot % disks).unwrap();
                    let at = START + slot / disks * ROW + stripe * sector;
                    self.devices[child as usize].write(at, bytes);
                }
            }
            offset = (group + 1) * width * ROW;
        }
    }
}
