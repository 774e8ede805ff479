//! Answers that are written to a socket without hyper: to a head that it cannot parse, and over the connection limit.

use std::fmt::Write as _;

use http::{HeaderMap, StatusCode, header};

use crate::{error::GatewayError, proxy::headers};

/// A whole HTTP/1.1 answer that ends its connection, with a new request id.
pub(super) fn last(error: &GatewayError, status: StatusCode) -> Vec<u8> {
    let mut response = error.response();
    let length = response.body().len();
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    response.headers_mut().insert(headers::REQUEST_ID, headers::request_id(&mut HeaderMap::new()));
    let mut head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
    for (name, value) in response.headers() {
        // Writing to a string cannot fail, and all values are ASCII of our own.
        write!(head, "{name}: {}\r\n", value.to_str().unwrap_or_default()).unwrap_or_default();
    }
    head.push_str("\r\n");
    [head.as_bytes(), response.body()].concat()
}
