//! Statistics of the cache that all pools of a process share.

/// Look-ups of one kind since the process started, by what they found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ArcLookups {
    /// The block.
    pub hits: u64,
    /// Another caller that was reading the block.
    pub io_hits: u64,
    /// Nothing: the block was read from the devices.
    pub misses: u64,
}

impl ArcLookups {
    /// All of them.
    #[must_use]
    pub fn count(&self) -> u64 {
        let found = self.hits.saturating_add(self.io_hits);
        found.saturating_add(self.misses)
    }

    /// Those of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            hits: self.hits.saturating_add(other.hits),
            io_hits: self.io_hits.saturating_add(other.io_hits),
            misses: self.misses.saturating_add(other.misses),
        }
    }
}

/// The memory that the machine, or a control group, leaves to the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ArcMemory {
    /// What programs could still have, in bytes.
    pub free_bytes: u64,
    /// What the cache leaves of it to others, in bytes.
    pub reserve_bytes: u64,
    /// Whether the cache may grow now.
    pub may_grow: bool,
}

/// Statistics of the adaptive replacement cache. Counts are since the process started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ArcInfo {
    /// Look-ups of data by readers.
    pub demand_data: ArcLookups,
    /// Look-ups of metadata by readers.
    pub demand_metadata: ArcLookups,
    /// Look-ups of data by prefetch.
    pub prefetch_data: ArcLookups,
    /// Look-ups of metadata by prefetch.
    pub prefetch_metadata: ArcLookups,
    /// Hits of readers on blocks that were used once.
    pub mru_hits: u64,
    /// Hits of readers on blocks that were used more often.
    pub mfu_hits: u64,
    /// Blocks read again soon after they were evicted, used once before.
    pub mru_ghost_hits: u64,
    /// Blocks read again soon after they were evicted, used more often before.
    pub mfu_ghost_hits: u64,
    /// Hits of readers whose dataset keeps no such blocks (`primarycache`).
    pub uncached_hits: u64,
    /// Prefetched blocks that a reader used.
    pub prefetch_used: u64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Weight of those, in bytes.
    pub evicted_bytes: u64,
    /// Blocks in the cache.
    pub blocks: u64,
    /// Memory of all blocks, in bytes.
    pub size_bytes: u64,
    /// The part of that which is blocks as stored on the devices, in bytes.
    pub compressed_bytes: u64,
    /// What all blocks would take decompressed, in bytes.
    pub uncompressed_bytes: u64,
    /// The part of `size_bytes` which is decompressed content of blocks that are there as stored, too, in bytes.
    pub overhead_bytes: u64,
    /// What they may take now, in bytes.
    pub c_bytes: u64,
    /// The least that `c_bytes` falls to, in bytes.
    pub c_min_bytes: u64,
    /// The most that `c_bytes` rises to, in bytes.
    pub c_max_bytes: u64,
    /// Memory of data that was requested, in bytes.
    pub data_bytes: u64,
    /// Memory of metadata that was requested, in bytes.
    pub metadata_bytes: u64,
    /// Memory of blocks used once, in bytes.
    pub mru_bytes: u64,
    /// Memory of blocks used more often, in bytes.
    pub mfu_bytes: u64,
    /// Weight of the evicted blocks of `mru_bytes` that are remembered, in bytes.
    pub mru_ghost_bytes: u64,
    /// Weight of the evicted blocks of `mfu_bytes` that are remembered, in bytes.
    pub mfu_ghost_bytes: u64,
    /// Memory of prefetched blocks that no reader has finished, in bytes.
    pub prefetch_bytes: u64,
    /// Blocks that were not cached and found on a cache device.
    pub l2_hits: u64,
    /// Blocks that were not cached, of pools with cache devices, and not found there.
    pub l2_misses: u64,
    /// Copies of blocks on cache devices whose bytes were wrong; the pool was read instead.
    pub l2_checksum_errors: u64,
    /// Requests to cache devices that failed.
    pub l2_io_errors: u64,
    /// Bytes read from cache devices.
    pub l2_read_bytes: u64,
    /// Bytes written to cache devices.
    pub l2_written_bytes: u64,
    /// Bytes of the blocks that can be found on cache devices, as stored.
    pub l2_bytes: u64,
    /// Bytes in use on cache devices.
    pub l2_allocated_bytes: u64,
    /// Bytes in use there by blocks that had been used once.
    pub l2_mru_bytes: u64,
    /// Bytes in use there by blocks that had been used more often.
    pub l2_mfu_bytes: u64,
    /// Bytes in use there by data.
    pub l2_data_bytes: u64,
    /// Bytes in use there by metadata.
    pub l2_metadata_bytes: u64,
    /// Memory of the index of cache devices, in bytes.
    pub l2_index_bytes: u64,
    /// `None` where the system does not tell, or the size of the cache is fixed.
    pub memory: Option<ArcMemory>,
}

impl ArcInfo {
    /// Look-ups of readers.
    #[must_use]
    pub fn demand(&self) -> ArcLookups {
        self.demand_data.and(&self.demand_metadata)
    }
    /// Look-ups of prefetch.
    #[must_use]
    pub fn prefetch(&self) -> ArcLookups {
        self.prefetch_data.and(&self.prefetch_metadata)
    }
    /// Look-ups of metadata.
    #[must_use]
    pub fn metadata(&self) -> ArcLookups {
        self.demand_metadata.and(&self.prefetch_metadata)
    }
    /// All look-ups.
    #[must_use]
    pub fn all(&self) -> ArcLookups {
        self.demand().and(&self.prefetch())
    }
}
