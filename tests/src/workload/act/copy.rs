//! Copies between files, which share blocks where they can.

use super::*;

/// The most blocks of one step, each of which is a transaction.
const BLOCKS_MAX: u64 = 60;

/// A file that is copied from.
struct Origin {
    node: millpond_engine::Node,
    /// Its number in the model.
    id: u64,
    /// Whether it is in the dataset that changes.
    is_own: bool,
    bytes: Arc<Vec<u8>>,
    what: String,
}

impl Life {
    /// Copies blocks of a file of any dataset or snapshot into a file of `dataset`, or into a new one.
    pub(super) fn copy_step(
        &mut self,
        pool: &Pool,
        files: &Arc<FileSystem>,
        tree: &mut Tree,
        dataset: &str,
    ) -> Outcome {
        let caller = Caller::root();
        if !self.syncs_seldom && self.rng.below(2) == 0 {
            // Only what is on stable storage is shared.
            pool.sync()?;
        }
        let Some(mut origin) = self.origin(pool, files, tree, dataset)? else {
            return Ok("nothing to copy".to_owned());
        };
        let plain: Vec<(Arc<Path>, Vec<u8>, u64)> = (tree.survey().1.iter())
            .filter(|named| named.is_file)
            .map(|named| (Arc::clone(&named.path), named.name.to_vec(), named.id))
            .collect();
        let is_new = self.rng.below(2) == 0 || plain.is_empty();
        let (node, id, to) = if is_new {
            let name = self.name("n");
            let root = files.root()?;
            let mode = NewMode::exactly(0o640);
            let (node, _) = files.create(&caller, &root, name.as_bytes(), mode, true)?;
            let made = super::Node::new(Kind::File(Arc::default()), 0o640);
            let id = self.made(dataset, tree, 0, name.as_bytes(), made);
            (node, id, name)
        } else {
            let (path, name, id) = self.rng.pick(&plain).cloned().unwrap_or_default();
            let node = walk(files, &path)?.lookup(&name)?;
            (node, id, String::from_utf8_lossy(&name).into_owned())
        };
        let block = origin.node.block_bytes().max(512);
        let blocks = (origin.bytes.len() as u64).div_ceil(block);
        let first = match self.rng.below(3) {
            0 => self.rng.below(blocks.max(1) as usize) as u64,
            _ => 0,
        };
        // Sometimes to another place.
        let shift = match self.rng.below(4) {
            0 => self.rng.below(4) as u64 * block,
            1 => self.rng.below(2 * block as usize) as u64,
            _ => 0,
        };
        let count = match self.rng.below(3) {
            0 => 1 + self.rng.below(8) as u64,
            _ => blocks,
        };
        let last = first.saturating_add(count.min(BLOCKS_MAX)).min(blocks);
        let mut copied = 0;
        for at in (first..last).map(|block_id| block_id * block) {
            let (from, to) = (at, at - first * block + shift);
            if to + block > self.file_bytes_max as u64 {
                break;
            }
            let done = files.copy_range(&caller, (&origin.node, from), (&node, to), block);
            let done = match done {
                // The same file, and ranges that overlap.
                Err(FileError::Invalid { .. }) => break,
                done => done? as usize,
            };
            let (from, at) = (from as usize, to as usize);
            let bytes = Arc::new(origin.bytes[from..from + done].to_vec());
            copied += done;
            self.did(dataset, tree, Effect::Bytes { id, at, bytes });
            // A file that is copied into itself has what was copied before.
            if origin.is_own
                && origin.id == id
                && let Kind::File(bytes) = &tree.nodes[&id].kind
            {
                origin.bytes = Arc::clone(bytes);
            }
        }
        let what = origin.what;
        Ok(format!(
            "{dataset}: copy {copied} of {what} from block {first} of {block} to {to}, {shift} further"
        ))
    }

    fn origin(
        &mut self,
        pool: &Pool,
        files: &Arc<FileSystem>,
        tree: &Tree,
        dataset: &str,
    ) -> Result<Option<Origin>, Error> {
        let names: Vec<String> = self.model.heads.keys().cloned().collect();
        let other = self.rng.pick(&names).cloned().unwrap_or_default();
        let kind = self.rng.below(5);
        let snapshots = self.model.heads[&other].snapshots.clone();
        if kind == 0
            && let Some(snapshot) = self.rng.pick(&snapshots).cloned()
            && let Content::Files(old) = &snapshot.content
        {
            let name = format!("{other}@{}", snapshot.name);
            let view = pool.committed()?;
            let old_files = view.dataset(&name)?.file_system()?;
            return self.origin_in(&old_files, old, &name);
        }
        if kind < 3
            && other != dataset
            && let Content::Files(theirs) = self.model.heads[&other].content.clone()
        {
            let their_files = self.files(pool, &other)?;
            return self.origin_in(&their_files, &theirs, &other);
        }
        let own = self.origin_in(files, tree, dataset)?;
        Ok(own.map(|origin| Origin {
            is_own: true,
            ..origin
        }))
    }

    fn origin_in(
        &mut self,
        files: &Arc<FileSystem>,
        tree: &Tree,
        dataset: &str,
    ) -> Result<Option<Origin>, Error> {
        let (_, all) = tree.survey();
        let plain: Vec<_> = all.iter().filter(|named| named.is_file).collect();
        let Some(named) = self.rng.pick(&plain) else {
            return Ok(None);
        };
        let node = walk(files, &named.path)?.lookup(named.name)?;
        let Kind::File(bytes) = &tree.nodes[&named.id].kind else {
            return Ok(None);
        };
        Ok(Some(Origin {
            node,
            id: named.id,
            is_own: false,
            bytes: Arc::clone(bytes),
            what: format!("{dataset}/{}", String::from_utf8_lossy(named.name)),
        }))
    }
}
