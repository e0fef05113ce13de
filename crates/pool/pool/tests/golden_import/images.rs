//! Golden images as devices in memory. Stores only the parts that are not zero.

use millpond_device::{Candidate, Device, DeviceError};
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PIECE_BYTES: usize = 64 << 10;

/// An image, read-only.
pub struct SparseImage {
    pieces: HashMap<u64, Box<[u8]>>,
    size_bytes: u64,
}

impl SparseImage {
    /// Unpacks a `.img.zst`.
    pub fn unpack(packed: &Path) -> Self {
        let mut decoder = zstd_safe::DCtx::create();
        decoder
            .set_parameter(zstd_safe::DParameter::WindowLogMax(31))
            .unwrap();
        let mut file = std::fs::File::open(packed).unwrap();
        let mut image = Self {
            pieces: HashMap::new(),
            size_bytes: 0,
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
            self.pieces
                .insert(self.size_bytes / PIECE_BYTES as u64, piece.into());
        }
        self.size_bytes += piece.len() as u64;
    }
    /// Writes the image to a sparse file.
    pub fn save(&self, path: &Path) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(path).unwrap();
        file.set_len(self.size_bytes).unwrap();
        for (index, piece) in &self.pieces {
            file.write_all_at(piece, index * PIECE_BYTES as u64)
                .unwrap();
        }
    }
}

impl std::fmt::Debug for SparseImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SparseImage({} bytes)", self.size_bytes)
    }
}

impl Device for SparseImage {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        assert!(offset_bytes + buffer.len() as u64 <= self.size_bytes);
        let mut at = offset_bytes as usize;
        let mut rest = buffer;
        while !rest.is_empty() {
            let within = at % PIECE_BYTES;
            let count = rest.len().min(PIECE_BYTES - within);
            let (part, after) = rest.split_at_mut(count);
            match self.pieces.get(&((at / PIECE_BYTES) as u64)) {
                Some(piece) => part.copy_from_slice(&piece[within..within + count]),
                None => part.fill(0),
            }
            (rest, at) = (after, at + count);
        }
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
}

/// One golden case.
pub struct Case {
    pub name: String,
    pub folder: PathBuf,
    pub record: serde_json::Value,
}

impl Case {
    /// The pool's name.
    pub fn pool(&self) -> &str {
        self.record["pool"].as_str().unwrap()
    }
    /// A pool property.
    pub fn property(&self, name: &str) -> &str {
        self.record["zpool_get"][name][0].as_str().unwrap()
    }
    /// (image file, vdev path) of each image.
    pub fn images(&self) -> Vec<(String, String)> {
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let images = self.record["images"].as_array().unwrap();
        images
            .iter()
            .map(|image| (text(&image["file"]), text(&image["vdev_path"])))
            .collect()
    }
    fn size_bytes(&self) -> u64 {
        let images = self.record["images"].as_array().unwrap();
        images
            .iter()
            .map(|image| image["size"].as_u64().unwrap())
            .sum()
    }
    /// Sets of images that may be absent together.
    pub fn may_be_absent(&self) -> Vec<Vec<String>> {
        let sets = self.record["may_be_absent"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let names = |set: &serde_json::Value| {
            let items = set.as_array().cloned().unwrap_or_default();
            items
                .iter()
                .map(|name| name.as_str().unwrap().to_owned())
                .collect()
        };
        sets.iter().map(names).collect()
    }
    /// A text file of the case, if it has it.
    pub fn text(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.join(name)).ok()
    }
    /// The images as devices; for a whole disk, the partition that holds the pool.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.images()
            .into_iter()
            .map(|(file, _)| {
                let image: Arc<dyn Device> =
                    Arc::new(SparseImage::unpack(&self.folder.join(&file)));
                let device = match millpond_device::read_gpt(image.as_ref()) {
                    Ok(parts) => {
                        let part = &parts[0];
                        Arc::new(
                            millpond_device::PartitionDevice::new(
                                image,
                                part.start_bytes,
                                part.length_bytes,
                            )
                            .unwrap(),
                        )
                    }
                    Err(_) => image,
                };
                Candidate {
                    path: PathBuf::from(file.strip_suffix(".img.zst").unwrap()),
                    aliases: Vec::new(),
                    partition: None,
                    device,
                    is_live: false,
                }
            })
            .collect()
    }
}

/// Unpacking all cases takes minutes, so only smaller ones are unpacked by default.
const UNNAMED_BYTES_MAX: u64 = 200 << 20;

/// Every case: those of the repository, or the larger set if it is available.
pub fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let beside = root.join("../shared/golden");
    let named = std::env::var_os("MILLPOND_GOLDEN").map(PathBuf::from);
    let bytes_max = if named.is_some() {
        u64::MAX
    } else {
        UNNAMED_BYTES_MAX
    };
    let folder = match named {
        Some(folder) => folder,
        None if beside.is_dir() => beside,
        None => root.join("testdata/golden"),
    };
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("no golden pools at {}: nothing compared", folder.display());
        return Vec::new();
    };
    let mut cases: Vec<Case> = entries
        .filter_map(|entry| read_case(&entry.unwrap().path()))
        .collect();
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    let before = cases.len();
    cases.retain(|case| case.size_bytes() <= bytes_max);
    if cases.len() < before {
        println!(
            "{} large golden pools passed over (MILLPOND_GOLDEN asks for all)",
            before - cases.len()
        );
    }
    println!("{} golden pools at {}", cases.len(), folder.display());
    cases
}

fn read_case(folder: &Path) -> Option<Case> {
    let record = match std::fs::read(folder.join("CASE.json")) {
        Ok(plain) => plain,
        Err(_) => unpack_text(&std::fs::read(folder.join("CASE.json.zst")).ok()?),
    };
    Some(Case {
        name: folder.file_name()?.to_str()?.to_owned(),
        folder: folder.to_owned(),
        record: serde_json::from_slice(&record).unwrap(),
    })
}

fn unpack_text(packed: &[u8]) -> Vec<u8> {
    let mut decoder = zstd_safe::DCtx::create();
    decoder
        .set_parameter(zstd_safe::DParameter::WindowLogMax(31))
        .unwrap();
    let mut input = zstd_safe::InBuffer::around(packed);
    let (mut text, mut piece) = (Vec::new(), vec![0; 1 << 20]);
    loop {
        let mut output = zstd_safe::OutBuffer::around(piece.as_mut_slice());
        let left = decoder.decompress_stream(&mut output, &mut input).unwrap();
        let count = output.pos();
        text.extend_from_slice(&piece[..count]);
        if left == 0 || (count == 0 && input.pos == packed.len()) {
            return text;
        }
    }
}
