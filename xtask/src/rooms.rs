//! Which folder may do what. The reasons are in `ARCHITECTURE.md`.

/// The folders of the house, lowest first. A crate may depend on crates of its own folder and of
/// those before it.
pub const LAYERS: [&str; 10] = [
    "crates/format",
    "crates/codec",
    "crates/machine",
    "crates/storage",
    "crates/object",
    "crates/pool",
    "crates/file",
    "crates/millpond",
    "crates/serve",
    "apps",
];

/// Folders outside the product: they may use all of it, and nothing may use them.
pub const OUTSIDE: [&str; 4] = ["tests", "bench", "fuzz", "xtask"];

/// Bytes in, bytes out: crates that must never see the outside world.
pub const PURE: [&str; 4] = [
    "crates/format",
    "crates/codec",
    "crates/storage/vdev",
    "crates/storage/alloc",
];

/// Packages that pure crates may use. None of them does input or output or keeps global state.
pub const PURE_MAY_USE: [&str; 21] = [
    "aes",
    "aes-gcm",
    "bitflags",
    "blake3",
    "ccm",
    "flate2",
    "hkdf",
    "hmac",
    "lz4_flex",
    // Anonymous memory alone, which is locked and holds keys (`codec/crypt`).
    "memmap2",
    "multiversion",
    "pbkdf2",
    "rusty_zstd",
    // Values that travel between programs, behind a feature of the same name.
    "serde",
    "sha1",
    "sha2",
    "subtle",
    "thiserror",
    "zerocopy",
    "zeroize",
    // The C library's encoder, behind a feature that only the programs turn on.
    "zstd-safe",
];

/// Where `unsafe` may stand, each with its `// SAFETY:`.
pub const UNSAFE_ROOMS: [&str; 5] = [
    "crates/codec/parity/src/simd",
    "crates/machine/device/src",
    "crates/serve/fuse/src/transport",
    "crates/serve/vhost/src",
    // Memory mapped from files, for the test that writes through it.
    "tests/mount/mapped",
];

/// The only room that may reach for the real clock, threads, locks and randomness.
pub const ENVIRONMENT: &str = "crates/machine/env/src";

/// Where programs talk to people on standard output.
pub const TALKING: [&str; 5] = ["apps", "tests", "bench", "fuzz", "xtask"];

/// Whether `path` lies in `room` (or is it).
pub fn is_in(path: &str, room: &str) -> bool {
    path.strip_prefix(room)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest.starts_with('.'))
}
