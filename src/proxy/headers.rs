//! Which headers pass, in both directions. One policy for every route, every attempt, every stream.
//!
//! Towards a replica: everything but hop-by-hop headers (RFC 9110, 7.6.1), what `Connection` names, the client's
//! credentials and cookies, and what only a trusted hop may say. No content coding is asked for, since the observer
//! could not read the answer.

use std::time::SystemTime;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{self, Entry},
};

/// Hop-by-hop headers of HTTP/1.1 and its ancestors.
const HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// What stays at the gateway: credentials, framing, coding.
const PRIVATE: [HeaderName; 9] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::PROXY_AUTHENTICATE,
    header::COOKIE,
    header::HOST,
    header::CONTENT_LENGTH,
    header::ACCEPT_ENCODING,
    header::EXPECT,
    header::FORWARDED,
];

/// Request headers that are dropped by name or prefix: keys in other places, and words of trusted hops.
fn is_untrusted(name: &str) -> bool {
    name == "x-api-key"
        || name == "api-key"
        || name == "x-real-ip"
        || name == "x-original-url"
        || name == "x-rewrite-url"
        || name == "endpoint-load-metrics-format"
        || name.starts_with("x-forwarded-")
        || name.starts_with("x-gateway-")
}

/// Takes out of `headers` what `Connection` names.
fn drop_named_by_connection(headers: &mut HeaderMap) {
    if !headers.contains_key(header::CONNECTION) {
        return;
    }
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Turns the client's headers into those of the upstream request, without a credential.
pub fn to_replica(headers: &mut HeaderMap) {
    drop_named_by_connection(headers);
    for name in HOP.iter().chain(&PRIVATE) {
        headers.remove(name);
    }
    let untrusted: Vec<HeaderName> = headers.keys().filter(|name| is_untrusted(name.as_str())).cloned().collect();
    for name in untrusted {
        headers.remove(name);
    }
}

/// Turns the replica's headers into those of the answer. `rewritten` when the body may differ in length.
pub fn to_client(headers: &mut HeaderMap, rewritten: bool) {
    drop_named_by_connection(headers);
    for name in &HOP {
        headers.remove(name);
    }
    headers.remove(header::PROXY_AUTHENTICATE);
    headers.remove(HeaderName::from_static("endpoint-load-metrics"));
    if rewritten {
        headers.remove(header::CONTENT_LENGTH);
    }
}

/// Name of the request id header, in and out.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Name of the trace context header (W3C Trace Context).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Affinity hint of the client.
pub const SESSION: HeaderName = HeaderName::from_static("x-gateway-session");
/// `never` forbids a hosted model.
pub const FALLBACK: HeaderName = HeaderName::from_static("x-gateway-fallback");
/// Which replica answered; sent when `server.expose_routing` is on.
pub const REPLICA: HeaderName = HeaderName::from_static("x-gateway-replica");
/// `replica`, `fallback`, or `degraded`.
pub const ROUTE: HeaderName = HeaderName::from_static("x-gateway-route");
/// Predicted cached prompt tokens.
pub const CACHED: HeaderName = HeaderName::from_static("x-gateway-cached-tokens");
/// Out: output tokens of each choice, where a cap or the model's context allows fewer than the request asked for.
pub const MAX_TOKENS: HeaderName = HeaderName::from_static("x-gateway-max-tokens");

/// Longest request id that is taken over from a client.
const LONGEST_ID: usize = 128;

/// The client's request id if it is short and plain, else a new UUID v7. Written into `headers`.
pub fn request_id(headers: &mut HeaderMap) -> HeaderValue {
    let plain = |value: &HeaderValue| {
        !value.is_empty() && value.len() <= LONGEST_ID && value.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    match headers.entry(REQUEST_ID) {
        Entry::Occupied(entry) if plain(entry.get()) && entry.iter().count() == 1 => entry.get().clone(),
        other => {
            let mut text = [0_u8; uuid::fmt::Hyphenated::LENGTH];
            let id = &*new_id().hyphenated().encode_lower(&mut text);
            let value = HeaderValue::from_str(id).unwrap_or_else(|_| HeaderValue::from_static("unknown"));
            match other {
                Entry::Occupied(mut entry) => {
                    entry.insert(value.clone());
                }
                Entry::Vacant(entry) => {
                    entry.insert(value.clone());
                }
            }
            value
        }
    }
}

/// A UUID v7 from the thread's generator: `Uuid::now_v7` asks the kernel for random bytes each time.
fn new_id() -> uuid::Uuid {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    uuid::Builder::from_unix_timestamp_millis(millis, &rand::random()).into_uuid()
}

/// Whether a body with this content type is a server-sent-event stream. Compared without case or parameters.
#[must_use]
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|kind| kind.eq_ignore_ascii_case("text/event-stream"))
}

/// Whether a body with this content type is JSON.
#[must_use]
pub fn is_json(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"))
}

fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    value.split(';').next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_replica_sees_no_credential_and_no_hop_header() {
        let mut headers = map(&[
            ("authorization", "Bearer secret"),
            ("x-api-key", "secret"),
            ("cookie", "a=b"),
            ("proxy-authorization", "Basic x"),
            ("connection", "keep-alive, X-Hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("keep-alive", "timeout=5"),
            ("accept-encoding", "br, zstd"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-gateway-session", "s"),
            ("x-team-call-id", "42"),
            ("traceparent", "00-1-2-01"),
            ("content-type", "application/json"),
        ]);

        to_replica(&mut headers);

        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-type", "traceparent", "x-team-call-id"]);
    }

    #[test]
    fn a_client_sees_no_hop_header_and_no_stale_length() {
        let mut headers = map(&[("connection", "X-Hop"), ("x-hop", "1"), ("content-length", "9"), ("x-keep", "1")]);

        to_client(&mut headers, true);

        assert_eq!(headers, map(&[("x-keep", "1")]));
    }

    #[test]
    fn a_request_id_is_kept_when_plain_and_made_when_not() {
        let mut headers = map(&[("x-request-id", "abc-1")]);
        assert_eq!(request_id(&mut headers), "abc-1");

        for bad in ["", "with space", "line\tbreak"] {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_static(bad));
            let id = request_id(&mut headers);
            assert_eq!(id.len(), 36, "{bad:?}");
            let id: uuid::Uuid = id.to_str().unwrap().parse().unwrap();
            assert_eq!(id.get_version_num(), 7);
            assert_eq!(headers[REQUEST_ID], id.to_string());
        }
    }

    #[test]
    fn an_event_stream_is_known_by_its_type_not_by_its_spelling() {
        assert!(is_event_stream(&map(&[("content-type", "Text/Event-Stream;charset=UTF-8")])));
        assert!(!is_event_stream(&map(&[("content-type", "application/x-ndjson")])));
        assert!(!is_event_stream(&HeaderMap::new()));
    }
}
