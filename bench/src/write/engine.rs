//! Millpond's library on a mirror of two image files.

use super::work::Subject;
use anyhow::{Context, Result};
use millpond_engine::{
    Caller, DirEntryRef, FileSystem, NewMode, Node, OpenOptions, Pool, PoolBuilder, PropertyValue,
    RenameMode, Search, WriteAt, WriteOptions,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub struct Engine {
    folder: PathBuf,
    pool: Option<Pool>,
    files: Option<Arc<FileSystem>>,
    root: Option<Node>,
    open: Option<(Arc<FileSystem>, Node)>,
}

/// The cache, in bytes, as the page says.
const CACHE_BYTES: u64 = 256 << 20;
pub const IMAGE_BYTES: u64 = 4 << 30;

/// Creates empty images in `folder`.
pub fn images(folder: &Path, count: usize) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    let paths = (0..count).map(|number| folder.join(format!("d{number}.img")));
    paths
        .map(|path| {
            std::fs::File::create(&path)?.set_len(IMAGE_BYTES)?;
            Ok(path)
        })
        .collect()
}

impl Engine {
    pub fn make(scratch: &Path, compressed: bool) -> Result<Self> {
        let folder = scratch.join("millpond");
        let images = images(&folder, 2)?;
        let compression = if compressed { "lz4" } else { "off" };
        let pool = PoolBuilder::new("bench")
            .cache_bytes(CACHE_BYTES)
            .mirror(&images)
            .root_property("compression", compression)
            .create()?;
        for (name, record) in [("bench/files", 128 << 10), ("bench/records", 4096)] {
            let records = ("recordsize".to_owned(), PropertyValue::Number(record));
            pool.datasets().create_filesystem(name, &[records])?;
        }
        let mut engine = Self {
            folder,
            pool: Some(pool),
            files: None,
            root: None,
            open: None,
        };
        engine.attach()?;
        Ok(engine)
    }

    fn attach(&mut self) -> Result<()> {
        let files = self.pool()?.file_system("bench/files")?;
        self.root = Some(files.root()?);
        self.files = Some(files);
        Ok(())
    }
    fn pool(&self) -> Result<&Pool> {
        self.pool.as_ref().context("the pool is closed")
    }
    fn place(&self) -> Result<(&Arc<FileSystem>, &Node)> {
        let files = self.files.as_ref().context("closed")?;
        Ok((files, self.root.as_ref().context("closed")?))
    }
    fn close(&mut self) -> Result<()> {
        (self.open, self.root, self.files) = (None, None, None);
        self.pool.take().context("closed")?.export()?;
        Ok(())
    }
}

impl Subject for Engine {
    fn open(&mut self, name: &str, small_records: bool) -> Result<()> {
        let files = match small_records {
            true => self.pool()?.file_system("bench/records")?,
            false => Arc::clone(self.place()?.0),
        };
        let root = files.root()?;
        let mode = NewMode::exactly(0o644);
        let (node, _) = files.create(&Caller::root(), &root, name.as_bytes(), mode, false)?;
        self.open = Some((files, node));
        Ok(())
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (files, node) = self.open.as_ref().context("no file is open")?;
        files.write(&Caller::root(), node, WriteAt::Offset(offset), bytes)?;
        Ok(())
    }
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let (_, node) = self.open.as_ref().context("no file is open")?;
        anyhow::ensure!(node.read(offset, bytes)? == bytes.len());
        Ok(())
    }
    fn create(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let ((files, root), caller) = (self.place()?, Caller::root());
        let mode = NewMode::exactly(0o644);
        let (node, _) = files.create(&caller, root, name.as_bytes(), mode, true)?;
        files.write(&caller, &node, WriteAt::Offset(0), content)?;
        Ok(())
    }
    fn stat(&mut self, name: &str) -> Result<u64> {
        let (_, root) = self.place()?;
        Ok(root.lookup(name.as_bytes())?.size_bytes())
    }
    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let ((files, root), caller) = (self.place()?, Caller::root());
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let from = DirEntryRef {
            directory: root,
            name: from,
        };
        let to = DirEntryRef {
            directory: root,
            name: to,
        };
        Ok(files.rename(&caller, from, to, RenameMode::Replace)?)
    }
    fn unlink(&mut self, name: &str) -> Result<()> {
        let (files, root) = self.place()?;
        Ok(files.unlink(root, name.as_bytes())?)
    }
    fn snapshot(&mut self, name: &str) -> Result<bool> {
        let name = format!("bench/files@{name}");
        self.pool()?.datasets().snapshot(&[&name], &[])?;
        Ok(true)
    }
    fn sync(&mut self) -> Result<()> {
        Ok(self.pool()?.sync()?)
    }
    fn reopen(&mut self) -> Result<()> {
        self.close()?;
        let search = Search::new([&self.folder]);
        let options = OpenOptions {
            cache_bytes: Some(CACHE_BYTES),
            ..OpenOptions::default()
        };
        let writing = WriteOptions::default();
        self.pool = Some(Pool::open(&search, "bench", &options, &writing)?);
        self.attach()
    }
    fn finish(mut self: Box<Self>) -> Result<()> {
        self.close()?;
        std::fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}
