//! Statistics of a cache.

/// Look-ups by what they found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lookups {
    /// Those that found their value.
    pub hits: u64,
    /// Those of metadata.
    pub metadata_hits: u64,
    /// Those that found another caller reading their value, and waited for it.
    pub io_hits: u64,
    /// Those of metadata.
    pub metadata_io_hits: u64,
    /// Those that found nothing.
    pub misses: u64,
    /// Those of metadata.
    pub metadata_misses: u64,
}

impl Lookups {
    /// All look-ups.
    #[must_use]
    pub fn count(&self) -> u64 {
        let found = self.hits.saturating_add(self.io_hits);
        found.saturating_add(self.misses)
    }
}

/// Statistics of a cache. Counts are since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStatistics {
    /// The most that all values may weigh, in bytes.
    pub limit_bytes: u64,
    /// Look-ups of readers.
    pub demand: Lookups,
    /// Look-ups of prefetchers.
    pub prefetch: Lookups,
    /// Look-ups of readers that found a recent value.
    pub recent_hits: u64,
    /// Look-ups of readers that found a frequent value.
    pub frequent_hits: u64,
    /// Look-ups of readers that found a value and do not keep it.
    pub transient_hits: u64,
    /// Inserted values that had been evicted a short while ago.
    pub ghost_hits: u64,
    /// Those that had been frequent.
    pub frequent_ghost_hits: u64,
    /// Weight of all values, in bytes.
    pub weight_bytes: u64,
    /// Weight of the expanded forms, in bytes. The rest of `weight_bytes` are compact and only forms.
    pub expanded_bytes: u64,
    /// Size of the content of all values, expanded or not, in bytes.
    pub content_bytes: u64,
    /// Weight of the content of files and volumes that was requested, in bytes.
    pub data_bytes: u64,
    /// Weight of the metadata that was requested, in bytes.
    pub metadata_bytes: u64,
    /// Weight of the frequent values, in bytes.
    pub frequent_bytes: u64,
    /// Weight of the evicted values whose ghosts are kept, in bytes. They take no such memory.
    pub ghost_bytes: u64,
    /// Weight of those that had been frequent, in bytes.
    pub frequent_ghost_bytes: u64,
    /// Number of values.
    pub entries: u64,
    /// Weight of the speculative entries, in bytes: those not requested yet, and those whose rest will be.
    pub speculative_bytes: u64,
    /// Prefetched entries that were requested.
    pub speculative_used: u64,
    /// Values evicted for others, or because the limit fell.
    pub evicted: u64,
    /// Weight of those, in bytes.
    pub evicted_bytes: u64,
}

impl Lookups {
    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.metadata_hits += other.metadata_hits;
        self.io_hits += other.io_hits;
        self.metadata_io_hits += other.metadata_io_hits;
        self.misses += other.misses;
        self.metadata_misses += other.metadata_misses;
    }
}

impl CacheStatistics {
    /// Adds those of another shard.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self {
            limit_bytes: _,
            demand,
            prefetch,
            recent_hits,
            frequent_hits,
            transient_hits,
            ghost_hits,
            frequent_ghost_hits,
            weight_bytes,
            expanded_bytes,
            content_bytes,
            data_bytes,
            metadata_bytes,
            frequent_bytes,
            ghost_bytes,
            frequent_ghost_bytes,
            entries,
            speculative_bytes,
            speculative_used,
            evicted,
            evicted_bytes,
        } = other;
        self.demand.add(demand);
        self.prefetch.add(prefetch);
        self.recent_hits += recent_hits;
        self.frequent_hits += frequent_hits;
        self.transient_hits += transient_hits;
        self.ghost_hits += ghost_hits;
        self.frequent_ghost_hits += frequent_ghost_hits;
        self.weight_bytes += weight_bytes;
        self.expanded_bytes += expanded_bytes;
        self.content_bytes += content_bytes;
        self.data_bytes += data_bytes;
        self.metadata_bytes += metadata_bytes;
        self.frequent_bytes += frequent_bytes;
        self.ghost_bytes += ghost_bytes;
        self.frequent_ghost_bytes += frequent_ghost_bytes;
        self.entries += entries;
        self.speculative_bytes += speculative_bytes;
        self.speculative_used += speculative_used;
        self.evicted += evicted;
        self.evicted_bytes += evicted_bytes;
    }
}
