//! Statistics of the cache.

use millpond_control::{ArcInfo, ArcLookups, ArcMemory};
use millpond_engine::{BlockCache, CacheLookups};

/// Statistics of the cache that all pools of this process share. Does no I/O.
#[must_use]
pub fn arc_info() -> ArcInfo {
    of(&BlockCache::of_process())
}

fn of(cache: &BlockCache) -> ArcInfo {
    let stats = cache.statistics();
    let l2 = cache.cache_device_stats();
    let (c_min_bytes, c_max_bytes) = cache.limit_range_bytes();
    let ([demand_data, demand_metadata], [prefetch_data, prefetch_metadata]) =
        (by_class(&stats.demand), by_class(&stats.prefetch));
    let used_bytes = stats.data_bytes.saturating_add(stats.metadata_bytes);
    ArcInfo {
        demand_data,
        demand_metadata,
        prefetch_data,
        prefetch_metadata,
        mru_hits: stats.recent_hits,
        mfu_hits: stats.frequent_hits,
        mru_ghost_hits: stats.ghost_hits.saturating_sub(stats.frequent_ghost_hits),
        mfu_ghost_hits: stats.frequent_ghost_hits,
        uncached_hits: stats.transient_hits,
        prefetch_used: stats.speculative_used,
        evictions: stats.evicted,
        evicted_bytes: stats.evicted_bytes,
        blocks: stats.entries,
        size_bytes: stats.weight_bytes,
        compressed_bytes: stats.weight_bytes.saturating_sub(stats.expanded_bytes),
        uncompressed_bytes: stats.content_bytes,
        overhead_bytes: stats.expanded_bytes,
        c_bytes: stats.limit_bytes,
        c_min_bytes,
        c_max_bytes,
        data_bytes: stats.data_bytes,
        metadata_bytes: stats.metadata_bytes,
        mru_bytes: used_bytes.saturating_sub(stats.frequent_bytes),
        mfu_bytes: stats.frequent_bytes,
        mru_ghost_bytes: stats.ghost_bytes.saturating_sub(stats.frequent_ghost_bytes),
        mfu_ghost_bytes: stats.frequent_ghost_bytes,
        prefetch_bytes: stats.speculative_bytes,
        l2_hits: l2.hits,
        l2_misses: l2.misses,
        l2_checksum_errors: l2.checksum_errors,
        l2_io_errors: l2.read_errors.saturating_add(l2.write_errors),
        l2_read_bytes: l2.read_bytes,
        l2_written_bytes: l2.write_bytes,
        l2_bytes: l2.stored_bytes,
        l2_allocated_bytes: l2.used_bytes,
        l2_mru_bytes: l2.by_kind.mru,
        l2_mfu_bytes: l2.by_kind.mfu,
        l2_data_bytes: l2.by_kind.data,
        l2_metadata_bytes: l2.by_kind.metadata,
        l2_index_bytes: l2.index_bytes,
        memory: cache.spare_memory().map(|spare| ArcMemory {
            free_bytes: spare.free_bytes,
            reserve_bytes: spare.reserve_bytes,
            may_grow: spare.may_grow,
        }),
    }
}

/// Look-ups of data, then of metadata.
fn by_class(all: &CacheLookups) -> [ArcLookups; 2] {
    let metadata = ArcLookups {
        hits: all.metadata_hits,
        io_hits: all.metadata_io_hits,
        misses: all.metadata_misses,
    };
    let data = ArcLookups {
        hits: all.hits.saturating_sub(metadata.hits),
        io_hits: all.io_hits.saturating_sub(metadata.io_hits),
        misses: all.misses.saturating_sub(metadata.misses),
    };
    [data, metadata]
}
