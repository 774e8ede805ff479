//! Checks of the `server` section.
//!
//! The admin port never shares an address with the data port, a wildcard address included: `/metrics` and the replica
//! list are not for clients.

use std::net::SocketAddr;

use super::{Checker, longer_than};
use crate::config::{
    defaults,
    file::ServerSection,
    period,
    plan::{Overrides, ServerPlan},
    sections::{Limits, Timeouts},
    size,
};

/// Most threads that make sense.
const WORKER_THREADS: usize = 1024;

pub(super) fn server(c: &mut Checker<'_>, section: ServerSection, overrides: &Overrides, has_keys: bool) -> ServerPlan {
    let listen = overrides.listen.unwrap_or_else(|| address(c, "server.listen", section.listen, defaults::LISTEN));
    let admin_listen = overrides
        .admin_listen
        .unwrap_or_else(|| address(c, "server.admin_listen", section.admin_listen, defaults::ADMIN_LISTEN));
    if overlap(listen, admin_listen) {
        let flag = overrides.admin_listen.map(|_| "--admin-listen");
        c.refuse_either(
            flag,
            "server.admin_listen",
            format!("is {admin_listen}, the data port; give it a port of its own"),
        );
    }
    let insecure_no_auth = section.insecure_no_auth || overrides.insecure_no_auth;
    if !listen.ip().is_loopback() && !has_keys {
        if insecure_no_auth {
            c.warnings.push(format!("anybody who reaches {listen} may use the models: there are no keys"));
        } else {
            c.refuse_either(
                overrides.listen.map(|_| "--listen"),
                "server.listen",
                format!(
                    "is {listen}, which other machines reach, and there are no keys; add `keys`, listen on 127.0.0.1, \
                     or pass --insecure-no-auth"
                ),
            );
        }
    }
    limits(c, &section.limits);
    let timeouts = timeouts(c, section.timeouts);
    c.positive("server.health.interval", section.health.interval);
    c.positive("server.health.timeout", section.health.timeout);
    c.in_range("server.worker_threads", &section.worker_threads, &0, &WORKER_THREADS);
    ServerPlan {
        listen,
        admin_listen,
        limits: section.limits,
        timeouts,
        health: section.health,
        expose_routing: section.expose_routing,
        worker_threads: section.worker_threads,
        access_log: section.access_log,
        insecure_no_auth,
        isolation_secret: super::secret(section.isolation_secret),
        spend_file: section.spend_file,
    }
}

fn address(c: &mut Checker<'_>, path: &str, text: Option<String>, default: SocketAddr) -> SocketAddr {
    let Some(text) = text else { return default };
    text.parse().unwrap_or_else(|_| {
        c.refuse(path, format!("is `{text}`; write an IP address and a port, as in 127.0.0.1:8080 or [::]:8080"));
        default
    })
}

/// Whether two addresses cannot both be bound; port 0 is a different port each time.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && (a.ip() == b.ip() || any)
}

fn limits(c: &mut Checker<'_>, limits: &Limits) {
    c.at_least_one("server.limits.body", limits.body);
    c.at_least_one("server.limits.connections", limits.connections as u64);
    c.in_range("server.limits.headers", &limits.headers, &defaults::HEADER_BYTES_MIN, &defaults::HEADER_BYTES_MAX);
    if limits.body_memory < limits.body {
        let (memory, body) = (size::display(limits.body_memory), size::display(limits.body));
        c.refuse(
            "server.limits.body_memory",
            format!("is {memory}, below body {body}; raise it, or no large body ever fits"),
        );
    }
}

fn timeouts(c: &mut Checker<'_>, mut timeouts: Timeouts) -> Timeouts {
    for (key, value) in [
        ("connect", timeouts.connect),
        ("first_event_hold", timeouts.first_event_hold),
        ("first_token", timeouts.first_token),
        ("stream_idle", timeouts.stream_idle),
        ("client_idle", timeouts.client_idle),
        ("total", timeouts.total),
        ("header", timeouts.header),
        ("drain", timeouts.drain),
    ] {
        let path = format!("server.timeouts.{key}");
        c.positive(&path, value);
        if value > defaults::LONGEST_TIMEOUT {
            let longest = period::display(defaults::LONGEST_TIMEOUT);
            c.refuse(&path, format!("is {}; write at most {longest}", period::display(value)));
        }
    }
    if timeouts.first_event_hold > timeouts.first_token {
        if c.has("server.timeouts.first_event_hold") {
            let message = longer_than(timeouts.first_event_hold, "first_token", timeouts.first_token);
            c.refuse("server.timeouts.first_event_hold", message);
        }
        timeouts.first_event_hold = timeouts.first_token;
    }
    timeouts
}
