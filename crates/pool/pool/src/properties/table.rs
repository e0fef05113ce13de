//! The pool properties. `feature@NAME`, `unsupported@GUID` and user properties follow them in output.
#![allow(non_upper_case_globals)] // Listed and Hidden read as words of the table

use crate::properties::shape::{Edit, Form, Hidden, Listed, NumberForm, Preset, Shape, row};
use Edit::{Once, ReadOnly, Settable};
use Form::{Number, Text, Words};
use NumberForm::{
    BytesOrUnset, Count, Digits, Percent, PercentOrUnknown, Ratio, State, TableQuota, Version,
};

/// Every pool property in the order of its number, which is the order of `get all`.
#[rustfmt::skip]
pub const POOL_PROPERTIES: [Shape; 40] = [
    row("name", "NAME", Text, false, ReadOnly, Preset::Unset, Hidden, ""),
    row("size", "SIZE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("capacity", "CAP", Number(Percent), true, ReadOnly, Preset::Unset, Listed, "<percent>"),
    row("altroot", "ALTROOT", Text, false, Settable, Preset::Unset, Listed, "<path>"),
    row("health", "HEALTH", Number(State), true, ReadOnly, Preset::Unset, Listed, "<state>"),
    row("guid", "GUID", Number(Digits), true, ReadOnly, Preset::Unset, Listed, "<guid>"),
    row("version", "VERSION", Number(Version), true, Settable, Preset::Number(5000), Listed, "<version>"),
    row("bootfs", "BOOTFS", Text, false, Settable, Preset::Unset, Listed, "<filesystem>"),
    row("delegation", "DELEGATION", Words(OFF_ON), false, Settable, Preset::Text("on"), Listed, "on | off"),
    row("autoreplace", "REPLACE", Words(OFF_ON), false, Settable, Preset::Text("off"), Listed, "on | off"),
    row("cachefile", "CACHEFILE", Text, false, Settable, Preset::Unset, Listed, "<file> | none"),
    row("failmode", "FAILMODE", Words(FAILMODE), false, Settable, Preset::Text("wait"), Listed, "wait | continue | panic"),
    row("listsnapshots", "LISTSNAPS", Words(OFF_ON), false, Settable, Preset::Text("off"), Listed, "on | off"),
    row("autoexpand", "EXPAND", Words(OFF_ON), false, Settable, Preset::Text("off"), Listed, "on | off"),
    row("dedupditto", "DEDUPDITTO", Number(Count), true, Settable, Preset::Number(0), Hidden, ""),
    row("dedupratio", "DEDUP", Number(Ratio), true, ReadOnly, Preset::Unset, Listed, "<1.00x or higher if deduped>"),
    row("free", "FREE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("allocated", "ALLOC", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("readonly", "RDONLY", Words(OFF_ON), false, Settable, Preset::Text("off"), Listed, "on | off"),
    row("ashift", "ASHIFT", Number(Count), true, Settable, Preset::Number(0), Listed, "<ashift, 9-16, or 0=default>"),
    row("comment", "COMMENT", Text, false, Settable, Preset::Unset, Listed, "<comment-string>"),
    row("expandsize", "EXPANDSZ", Number(BytesOrUnset), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("freeing", "FREEING", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("fragmentation", "FRAG", Number(PercentOrUnknown), true, ReadOnly, Preset::Unset, Listed, "<percent>"),
    row("leaked", "LEAKED", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("maxblocksize", "MAXBLOCKSIZE", Number(Count), true, ReadOnly, Preset::Unset, Hidden, ""),
    row("tname", "TNAME", Text, false, Once, Preset::Unset, Hidden, ""),
    row("maxdnodesize", "MAXDNODESIZE", Number(Count), true, ReadOnly, Preset::Unset, Hidden, ""),
    row("multihost", "MULTIHOST", Words(OFF_ON), false, Settable, Preset::Text("off"), Listed, "on | off"),
    row("checkpoint", "CKPOINT", Number(BytesOrUnset), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("load_guid", "LOAD_GUID", Number(Digits), true, ReadOnly, Preset::Unset, Listed, "<load_guid>"),
    row("autotrim", "AUTOTRIM", Words(OFF_ON), false, Settable, Preset::Text("off"), Listed, "on | off"),
    row("compatibility", "COMPATIBILITY", Text, false, Settable, Preset::Text("off"), Listed, "<file[,file...]> | off | legacy"),
    row("bcloneused", "BCLONE_USED", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("bclonesaved", "BCLONE_SAVED", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("bcloneratio", "BCLONE_RATIO", Number(Ratio), true, ReadOnly, Preset::Unset, Listed, "<1.00x or higher if cloned>"),
    row("dedup_table_size", "DDTSIZE", Number(Count), true, ReadOnly, Preset::Unset, Listed, "<size>"),
    row("dedup_table_quota", "DDTQUOTA", Number(TableQuota), true, Settable, Preset::Number(u64::MAX), Listed, "<size>"),
    row("dedupcached", "DEDUPCACHED", Number(Count), true, ReadOnly, Preset::Unset, Hidden, ""),
    row("last_scrubbed_txg", "LAST_SCRUBBED_TXG", Number(Digits), true, ReadOnly, Preset::Unset, Listed, "<txg>"),
];

/// Finds a pool property by name or alias.
pub fn find(word: &str) -> Option<&'static Shape> {
    POOL_PROPERTIES.iter().find(|shape| shape.is_named(word))
}

#[rustfmt::skip]
mod words {
    use crate::properties::WordTable;

    pub const OFF_ON: WordTable = &[("off", 0), ("on", 1)];
    pub const FAILMODE: WordTable = &[("wait", 0), ("continue", 1), ("panic", 2)];
}
use words::*;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::shape::check;

    #[test]
    fn no_name_and_no_alias_belongs_to_two_properties() {
        check::names_are_unique(&POOL_PROPERTIES);
    }

    #[test]
    fn every_preset_of_an_indexed_property_is_one_of_its_words() {
        check::presets_are_words(&POOL_PROPERTIES);
    }
}
