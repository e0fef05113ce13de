//! The checker reports nothing in consistent pools, and finds and identifies planted damage.

mod golden;
mod planted;
mod random;
