//! Metrics of the cache that all pools share. The names after `millpond_arc_` are those of OpenZFS's `arcstats`
//! where it has the number.

use super::collect::{Name, counter, gauge};
use super::page::Page;
use millpond_engine::BlockCache;

const HITS: Name = counter("millpond_arc_hits_total", "Blocks found in the cache.");
const MISSES: Name = counter("millpond_arc_misses_total", "Blocks not in the cache.");
const METADATA_HITS: Name = counter(
    "millpond_arc_demand_metadata_hits_total",
    "Blocks of metadata found in the cache.",
);
const METADATA_MISSES: Name = counter(
    "millpond_arc_demand_metadata_misses_total",
    "Blocks of metadata not in the cache.",
);
const MRU_HITS: Name = counter(
    "millpond_arc_mru_hits_total",
    "Blocks found that had been used once.",
);
const MFU_HITS: Name = counter(
    "millpond_arc_mfu_hits_total",
    "Blocks found that had been used more than once.",
);
const MRU_GHOST_HITS: Name = counter(
    "millpond_arc_mru_ghost_hits_total",
    "Blocks read again soon after they were evicted, used once before.",
);
const MFU_GHOST_HITS: Name = counter(
    "millpond_arc_mfu_ghost_hits_total",
    "Blocks read again soon after they were evicted, used more than once before.",
);
const PREFETCHED: Name = counter(
    "millpond_arc_prefetch_used_total",
    "Prefetched blocks that were read.",
);
const EVICTED: Name = counter(
    "millpond_arc_evicted_bytes_total",
    "Blocks evicted, in bytes.",
);
const SIZE: Name = gauge("millpond_arc_size_bytes", "Memory that cached blocks take.");
const TARGET: Name = gauge("millpond_arc_c_bytes", "Memory that they may take now.");
const MIN: Name = gauge(
    "millpond_arc_c_min_bytes",
    "The least that they may take when memory is short.",
);
const MAX: Name = gauge(
    "millpond_arc_c_max_bytes",
    "The most that they may ever take.",
);
const DATA: Name = gauge("millpond_arc_data_size_bytes", "Memory of cached data.");
const METADATA: Name = gauge(
    "millpond_arc_metadata_size_bytes",
    "Memory of cached metadata.",
);
const MFU: Name = gauge(
    "millpond_arc_mfu_size_bytes",
    "Memory of blocks used more than once.",
);
const UNUSED: Name = gauge(
    "millpond_arc_prefetch_size_bytes",
    "Memory of prefetched blocks that were not read yet.",
);
const BLOCKS: Name = gauge("millpond_arc_blocks", "Blocks in the cache.");

pub(super) fn add(page: &mut Page, cache: &BlockCache) {
    let stats = cache.statistics();
    let (min, max) = cache.limit_range_bytes();
    for (name, value) in [
        (HITS, stats.hits),
        (MISSES, stats.misses),
        (METADATA_HITS, stats.metadata_hits),
        (METADATA_MISSES, stats.metadata_misses),
        (MRU_HITS, stats.recent_hits),
        (MFU_HITS, stats.frequent_hits),
        (MRU_GHOST_HITS, stats.ghost_hits - stats.frequent_ghost_hits),
        (MFU_GHOST_HITS, stats.frequent_ghost_hits),
        (PREFETCHED, stats.speculative_used),
        (EVICTED, stats.evicted_bytes),
        (SIZE, stats.weight_bytes),
        (TARGET, stats.limit_bytes),
        (MIN, min),
        (MAX, max),
        (DATA, stats.data_bytes),
        (METADATA, stats.metadata_bytes),
        (MFU, stats.frequent_bytes),
        (UNUSED, stats.speculative_bytes),
        (BLOCKS, stats.entries),
    ] {
        page.add(name, &[], value);
    }
}
