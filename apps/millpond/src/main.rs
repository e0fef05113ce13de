//! The program `millpond`, which is also `zpool` and `zfs` under those names.

fn main() {}
