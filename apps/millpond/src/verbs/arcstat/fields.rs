//! The fields of `arcstat`: names, widths, and how each is computed.

use millpond_control::{ArcInfo, ArcLookups};

/// A field.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    /// As in the header and after `-f`.
    pub(super) name: &'static str,
    /// The least width of its column.
    pub(super) width: usize,
    /// What it is, for `-v`.
    pub(super) help: &'static str,
    pub(super) measure: Measure,
}

/// How a field is computed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Measure {
    /// The time of day.
    Time,
    /// The events of a counter.
    Count(fn(&ArcInfo) -> u64),
    /// The share of two counters, in percent.
    Share(fn(&ArcInfo) -> u64, fn(&ArcInfo) -> u64),
    /// Bytes now, which may be negative; `None` if the system does not tell.
    Bytes(fn(&ArcInfo) -> Option<i128>),
    /// A plain number now.
    Number(fn(&ArcInfo) -> Option<u64>),
    /// Not measured.
    Missing,
}

const fn field(name: &'static str, width: usize, measure: Measure, help: &'static str) -> Field {
    Field {
        name,
        width,
        help,
        measure,
    }
}

/// The columns without `-f` and `-x`.
pub(super) const DEFAULT: &[&str] = &[
    "time", "read", "ddread", "ddh%", "dmread", "dmh%", "pread", "ph%", "size", "c", "avail",
];
/// The columns with `-x`.
pub(super) const EXTENDED: &[&str] = &[
    "time", "mfu", "mru", "mfug", "mrug", "unc", "eskip", "mtxmis", "dread", "pread", "read",
];

/// The field with this name.
pub(super) fn find(name: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.name == name)
}

use Measure::{Bytes, Count, Missing, Number, Share, Time};

fn hits(of: ArcLookups) -> u64 {
    of.hits
}
fn misses(of: ArcLookups) -> u64 {
    of.misses
}

fn l2_reads(arc: &ArcInfo) -> u64 {
    arc.l2_hits.saturating_add(arc.l2_misses)
}

fn spare(arc: &ArcInfo) -> Option<i128> {
    let memory = arc.memory.as_ref()?;
    Some(i128::from(memory.free_bytes) - i128::from(memory.reserve_bytes))
}

const ZFETCH: &str = "Of stream detection: not counted";

/// All fields, in the order of `-v`.
#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    field("time", 8, Time, "Time of day"),
    field("hits", 4, Count(|a| hits(a.all())), "Hits per second"),
    field("iohs", 4, Count(|a| a.all().io_hits), "I/O hits per second: another caller was reading the block"),
    field("miss", 4, Count(|a| misses(a.all())), "Misses per second"),
    field("read", 4, Count(|a| a.all().count()), "Accesses per second"),
    field("hit%", 4, Share(|a| hits(a.all()), |a| a.all().count()), "Hits in percent of accesses"),
    field("ioh%", 4, Share(|a| a.all().io_hits, |a| a.all().count()), "I/O hits in percent of accesses"),
    field("miss%", 5, Share(|a| misses(a.all()), |a| a.all().count()), "Misses in percent of accesses"),
    field("dhit", 4, Count(|a| hits(a.demand())), "Demand hits per second"),
    field("dioh", 4, Count(|a| a.demand().io_hits), "Demand I/O hits per second"),
    field("dmis", 4, Count(|a| misses(a.demand())), "Demand misses per second"),
    field("dread", 5, Count(|a| a.demand().count()), "Demand accesses per second"),
    field("dh%", 3, Share(|a| hits(a.demand()), |a| a.demand().count()), "Demand hits in percent"),
    field("di%", 3, Share(|a| a.demand().io_hits, |a| a.demand().count()), "Demand I/O hits in percent"),
    field("dm%", 3, Share(|a| misses(a.demand()), |a| a.demand().count()), "Demand misses in percent"),
    field("ddhit", 5, Count(|a| a.demand_data.hits), "Demand data hits per second"),
    field("ddioh", 5, Count(|a| a.demand_data.io_hits), "Demand data I/O hits per second"),
    field("ddmis", 5, Count(|a| a.demand_data.misses), "Demand data misses per second"),
    field("ddread", 6, Count(|a| a.demand_data.count()), "Demand data accesses per second"),
    field("ddh%", 4, Share(|a| a.demand_data.hits, |a| a.demand_data.count()), "Demand data hits in percent"),
    field("ddi%", 4, Share(|a| a.demand_data.io_hits, |a| a.demand_data.count()), "Demand data I/O hits in percent"),
    field("ddm%", 4, Share(|a| a.demand_data.misses, |a| a.demand_data.count()), "Demand data misses in percent"),
    field("dmhit", 5, Count(|a| a.demand_metadata.hits), "Demand metadata hits per second"),
    field("dmioh", 5, Count(|a| a.demand_metadata.io_hits), "Demand metadata I/O hits per second"),
    field("dmmis", 5, Count(|a| a.demand_metadata.misses), "Demand metadata misses per second"),
    field("dmread", 6, Count(|a| a.demand_metadata.count()), "Demand metadata accesses per second"),
    field("dmh%", 4, Share(|a| a.demand_metadata.hits, |a| a.demand_metadata.count()), "Demand metadata hits in percent"),
    field("dmi%", 4, Share(|a| a.demand_metadata.io_hits, |a| a.demand_metadata.count()), "Demand metadata I/O hits in percent"),
    field("dmm%", 4, Share(|a| a.demand_metadata.misses, |a| a.demand_metadata.count()), "Demand metadata misses in percent"),
    field("phit", 4, Count(|a| hits(a.prefetch())), "Prefetch hits per second"),
    field("pioh", 4, Count(|a| a.prefetch().io_hits), "Prefetch I/O hits per second"),
    field("pmis", 4, Count(|a| misses(a.prefetch())), "Prefetch misses per second"),
    field("pread", 5, Count(|a| a.prefetch().count()), "Prefetch accesses per second"),
    field("ph%", 3, Share(|a| hits(a.prefetch()), |a| a.prefetch().count()), "Prefetch hits in percent"),
    field("pi%", 3, Share(|a| a.prefetch().io_hits, |a| a.prefetch().count()), "Prefetch I/O hits in percent"),
    field("pm%", 3, Share(|a| misses(a.prefetch()), |a| a.prefetch().count()), "Prefetch misses in percent"),
    field("pdhit", 5, Count(|a| a.prefetch_data.hits), "Prefetch data hits per second"),
    field("pdioh", 5, Count(|a| a.prefetch_data.io_hits), "Prefetch data I/O hits per second"),
    field("pdmis", 5, Count(|a| a.prefetch_data.misses), "Prefetch data misses per second"),
    field("pdread", 6, Count(|a| a.prefetch_data.count()), "Prefetch data accesses per second"),
    field("pdh%", 4, Share(|a| a.prefetch_data.hits, |a| a.prefetch_data.count()), "Prefetch data hits in percent"),
    field("pdi%", 4, Share(|a| a.prefetch_data.io_hits, |a| a.prefetch_data.count()), "Prefetch data I/O hits in percent"),
    field("pdm%", 4, Share(|a| a.prefetch_data.misses, |a| a.prefetch_data.count()), "Prefetch data misses in percent"),
    field("pmhit", 5, Count(|a| a.prefetch_metadata.hits), "Prefetch metadata hits per second"),
    field("pmioh", 5, Count(|a| a.prefetch_metadata.io_hits), "Prefetch metadata I/O hits per second"),
    field("pmmis", 5, Count(|a| a.prefetch_metadata.misses), "Prefetch metadata misses per second"),
    field("pmread", 6, Count(|a| a.prefetch_metadata.count()), "Prefetch metadata accesses per second"),
    field("pmh%", 4, Share(|a| a.prefetch_metadata.hits, |a| a.prefetch_metadata.count()), "Prefetch metadata hits in percent"),
    field("pmi%", 4, Share(|a| a.prefetch_metadata.io_hits, |a| a.prefetch_metadata.count()), "Prefetch metadata I/O hits in percent"),
    field("pmm%", 4, Share(|a| a.prefetch_metadata.misses, |a| a.prefetch_metadata.count()), "Prefetch metadata misses in percent"),
    field("mhit", 4, Count(|a| hits(a.metadata())), "Metadata hits per second"),
    field("mioh", 4, Count(|a| a.metadata().io_hits), "Metadata I/O hits per second"),
    field("mmis", 4, Count(|a| misses(a.metadata())), "Metadata misses per second"),
    field("mread", 5, Count(|a| a.metadata().count()), "Metadata accesses per second"),
    field("mh%", 3, Share(|a| hits(a.metadata()), |a| a.metadata().count()), "Metadata hits in percent"),
    field("mi%", 3, Share(|a| a.metadata().io_hits, |a| a.metadata().count()), "Metadata I/O hits in percent"),
    field("mm%", 3, Share(|a| misses(a.metadata()), |a| a.metadata().count()), "Metadata misses in percent"),
    field("size", 5, Bytes(|a| Some(a.size_bytes.into())), "Size of the cache"),
    field("arcsz", 5, Bytes(|a| Some(a.size_bytes.into())), "The same as size"),
    field("c", 5, Bytes(|a| Some(a.c_bytes.into())), "Size that the cache may have now"),
    field("c_min", 5, Bytes(|a| Some(a.c_min_bytes.into())), "Least value of c (not in arcstat)"),
    field("c_max", 5, Bytes(|a| Some(a.c_max_bytes.into())), "Greatest value of c (not in arcstat)"),
    field("cmpsz", 5, Bytes(|a| Some(a.compressed_bytes.into())), "Size of blocks as stored on the devices (not in arcstat)"),
    field("ucmpsz", 6, Bytes(|a| Some(a.uncompressed_bytes.into())), "Size of all blocks if decompressed (not in arcstat)"),
    field("ovhsz", 5, Bytes(|a| Some(a.overhead_bytes.into())), "Size of decompressed second forms (not in arcstat)"),
    field("data", 5, Bytes(|a| Some(a.data_bytes.into())), "Size of data (not in arcstat)"),
    field("meta", 5, Bytes(|a| Some(a.metadata_bytes.into())), "Size of metadata (not in arcstat)"),
    field("mrusz", 5, Bytes(|a| Some(a.mru_bytes.into())), "Size of the MRU list (not in arcstat)"),
    field("mfusz", 5, Bytes(|a| Some(a.mfu_bytes.into())), "Size of the MFU list (not in arcstat)"),
    field("evict", 5, Count(|a| a.evictions), "Blocks evicted per second (not in arcstat)"),
    field("mfu", 4, Count(|a| a.mfu_hits), "Hits in the MFU list per second"),
    field("mru", 4, Count(|a| a.mru_hits), "Hits in the MRU list per second"),
    field("mfug", 4, Count(|a| a.mfu_ghost_hits), "Hits in the ghosts of the MFU list per second"),
    field("mrug", 4, Count(|a| a.mru_ghost_hits), "Hits in the ghosts of the MRU list per second"),
    field("unc", 4, Count(|a| a.uncached_hits), "Hits of datasets that do not keep the block, per second"),
    field("eskip", 5, Missing, "Skipped evictions: not counted"),
    field("mtxmis", 6, Missing, "Missed locks: not counted"),
    field("grow", 4, Number(|a| a.memory.as_ref().map(|memory| u64::from(!memory.may_grow))), "1 while the cache cannot grow"),
    field("need", 5, Bytes(|a| spare(a).map(|spare| (-spare).max(0))), "Memory that the cache has to give up"),
    field("free", 5, Bytes(|a| a.memory.as_ref().map(|memory| memory.free_bytes.into())), "Free memory"),
    field("avail", 5, Bytes(spare), "Free memory beyond what the cache leaves to others"),
    field("waste", 5, Missing, "Wasted memory: not counted"),
    field("l2hits", 6, Count(|a| a.l2_hits), "Hits on cache devices per second"),
    field("l2miss", 6, Count(|a| a.l2_misses), "Misses on cache devices per second"),
    field("l2read", 6, Count(l2_reads), "Accesses to cache devices per second"),
    field("l2hit%", 6, Share(|a| a.l2_hits, l2_reads), "Hits in percent of accesses to cache devices"),
    field("l2miss%", 7, Share(|a| a.l2_misses, l2_reads), "Misses in percent of accesses to cache devices"),
    field("l2size", 6, Bytes(|a| Some(a.l2_bytes.into())), "Size of the blocks on cache devices"),
    field("l2asize", 7, Bytes(|a| Some(a.l2_allocated_bytes.into())), "Space in use on cache devices"),
    field("l2mru", 5, Bytes(|a| Some(a.l2_mru_bytes.into())), "Space of blocks on cache devices that had been used once"),
    field("l2mfu", 5, Bytes(|a| Some(a.l2_mfu_bytes.into())), "Space of blocks on cache devices that had been used more often"),
    field("l2data", 6, Bytes(|a| Some(a.l2_data_bytes.into())), "Space of data on cache devices"),
    field("l2meta", 6, Bytes(|a| Some(a.l2_metadata_bytes.into())), "Space of metadata on cache devices"),
    field("l2bad", 5, Count(|a| a.l2_checksum_errors), "Wrong copies of blocks on cache devices per second"),
    field("l2bytes", 7, Count(|a| a.l2_read_bytes), "Bytes read from cache devices per second"),
    field("l2wbytes", 8, Count(|a| a.l2_written_bytes), "Bytes written to cache devices per second"),
    field("ztotal", 6, Missing, ZFETCH),
    field("zhits", 5, Missing, ZFETCH),
    field("zmisses", 7, Missing, ZFETCH),
];
