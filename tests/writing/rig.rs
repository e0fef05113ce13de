//! Image files in a directory of their own, and the judges.

use millpond_engine::{OpenOptions, Pool, PoolBuilder, Search, View, WriteOptions};
use millpond_tests::oracle::zdb;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Some image files.
pub struct Rig {
    folder: TempDir,
    pub images: Vec<PathBuf>,
}

impl Rig {
    /// Creates `count` empty images of `mib` MiB each.
    pub fn new(count: usize, mib: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let images = (0..count)
            .map(|number| {
                let path = folder.path().join(format!("d{number}.img"));
                std::fs::File::create(&path)
                    .unwrap()
                    .set_len(mib << 20)
                    .unwrap();
                path
            })
            .collect();
        Self { folder, images }
    }
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
    /// Some of the images.
    pub fn some(&self, range: Range<usize>) -> &[PathBuf] {
        &self.images[range]
    }
    /// A plan with each image as a top-level vdev.
    pub fn stripe(&self, name: &str) -> PoolBuilder {
        self.images
            .iter()
            .fold(PoolBuilder::new(name), |plan, image| plan.single(image))
    }
    /// Opens the pool for changes.
    pub fn open(&self, name: &str) -> Pool {
        let search = Search::new([self.folder()]);
        Pool::open(
            &search,
            name,
            &OpenOptions::default(),
            &WriteOptions::default(),
        )
        .unwrap()
    }
    /// Opens the pool for reading.
    pub fn read(&self, name: &str) -> View {
        View::open(&Search::new([self.folder()]), name, &OpenOptions::default()).unwrap()
    }
    /// Neither our checker nor zdb finds an error.
    pub fn judge(&self, name: &str) {
        let faults = millpond_tests::recount::faults_of(self.read(name).inner());
        assert!(faults.is_empty(), "{name}: {}", faults.join("\n"));
        zdb::judge(self.folder(), name).unwrap().require(name);
    }
    /// Copies the images to `MILLPOND_KEEP` for inspection, if that is set.
    pub fn keep(&self, what: &str) {
        let Some(kept) = std::env::var_os("MILLPOND_KEEP") else {
            return;
        };
        let to = Path::new(&kept).join(what);
        std::fs::create_dir_all(&to).unwrap();
        for image in &self.images {
            millpond_tests::images::copy_sparse(image, &to.join(image.file_name().unwrap()))
                .unwrap();
        }
        println!("kept in {}", to.display());
    }
}
