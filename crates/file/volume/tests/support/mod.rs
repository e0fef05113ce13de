//! Opens golden pools for the tests of crates above `pool`.
#![allow(dead_code, clippy::unwrap_used, clippy::cast_possible_truncation)]

#[path = "../../../../pool/pool/tests/golden_import/images.rs"]
mod images;

use images::{Case, SparseImage};
use millpond_dataset::{Dataset, DatasetKey};
use millpond_pool::import::{Found, find_pools, scan_devices};
use millpond_pool::{OpenOptions, PoolView};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A golden pool, open.
pub struct Golden {
    pub folder: PathBuf,
    pub record: serde_json::Value,
    pub found: Found,
    pub pool: Arc<PoolView>,
}

impl Golden {
    /// Opens a case of the large set or of the repository's own set.
    ///
    /// If neither has the case, prints a message and returns `None`.
    pub fn open(name: &str) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .find(|folder| folder.join("Cargo.lock").exists())
            .unwrap();
        let folders = match std::env::var_os("MILLPOND_GOLDEN") {
            Some(named) => vec![PathBuf::from(named)],
            None => vec![root.join("../shared/golden"), root.join("testdata/golden")],
        };
        let folder = folders.iter().map(|folder| folder.join(name));
        let Some(folder) = folder.into_iter().find(|folder| folder.is_dir()) else {
            println!("golden pool {name} is not at hand: nothing compared");
            return None;
        };
        let record = std::fs::read(folder.join("CASE.json"))
            .unwrap_or_else(|_| unpack(&folder.join("CASE.json.zst")));
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        let case = Case {
            name: name.to_owned(),
            folder: folder.clone(),
            record: record.clone(),
        };
        let found = scan_devices(case.candidates());
        let candidate = find_pools(&found, 0).remove(0);
        let env = millpond_env::Env::real();
        let pool = PoolView::open(&env, &candidate, &OpenOptions::default()).unwrap();
        Some(Self {
            folder,
            record,
            found,
            pool,
        })
    }

    /// Writes the images to a folder as sparse files.
    pub fn save(&self, to: &Path) {
        for image in self.record["images"].as_array().unwrap() {
            let packed = image["file"].as_str().unwrap();
            let plain = packed.strip_suffix(".zst").unwrap();
            SparseImage::unpack(&self.folder.join(packed)).save(&to.join(plain));
        }
    }

    /// The records of datasets.
    pub fn datasets(&self) -> &[serde_json::Value] {
        self.record["datasets"].as_array().unwrap()
    }

    /// Reads a file of the case, decompressed if needed.
    pub fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.join(name))
            .unwrap_or_else(|_| unpack(&self.folder.join(format!("{name}.zst"))))
    }

    /// A dataset by name.
    pub fn dataset(&self, name: &str) -> Dataset {
        Dataset::find(&self.pool, name).unwrap()
    }

    /// The key of a dataset, unwrapped with a user's key.
    pub fn key(&self, dataset: &str, user_key: &[u8]) -> Arc<DatasetKey> {
        let dataset = self.dataset(dataset);
        let wrapping = dataset.directory().wrapping_key(user_key).unwrap();
        dataset.directory().unlock(&wrapping).unwrap()
    }
}

fn unpack(path: &Path) -> Vec<u8> {
    let packed = std::fs::read(path).unwrap();
    let mut decoder = zstd_safe::DCtx::create();
    decoder
        .set_parameter(zstd_safe::DParameter::WindowLogMax(31))
        .unwrap();
    let mut input = zstd_safe::InBuffer::around(packed.as_slice());
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 1 << 20]);
    loop {
        let mut output = zstd_safe::OutBuffer::around(piece.as_mut_slice());
        let left = decoder.decompress_stream(&mut output, &mut input).unwrap();
        let count = output.pos();
        bytes.extend_from_slice(&piece[..count]);
        if left == 0 || (count == 0 && input.pos == packed.len()) {
            return bytes;
        }
    }
}
