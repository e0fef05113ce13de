//! Images of real pools in memory, without their holes.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

const PIECE_BYTES: usize = 64 << 10;

/// One disk of a golden pool.
pub struct Image {
    pieces: HashMap<usize, Box<[u8]>>,
    pub size: usize,
}

impl Image {
    /// Unpacks a `.img.zst`.
    pub fn unpack(packed: &Path) -> Self {
        let mut decoder = zstd_safe::DCtx::create();
        decoder
            .set_parameter(zstd_safe::DParameter::WindowLogMax(31))
            .unwrap();
        let mut file = std::fs::File::open(packed).unwrap();
        let mut image = Self {
            pieces: HashMap::new(),
            size: 0,
        };
        let (mut from, mut piece, mut filled) = (vec![0; 128 << 10], vec![0; PIECE_BYTES], 0);
        loop {
            let count = file.read(&mut from).unwrap();
            let mut input = zstd_safe::InBuffer::around(&from[..count]);
            loop {
                let mut output = zstd_safe::OutBuffer::around_pos(piece.as_mut_slice(), filled);
                decoder.decompress_stream(&mut output, &mut input).unwrap();
                filled = output.pos();
                if filled < PIECE_BYTES {
                    break;
                }
                image.push(&piece);
                filled = 0;
            }
            if count == 0 {
                break;
            }
        }
        image.push(&piece[..filled]);
        image
    }

    fn push(&mut self, piece: &[u8]) {
        if piece.iter().any(|byte| *byte != 0) {
            self.pieces.insert(self.size / PIECE_BYTES, piece.into());
        }
        self.size += piece.len();
    }

    /// `None` beyond the end.
    pub fn read(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let (mut at, end) = (offset as usize, (offset + length) as usize);
        if end > self.size {
            return None;
        }
        let mut bytes = Vec::with_capacity(length as usize);
        while at < end {
            let within = at % PIECE_BYTES;
            let count = (end - at).min(PIECE_BYTES - within);
            match self.pieces.get(&(at / PIECE_BYTES)) {
                Some(piece) => {
                    let stored = piece.get(within..).unwrap_or(&[]);
                    let stored = &stored[..stored.len().min(count)];
                    bytes.extend_from_slice(stored);
                    bytes.resize(bytes.len() + count - stored.len(), 0);
                }
                None => bytes.resize(bytes.len() + count, 0),
            }
            at += count;
        }
        Some(bytes)
    }
}

/// The folder of one golden case, from the large set or the repository's part of it.
pub fn case(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let named = std::env::var_os("MILLPOND_GOLDEN").map(PathBuf::from);
    let places = [
        named,
        Some(root.join("../shared/golden")),
        Some(root.join("testdata/golden")),
    ];
    let found = places
        .into_iter()
        .flatten()
        .map(|place| place.join(name))
        .find(|place| place.is_dir());
    if found.is_none() {
        println!("golden pool {name} is absent: nothing compared");
    }
    found
}

/// Unpacks all disks of a case.
pub fn disks(folder: &Path) -> Vec<Image> {
    (0..)
        .map(|number| folder.join(format!("d{number}.img.zst")))
        .take_while(|path| path.exists())
        .map(|path| Image::unpack(&path))
        .collect()
}
