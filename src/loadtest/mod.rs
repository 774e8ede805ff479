//! `gateway loadtest`: what a target really does, measured so that it can be trusted.
//!
//! The schedule and every prompt are made first ([`arrivals`], [`workload`]), then sent at their times ([`pacer`],
//! [`runner`], [`client`]); sockets stamp ([`socket`]), records keep ([`record`]), definitions turn stamps into figures
//! ([`measure`]). What a reader would get wrong: latencies run from the *intended* send time unless their name says
//! wire. Source: reference/loadtest.md part F.

/// Appends formatted text to a `String`, which cannot fail.
macro_rules! add {
    ($out:expr, $($text:tt)*) => { $out.push_str(&format!($($text)*)) };
}

/// Appends a formatted line to a `String`.
macro_rules! addln {
    ($out:expr, $($text:tt)*) => {{
        $out.push_str(&format!($($text)*));
        $out.push('\n');
    }};
}

pub mod ab;
pub mod arrivals;
pub mod body;
pub mod capacity;
pub mod client;
pub mod clock;
pub mod compare;
pub mod drive;
pub mod host;
pub mod lengths;
pub mod level;
pub mod live;
pub mod measure;
pub mod observe;
pub mod pacer;
pub mod plan;
pub mod prompts;
pub mod record;
pub mod report;
pub mod runner;
pub mod scrape;
pub mod search;
pub mod socket;
pub mod stability;
pub mod stats;
pub mod summary;
pub mod target;
pub mod trace;
pub mod verdict;
pub mod workload;
