//! Blocks in pieces.
