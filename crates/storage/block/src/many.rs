//! Reading many blocks at once.

use crate::{Block, BlockAddress, BlockError, BlockStore};
use millpond_crypt::DatasetKey;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Endian};

impl BlockStore {
    /// The contents behind pointers, in their order, as [`BlockStore::read`] gives each of them. Everything
    /// happens on the calling thread, but the devices get the reads of several blocks at once: of
    /// neighbours and of blocks on different devices it is better than one `read` after the other.
    /// What was read is in the cache afterwards.
    ///
    /// All contents are in memory at once: as many times `lsize`, at most 16 MiB each.
    ///
    /// # Errors
    /// Of each: as [`BlockStore::read`].
    pub fn read_batch(
        &self,
        wanted: &[(BlockPointer, BlockAddress)],
        key: Option<&Arc<DatasetKey>>,
    ) -> Vec<Result<Arc<Block>, BlockError>> {
        let each = wanted.iter();
        each.map(|(pointer, address)| self.read(pointer, *address, key))
            .collect()
    }

    /// The contents behind pointers, each the caller's own and treated by `treat`, which also gets the
    /// byte order; in their order. Blocks are read by the threads that write. What the
    /// cache does not have is not kept: it is read to be overwritten.
    ///
    /// All contents are in memory at once: as many times `lsize`, at most 16 MiB each.
    ///
    /// # Errors
    /// Of each: as [`BlockStore::read`], or what `treat` says.
    pub fn read_many<T, E>(
        self: &Arc<Self>,
        wanted: Vec<(BlockPointer, BlockAddress, T)>,
        treat: impl Fn(&mut Vec<u8>, Endian, T) -> Result<(), E> + Send + Sync + 'static,
    ) -> Vec<Result<Result<Vec<u8>, E>, BlockError>>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let treat = Arc::new(treat);
        let topology = self.topology();
        let pools = self.writing.pools(&topology);
        let tries = {
            let (store, treat) = (Arc::clone(self), Arc::clone(&treat));
            pools.queues.map(
                wanted,
                move |(pointer, address, what): (_, _, T)| match store.read_own(&pointer, address) {
                    Ok((mut content, endian)) => {
                        Ok(treat(&mut content, endian, what).map(|()| content))
                    }
                    Err(_) => Err(Box::new((pointer, address, what))),
                },
            )
        };
        let results = tries.into_iter().map(|outcome| match outcome {
            Ok(treated) => Ok(treated),
            // Again on this thread, which may be patient and wants to know why.
            Err(failed) => {
                let (pointer, address, what) = *failed;
                let block = self.read(&pointer, address, None)?;
                let mut content = block.bytes.to_vec();
                Ok(treat(&mut content, block.endian, what).map(|()| content))
            }
        });
        results.collect()
    }

    fn read_own(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
    ) -> Result<(Vec<u8>, Endian), BlockError> {
        let block = match self.cached(pointer) {
            Some(block) => block,
            None => Arc::new(self.read_uncached(pointer, address, None)?),
        };
        let endian = block.endian;
        let bytes = match Arc::try_unwrap(block) {
            Ok(block) => Arc::try_unwrap(block.bytes).unwrap_or_else(|bytes| bytes.to_vec()),
            Err(block) => block.bytes.to_vec(),
        };
        Ok((bytes, endian))
    }
}
