//! Finds golden cases and unpacks their images.

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The source of golden cases.
#[derive(Debug, Clone)]
pub struct GoldenSet {
    /// The directory with one subdirectory per case.
    pub folder: PathBuf,
    /// Printed at the start of a run.
    pub description: String,
}

/// The present images of a case, unpacked in a directory of their own.
#[derive(Debug)]
pub struct Disks {
    /// A directory with only links to these images.
    pub folder: PathBuf,
    /// The images in the directory, in the order of the record.
    pub paths: Vec<PathBuf>,
}

impl Drop for Disks {
    fn drop(&mut self) {
        // It contains only links. If it cannot be removed, the next run replaces it.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The directory of the workspace.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Selects the large or the small golden set.
///
/// The large set is used if `MILLPOND_GOLDEN` names it or it is next to the workspace, otherwise the
/// repository's small one.
///
/// # Errors
/// If `MILLPOND_GOLDEN` does not name a directory: a typing error must not reduce the tests silently.
pub fn golden_set() -> Result<GoldenSet> {
    if let Some(named) = std::env::var_os("MILLPOND_GOLDEN") {
        let folder = PathBuf::from(named);
        ensure!(
            folder.is_dir(),
            "MILLPOND_GOLDEN names no folder: {}",
            folder.display()
        );
        return Ok(GoldenSet {
            folder,
            description: "the set that MILLPOND_GOLDEN names".into(),
        });
    }
    let beside = workspace().join("../shared/golden");
    if beside.is_dir() {
        return Ok(GoldenSet {
            folder: beside,
            description: "the large set".into(),
        });
    }
    Ok(GoldenSet {
        folder: workspace().join("testdata/golden"),
        description: "the small set of the repository (the large one is absent)".into(),
    })
}

/// The names of the cases in a directory, sorted.
///
/// # Errors
/// If the directory cannot be read.
pub fn cases(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        if path.join("CASE.json").exists() || path.join("CASE.json.zst").exists() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Reads a file of a case, and decompresses it if only `NAME.zst` exists.
///
/// # Errors
/// If neither exists or the compressed file is damaged.
pub fn read_file(case: &Path, name: &str) -> Result<Vec<u8>> {
    let plain = case.join(name);
    if plain.exists() {
        return std::fs::read(&plain).with_context(|| plain.display().to_string());
    }
    let packed = case.join(format!("{name}.zst"));
    let mut bytes = Vec::new();
    unpack(&packed, |chunk| {
        bytes.extend_from_slice(chunk);
        ensure!(
            bytes.len() < RECORD_BYTES_MAX,
            "{} is too large",
            packed.display()
        );
        Ok(())
    })?;
    Ok(bytes)
}

/// Unpacks an image into the cache (`target/golden-cache`) unless it is there already.
///
/// The cache is indexed by digest, so a changed image is unpacked again.
///
/// # Errors
/// If the image is damaged or its digest differs from the recorded one.
pub fn unpacked(packed: &Path, sha256: &str, size_bytes: u64) -> Result<PathBuf> {
    let cache = cache_folder();
    std::fs::create_dir_all(&cache)?;
    let path = cache.join(format!("{sha256}.img"));
    if path.metadata().is_ok_and(|found| found.len() == size_bytes) {
        return Ok(path);
    }
    // Each thread and process writes its own file. The last rename wins; the content is the same.
    let unfinished = cache.join(format!("{sha256}.{}.new", unique()));
    let outcome = unpack_sparse(packed, &unfinished, sha256, size_bytes);
    if outcome.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    outcome?;
    std::fs::rename(&unfinished, &path)?;
    Ok(path)
}

/// Links the unpacked images into a new directory, under the names of a case's disks.
///
/// # Errors
/// If the directory cannot be created.
pub fn gather(label: &str, images: &[(String, PathBuf)]) -> Result<Disks> {
    let folder = cache_folder().join(format!("run-{label}-{}", unique()));
    std::fs::create_dir_all(&folder)?;
    let mut disks = Disks {
        folder: folder.clone(),
        paths: Vec::new(),
    };
    for (name, image) in images {
        let path = folder.join(name);
        std::fs::hard_link(image, &path).with_context(|| path.display().to_string())?;
        disks.paths.push(path);
    }
    Ok(disks)
}

/// Copies an image and leaves out zeros.
///
/// # Errors
/// If files cannot be read or written.
pub fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let mut file = File::open(from).with_context(|| from.display().to_string())?;
    let mut writer = SparseWriter::create(to)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        writer.push(&buffer[..count])?;
    }
    writer.finish().map(|_| ())
}

/// The cache of unpacked images.
pub fn cache_folder() -> PathBuf {
    workspace().join("target/golden-cache")
}

fn unpack_sparse(packed: &Path, to: &Path, sha256: &str, size_bytes: u64) -> Result<()> {
    let mut writer = SparseWriter::create(to)?;
    unpack(packed, |chunk| {
        writer.push(chunk)?;
        ensure!(
            writer.length <= size_bytes,
            "{} is longer than recorded",
            packed.display()
        );
        Ok(())
    })?;
    let (length, found) = writer.finish()?;
    ensure!(
        length == size_bytes,
        "{} is shorter than recorded",
        packed.display()
    );
    ensure!(
        found == sha256,
        "{} has digest {found}, not {sha256}",
        packed.display()
    );
    Ok(())
}

/// Unpacks a bzip2 file into the cache, under the digest of the packed file.
///
/// # Errors
/// If the file is damaged.
pub fn unpacked_bzip2(packed: &Path) -> Result<PathBuf> {
    let bytes = std::fs::read(packed).with_context(|| packed.display().to_string())?;
    let cache = cache_folder();
    std::fs::create_dir_all(&cache)?;
    let path = cache.join(format!("{}.from-bzip2.img", hex(&Sha256::digest(&bytes))));
    if path.exists() {
        return Ok(path);
    }
    let unfinished = cache.join(format!("{}.new", unique()));
    let mut writer = SparseWriter::create(&unfinished)?;
    let mut decoder = bzip2_rs::DecoderReader::new(bytes.as_slice());
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = decoder
            .read(&mut buffer)
            .with_context(|| packed.display().to_string())?;
        if count == 0 {
            break;
        }
        writer.push(&buffer[..count])?;
    }
    writer.finish()?;
    std::fs::rename(&unfinished, &path)?;
    Ok(path)
}

/// Writes a sparse file, and computes the digest of its content.
pub(crate) struct SparseWriter {
    file: File,
    digest: Sha256,
    length: u64,
}

impl SparseWriter {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self {
            file,
            digest: Sha256::new(),
            length: 0,
        })
    }

    pub(crate) fn push(&mut self, chunk: &[u8]) -> Result<()> {
        self.digest.update(chunk);
        for piece in chunk.chunks(HOLE_BYTES) {
            if piece.iter().any(|byte| *byte != 0) {
                self.file.seek(SeekFrom::Start(self.length))?;
                self.file.write_all(piece)?;
            }
            self.length += piece.len() as u64;
        }
        Ok(())
    }

    /// Returns the length in bytes and the digest.
    pub(crate) fn finish(self) -> Result<(u64, String)> {
        self.file.set_len(self.length)?;
        Ok((self.length, hex(&self.digest.finalize())))
    }
}

/// Decompresses a zstd file and passes the content to `each` in pieces.
fn unpack(packed: &Path, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut file = File::open(packed).with_context(|| packed.display().to_string())?;
    let mut decoder = zstd_safe::DCtx::create();
    decoder
        .set_parameter(zstd_safe::DParameter::WindowLogMax(WINDOW_LOG_MAX))
        .map_err(|code| anyhow::anyhow!("zstd: {}", zstd_safe::get_error_name(code)))?;
    let mut from = vec![0; 1 << 17];
    let mut into = vec![0; 1 << 20];
    let mut left = 0;
    loop {
        let count = file.read(&mut from)?;
        if count == 0 {
            break;
        }
        let mut input = zstd_safe::InBuffer::around(&from[..count]);
        loop {
            let mut output = zstd_safe::OutBuffer::around(into.as_mut_slice());
            left = decoder
                .decompress_stream(&mut output, &mut input)
                .map_err(|code| {
                    anyhow::anyhow!("{}: {}", packed.display(), zstd_safe::get_error_name(code))
                })?;
            let filled = output.pos();
            each(&into[..filled])?;
            // After the end of a frame, another call would expect the next frame.
            if input.pos == count && (filled < into.len() || left == 0) {
                break;
            }
        }
    }
    if left != 0 {
        bail!("{} ends too early", packed.display());
    }
    Ok(())
}

/// Formats bytes as lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unique() -> String {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{}-{number}", std::process::id())
}

/// Runs of zeros of this length (and alignment) become holes.
pub(crate) const HOLE_BYTES: usize = 4096;
/// The frames are compressed with `--long=27`.
const WINDOW_LOG_MAX: u32 = 27;
const RECORD_BYTES_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest image of the repository, unpacked without the cache.
    fn smallest() -> (PathBuf, String, u64) {
        let case = workspace().join("testdata/golden/bclone");
        let record = crate::record::load(&case).unwrap();
        let image = &record.images[0];
        (
            case.join(&image.file),
            image.sha256.clone(),
            image.size_bytes,
        )
    }

    #[test]
    fn an_image_unpacks_to_its_recorded_digest_and_stays_sparse() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let (packed, sha256, size_bytes) = smallest();
        let to = folder.path().join("d0.img");
        unpack_sparse(&packed, &to, &sha256, size_bytes).unwrap();
        let found = to.metadata().unwrap();
        assert_eq!(found.len(), size_bytes);
        assert!(
            found.blocks() * 512 < size_bytes / 4,
            "{} bytes are taken",
            found.blocks() * 512
        );
    }

    #[test]
    fn a_wrong_digest_a_wrong_size_and_a_torn_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (packed, sha256, size_bytes) = smallest();
        let to = folder.path().join("d0.img");
        assert!(unpack_sparse(&packed, &to, &"0".repeat(64), size_bytes).is_err());
        assert!(unpack_sparse(&packed, &to, &sha256, size_bytes - 1).is_err());
        assert!(unpack_sparse(&packed, &to, &sha256, size_bytes + 1).is_err());
        let bytes = std::fs::read(&packed).unwrap();
        let torn = folder.path().join("torn.zst");
        std::fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();
        assert!(unpack_sparse(&torn, &to, &sha256, size_bytes).is_err());
    }
}
