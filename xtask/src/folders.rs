//! The permissions of each folder. `ARCHITECTURE.md` gives the reasons.

/// The folders of the product, lowest layer first.
///
/// A crate may depend on crates of its own folder and of earlier ones.
pub const LAYERS: [&str; 11] = [
    "crates/format",
    "crates/codec",
    "crates/machine",
    "crates/storage",
    "crates/object",
    "crates/pool",
    "crates/file",
    "crates/admin",
    "crates/millpond",
    "crates/serve",
    "apps",
];

/// What the programs may use of the layers below them, so that they cannot reach around the interfaces.
pub const APPS_MAY_USE: [&str; 5] = [
    "crates/millpond",
    "crates/admin",
    "crates/serve",
    "crates/machine/env",
    "apps",
];

/// Folders outside the product: they may use all of it, and no product crate may use them.
pub const OUTSIDE: [&str; 4] = ["tests", "bench", "fuzz", "xtask"];

/// Crates without I/O: they must not access the environment.
pub const PURE: [&str; 4] = [
    "crates/format",
    "crates/codec",
    "crates/storage/vdev",
    "crates/storage/alloc",
];

/// Packages that pure crates may use. None of them does I/O or keeps global state.
pub const PURE_MAY_USE: [&str; 21] = [
    "aes",
    "aes-gcm",
    "bitflags",
    "blake3",
    "ccm",
    "flate2",
    "graviola",
    "hkdf",
    "hmac",
    "lz4_flex",
    "multiversion",
    "pbkdf2",
    "rusty_zstd",
    // Values passed between programs, behind a feature of the same name.
    "serde",
    "sha1",
    "sha2",
    "subtle",
    "thiserror",
    "zerocopy",
    "zeroize",
    // The encoder of the C library, behind a feature that only the programs enable.
    "zstd-safe",
];

/// Packages that a single pure crate may use in addition: the crate and the package.
pub const PURE_EXCEPTIONS: [(&str, &str); 1] = [
    // Locked memory for keys. Only `codec/crypt/src/locked.rs` uses it, and it maps no file.
    ("millpond-crypt", "memmap2"),
];

/// Where `unsafe` is permitted, each use with its `// SAFETY:`.
pub const UNSAFE_PATHS: [&str; 7] = [
    // One call of the C library.
    "apps/millpondd/src/heap",
    "crates/codec/parity/src/simd",
    "crates/machine/device/src",
    "crates/serve/blockdev/src/kernel",
    "crates/serve/fuse/src/transport",
    "crates/serve/vhost/src",
    // Memory-mapped files, for the test that writes through them.
    "tests/mount/mapped",
];

/// The only folder that may use the real clock, threads, locks and randomness.
pub const ENVIRONMENT: &str = "crates/machine/env/src";

/// The only folder that may use an asynchronous runtime: the HTTP server of the daemon.
pub const ASYNC: &str = "apps/millpondd/src/metrics";

/// Programs that show how the library is used: as outside of this tree.
pub const EXAMPLES: &str = "crates/millpond/examples";

/// The interface for programs.
pub const INTERFACE: &str = "crates/millpond/src";

/// Folders of programs that may print to standard output.
pub const TALKING: [&str; 5] = ["apps", "tests", "bench", "fuzz", "xtask"];

/// Whether `path` is `folder` or inside it.
pub fn is_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest.starts_with('.'))
}
