//! The vdev properties, for leaf, interior and root vdevs.
#![allow(non_upper_case_globals)] // Listed and Hidden read as words of the table

use crate::properties::shape::{Edit, Form, Hidden, Listed, NumberForm, Preset, Shape, row};
use Edit::{ReadOnly, Settable};
use Form::{Number, Text, Words};
use NumberForm::{BytesOrUnset, Count, Digits, Limit, Percent, State};

/// Every vdev property in the order of its number, which is the order of `get all`.
#[rustfmt::skip]
pub const VDEV_PROPERTIES: [Shape; 52] = [
    row("name", "NAME", Text, false, ReadOnly, Preset::Unset, Hidden, ""),
    row("capacity", "CAP", Number(Percent), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("state", "STATE", Number(State), true, ReadOnly, Preset::Unset, Listed, "<state>"),
    row("guid", "GUID", Number(Digits), true, ReadOnly, Preset::Unset, Listed, "<guid>"),
    row("asize", "ASIZE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<asize>"),
    row("psize", "PSIZE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<psize>"),
    row("ashift", "ASHIFT", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<ashift>"),
    row("size", "SIZE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("free", "FREE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("allocated", "ALLOC", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("comment", "COMMENT", Text, false, Settable, Preset::Unset, Listed, "<comment-string>"),
    row("expandsize", "EXPANDSZ", Number(BytesOrUnset), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("fragmentation", "FRAG", Number(Percent), true, ReadOnly, Preset::Unset, Listed, "<percent>"),
    row("bootsize", "BOOTSIZE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("parity", "PARITY", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<parity>"),
    row("path", "PATH", Text, false, Settable, Preset::Unset, Listed, "<device-path>"),
    row("devid", "DEVID", Text, false, ReadOnly, Preset::Unset, Listed, "<devid>"),
    row("physpath", "PHYSPATH", Text, false, ReadOnly, Preset::Unset, Listed, "<physpath>"),
    row("encpath", "ENCPATH", Text, false, ReadOnly, Preset::Unset, Listed, "<encpath>"),
    row("fru", "FRU", Text, false, ReadOnly, Preset::Unset, Listed, "<fru>"),
    row("parent", "PARENT", Text, false, ReadOnly, Preset::Unset, Listed, "<parent>"),
    row("children", "CHILDREN", Text, false, ReadOnly, Preset::Unset, Listed, "<child[,...]>"),
    row("numchildren", "NUMCHILD", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<number-of-children>"),
    row("read_errors", "RDERR", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<errors>"),
    row("write_errors", "WRERR", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<errors>"),
    row("checksum_errors", "CKERR", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<errors>"),
    row("initialize_errors", "INITERR", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<errors>"),
    row("null_ops", "NULLOP", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<operations>"),
    row("read_ops", "READOP", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<operations>"),
    row("write_ops", "WRITEOP", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<operations>"),
    row("free_ops", "FREEOP", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<operations>"),
    row("claim_ops", "CLAIMOP", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<operations>"),
    row("trim_ops", "TRIMOP", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<operations>"),
    row("null_bytes", "NULLBYTE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<bytes>"),
    row("read_bytes", "READBYTE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<bytes>"),
    row("write_bytes", "WRITEBYTE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<bytes>"),
    row("free_bytes", "FREEBYTE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<bytes>"),
    row("claim_bytes", "CLAIMBYTE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<bytes>"),
    row("trim_bytes", "TRIMBYTE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<bytes>"),
    row("removing", "REMOVING", Words(OFF_ON), false, ReadOnly, Preset::Unset, Listed, ""),
    row("allocating", "ALLOCATING", Words(ALLOCATING), false, Settable, Preset::Text("on"), Listed, "on | off"),
    row("failfast", "FAILFAST", Words(OFF_ON), false, Settable, Preset::Text("on"), Listed, "on | off"),
    row("checksum_n", "CKSUM_N", Number(Limit), true, Settable, Preset::Number(u64::MAX), Listed, "<events>"),
    row("checksum_t", "CKSUM_T", Number(Limit), true, Settable, Preset::Number(u64::MAX), Listed, "<seconds>"),
    row("io_n", "IO_N", Number(Limit), true, Settable, Preset::Number(u64::MAX), Listed, "<events>"),
    row("io_t", "IO_T", Number(Limit), true, Settable, Preset::Number(u64::MAX), Listed, "<seconds>"),
    row("raidz_expanding", "RAIDZ_EXPANDING", Words(OFF_ON), false, ReadOnly, Preset::Unset, Listed, ""),
    row("slow_io_n", "SLOW_IO_N", Number(Limit), true, Settable, Preset::Number(u64::MAX), Listed, "<events>"),
    row("slow_io_t", "SLOW_IO_T", Number(Limit), true, Settable, Preset::Number(u64::MAX), Listed, "<seconds>"),
    row("trim_support", "TRIMSUP", Words(OFF_ON), false, ReadOnly, Preset::Unset, Listed, ""),
    row("trim_errors", "TRIMERR", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<errors>"),
    row("slow_ios", "SLOW", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<slowios>"),
];

/// Finds a vdev property by name or alias.
pub fn find(word: &str) -> Option<&'static Shape> {
    VDEV_PROPERTIES.iter().find(|shape| shape.is_named(word))
}

#[rustfmt::skip]
mod words {
    use crate::properties::WordTable;

    pub const OFF_ON: WordTable = &[("off", 0), ("on", 1)];
    pub const ALLOCATING: WordTable = &[("off", 0), ("on", 1), ("-", 2)];
}
use words::*;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::shape::check;

    #[test]
    fn no_name_and_no_alias_belongs_to_two_properties() {
        check::names_are_unique(&VDEV_PROPERTIES);
    }

    #[test]
    fn every_preset_of_an_indexed_property_is_one_of_its_words() {
        check::presets_are_words(&VDEV_PROPERTIES);
    }
}
