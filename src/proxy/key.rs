//! Step 5: the prompt's block chain, and the client's hint where it belongs.

use http::HeaderMap;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    dialect::scan::{self, Fields},
    prompt::{self, Chain, ChainSeed},
    proxy::{headers, pool::Pool},
    types::Endpoint,
};

/// The chain of a request's prompt under a pool's block size; that of an isolated group is nobody else's.
#[must_use]
pub fn chain(body: &[u8], fields: &Fields, endpoint: Endpoint, pool: &Pool, group: Option<&str>) -> Chain {
    let raw = |span: Option<scan::Span>| span.map(|span| span.of(body)).filter(|text| *text != b"null");
    let seed = ChainSeed {
        model: pool.name(),
        lora: raw(fields.lora),
        cache_salt: raw(fields.cache_salt),
        group,
        chat_template_kwargs: raw(fields.chat_template_kwargs),
    };
    prompt::chain(body, fields, endpoint, &seed, pool.block_bytes())
}

/// The client's own word on which requests belong together: header, then `prompt_cache_key`, then `user`.
#[must_use]
pub fn affinity(headers: &HeaderMap, body: &[u8], fields: &Fields) -> Option<u64> {
    let header = headers.get(headers::SESSION).map(http::HeaderValue::as_bytes);
    let field =
        |span: Option<scan::Span>| span.map(|span| span.of(body)).filter(|text| text.len() > 2 && *text != b"null");
    header
        .filter(|value| !value.is_empty())
        .or_else(|| field(fields.prompt_cache_key))
        .or_else(|| field(fields.user))
        .map(xxh3_64)
}
