//! Metrics of the cache that all pools share. The names after `millpond_arc_` are those of OpenZFS's `arcstats`
//! where it has the number, with the endings of Prometheus: `_total` for counts, `_bytes` for sizes.

use super::collect::{Name, counter, gauge};
use super::page::Page;
use millpond_control::{ArcInfo, ArcLookups};

/// Names of look-ups: hits, I/O hits, misses.
type LookupNames = [&'static str; 3];

const ALL: LookupNames = [
    "millpond_arc_hits_total",
    "millpond_arc_iohits_total",
    "millpond_arc_misses_total",
];
const DEMAND_DATA: LookupNames = [
    "millpond_arc_demand_data_hits_total",
    "millpond_arc_demand_data_iohits_total",
    "millpond_arc_demand_data_misses_total",
];
const DEMAND_METADATA: LookupNames = [
    "millpond_arc_demand_metadata_hits_total",
    "millpond_arc_demand_metadata_iohits_total",
    "millpond_arc_demand_metadata_misses_total",
];
const PREFETCH_DATA: LookupNames = [
    "millpond_arc_prefetch_data_hits_total",
    "millpond_arc_prefetch_data_iohits_total",
    "millpond_arc_prefetch_data_misses_total",
];
const PREFETCH_METADATA: LookupNames = [
    "millpond_arc_prefetch_metadata_hits_total",
    "millpond_arc_prefetch_metadata_iohits_total",
    "millpond_arc_prefetch_metadata_misses_total",
];
/// What the three counts of look-ups are.
const LOOKUP_HELP: LookupNames = [
    "Look-ups that found their block in the cache.",
    "Look-ups that found another caller reading their block.",
    "Look-ups whose block had to be read from devices.",
];

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
const UNCACHED_HITS: Name = counter(
    "millpond_arc_uncached_hits_total",
    "Blocks found by readers whose dataset does not keep them (primarycache).",
);
const PREFETCH_USED: Name = counter(
    "millpond_arc_demand_hit_predictive_prefetch_total",
    "Prefetched blocks that were read.",
);
const EVICTIONS: Name = counter("millpond_arc_evictions_total", "Blocks evicted.");
const EVICTED: Name = counter(
    "millpond_arc_evicted_bytes_total",
    "Blocks evicted, in bytes.",
);
const SIZE: Name = gauge("millpond_arc_size_bytes", "Memory that cached blocks take.");
const COMPRESSED: Name = gauge(
    "millpond_arc_compressed_size_bytes",
    "Memory of cached blocks as stored on the devices, most of them compressed.",
);
const UNCOMPRESSED: Name = gauge(
    "millpond_arc_uncompressed_size_bytes",
    "What all cached blocks would take decompressed.",
);
const OVERHEAD: Name = gauge(
    "millpond_arc_overhead_size_bytes",
    "Memory of decompressed content of blocks that are cached as stored, too.",
);
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
const MRU: Name = gauge("millpond_arc_mru_size_bytes", "Memory of blocks used once.");
const MFU: Name = gauge(
    "millpond_arc_mfu_size_bytes",
    "Memory of blocks used more than once.",
);
const MRU_GHOST: Name = gauge(
    "millpond_arc_mru_ghost_size_bytes",
    "Size of the remembered evicted blocks that were used once; they take no such memory.",
);
const MFU_GHOST: Name = gauge(
    "millpond_arc_mfu_ghost_size_bytes",
    "Size of the remembered evicted blocks that were used more than once; they take no such memory.",
);
const UNUSED: Name = gauge(
    "millpond_arc_prefetch_size_bytes",
    "Memory of prefetched blocks that no reader has finished.",
);
const BLOCKS: Name = gauge("millpond_arc_blocks", "Blocks in the cache.");
const MEMORY_FREE: Name = gauge(
    "millpond_arc_memory_free_bytes",
    "Memory that programs could still have.",
);
const SYS_FREE: Name = gauge(
    "millpond_arc_sys_free_bytes",
    "What the cache leaves of that memory to others.",
);
const NO_GROW: Name = gauge(
    "millpond_arc_no_grow",
    "Whether the cache cannot grow because memory is short.",
);

const L2: [(&str, &str); 6] = [
    (
        "millpond_arc_l2_hits_total",
        "Blocks that were not cached and found on a cache device.",
    ),
    (
        "millpond_arc_l2_misses_total",
        "Blocks that were not cached and not found on the cache devices of their pool.",
    ),
    (
        "millpond_arc_l2_cksum_bad_total",
        "Copies on cache devices whose bytes were wrong.",
    ),
    (
        "millpond_arc_l2_io_error_total",
        "Requests to cache devices that failed.",
    ),
    (
        "millpond_arc_l2_read_bytes_total",
        "Bytes read from cache devices.",
    ),
    (
        "millpond_arc_l2_write_bytes_total",
        "Bytes written to cache devices.",
    ),
];
const L2_SIZE: Name = gauge(
    "millpond_arc_l2_size_bytes",
    "Size of the blocks on cache devices, as stored.",
);
const L2_ASIZE: Name = gauge(
    "millpond_arc_l2_asize_bytes",
    "Space in use on cache devices.",
);
const L2_MRU: Name = gauge(
    "millpond_arc_l2_mru_asize_bytes",
    "Space on cache devices of blocks that had been used once.",
);
const L2_MFU: Name = gauge(
    "millpond_arc_l2_mfu_asize_bytes",
    "Space on cache devices of blocks that had been used more than once.",
);
const L2_DATA: Name = gauge(
    "millpond_arc_l2_bufc_data_asize_bytes",
    "Space of data on cache devices.",
);
const L2_METADATA: Name = gauge(
    "millpond_arc_l2_bufc_metadata_asize_bytes",
    "Space of metadata on cache devices.",
);
const L2_INDEX: Name = gauge(
    "millpond_arc_l2_hdr_size_bytes",
    "Memory of the index of cache devices.",
);

pub(super) fn add(page: &mut Page, arc: &ArcInfo) {
    for (names, counts) in [
        (ALL, arc.all()),
        (DEMAND_DATA, arc.demand_data),
        (DEMAND_METADATA, arc.demand_metadata),
        (PREFETCH_DATA, arc.prefetch_data),
        (PREFETCH_METADATA, arc.prefetch_metadata),
    ] {
        let ArcLookups {
            hits,
            io_hits,
            misses,
        } = counts;
        for ((name, help), value) in names
            .into_iter()
            .zip(LOOKUP_HELP)
            .zip([hits, io_hits, misses])
        {
            page.add(counter(name, help), &[], value);
        }
    }
    for (name, value) in [
        (MRU_HITS, arc.mru_hits),
        (MFU_HITS, arc.mfu_hits),
        (MRU_GHOST_HITS, arc.mru_ghost_hits),
        (MFU_GHOST_HITS, arc.mfu_ghost_hits),
        (UNCACHED_HITS, arc.uncached_hits),
        (PREFETCH_USED, arc.prefetch_used),
        (EVICTIONS, arc.evictions),
        (EVICTED, arc.evicted_bytes),
        (SIZE, arc.size_bytes),
        (COMPRESSED, arc.compressed_bytes),
        (UNCOMPRESSED, arc.uncompressed_bytes),
        (OVERHEAD, arc.overhead_bytes),
        (TARGET, arc.c_bytes),
        (MIN, arc.c_min_bytes),
        (MAX, arc.c_max_bytes),
        (DATA, arc.data_bytes),
        (METADATA, arc.metadata_bytes),
        (MRU, arc.mru_bytes),
        (MFU, arc.mfu_bytes),
        (MRU_GHOST, arc.mru_ghost_bytes),
        (MFU_GHOST, arc.mfu_ghost_bytes),
        (UNUSED, arc.prefetch_bytes),
        (BLOCKS, arc.blocks),
        (L2_SIZE, arc.l2_bytes),
        (L2_ASIZE, arc.l2_allocated_bytes),
        (L2_MRU, arc.l2_mru_bytes),
        (L2_MFU, arc.l2_mfu_bytes),
        (L2_DATA, arc.l2_data_bytes),
        (L2_METADATA, arc.l2_metadata_bytes),
        (L2_INDEX, arc.l2_index_bytes),
    ] {
        page.add(name, &[], value);
    }
    let l2 = [
        arc.l2_hits,
        arc.l2_misses,
        arc.l2_checksum_errors,
        arc.l2_io_errors,
        arc.l2_read_bytes,
        arc.l2_written_bytes,
    ];
    for ((name, help), value) in L2.into_iter().zip(l2) {
        page.add(counter(name, help), &[], value);
    }
    if let Some(memory) = &arc.memory {
        page.add(MEMORY_FREE, &[], memory.free_bytes);
        page.add(SYS_FREE, &[], memory.reserve_bytes);
        page.add(NO_GROW, &[], u64::from(!memory.may_grow));
    }
}
