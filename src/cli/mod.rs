//! The commands of the `gateway` binary: one file each, arguments in, exit code out.

pub mod check;
