//! Where a replica is: scheme, authority, and the path below which its API lives.
//!
//! The path is the *prefix of `/v1`*: a trailing `/v1` is folded away, so `http://h:8000` and `http://h:8000/v1` are the
//! same replica and `http://h/openai/v1` (`KServe`) has the prefix `/openai`. A value with a password in it is never
//! repeated in the error.
//! Source: RFC 3986 section 3; the API paths of reference/engines.md.

use std::{fmt, str::FromStr};

use http::{
    Uri,
    uri::{Authority, InvalidUri, PathAndQuery, Scheme},
};

/// A parsed replica URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BaseUrl {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and optional port, in lower case.
    pub authority: Authority,
    /// `""` or `/openai` and the like: no trailing slash, no trailing `/v1`.
    pub path: String,
}

/// Why a text is not a replica URL, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("replica url {shown:?}: {what}")]
pub struct BaseUrlError {
    /// The text, with credentials masked.
    pub shown: String,
    /// What is wrong and the remedy.
    pub what: String,
}

impl FromStr for BaseUrl {
    type Err = BaseUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |what: String| BaseUrlError { shown: masked(text), what };
        if text.is_empty() {
            return Err(fail("is empty; write http://host:port".into()));
        }
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(fail("contains white space; remove it".into()));
        }
        if text.contains('#') {
            return Err(fail("has a fragment; remove everything from '#' on".into()));
        }
        if text.contains('?') {
            return Err(fail("has a query; remove everything from '?' on".into()));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(fail(format!("has no scheme; write http://{}", masked(text))));
        };
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::HTTP,
            "https" => Scheme::HTTPS,
            other => return Err(fail(format!("has scheme {other:?}; only http and https are spoken"))),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let authority = parse_authority(authority).map_err(&fail)?;
        let path = fold(path);
        if !path.is_empty() {
            PathAndQuery::try_from(path).map_err(|e| fail(format!("has a path that HTTP cannot carry ({e})")))?;
        }
        if path.split('/').skip(1).any(|segment| segment.is_empty() || segment == "." || segment == "..") {
            return Err(fail("has an empty, '.' or '..' path segment; write the plain path".into()));
        }
        Ok(Self { scheme, authority, path: path.to_owned() })
    }
}

/// Host and port, with what is commonly wrong named.
fn parse_authority(text: &str) -> Result<Authority, String> {
    if text.contains('@') {
        return Err("has credentials; remove them and set `api_key`".into());
    }
    let authority: Authority =
        text.to_ascii_lowercase().parse().map_err(|e: InvalidUri| format!("has no valid host and port ({e})"))?;
    if authority.host().is_empty() || authority.host() == "[]" {
        return Err("has no host; write http://host:port".into());
    }
    let has_colon = authority.as_str().len() > authority.host().len();
    match authority.port_u16() {
        Some(0) => Err("has port 0; write the port that the replica listens on".into()),
        None if has_colon => Err("has a port that is no number from 1 to 65535".into()),
        _ => Ok(authority),
    }
}

/// Path without trailing slashes and without one trailing `/v1`.
fn fold(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/')
}

/// The text with anything before an `@` of the authority replaced.
fn masked(text: &str) -> String {
    let (head, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let Some((_, after)) = rest.rsplit_once('@') else { return text.to_owned() };
    let slashes = if head.is_empty() { "" } else { "://" };
    format!("{head}{slashes}***@{after}")
}

impl BaseUrl {
    /// Host without port; IPv6 in brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.authority.host()
    }

    /// Port, the scheme's own where none was written.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.scheme == Scheme::HTTPS { 443 } else { 80 })
    }

    /// `host:port[/path]`: the `replica` label of the metrics.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}:{}{}", self.host(), self.port(), self.path)
    }

    /// The URL of an API path (which begins with `/`) at this replica, as text.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{}{}", self.scheme, self.authority, self.path, path)
    }

    /// The URL of a path below the root of the server, whatever the base path.
    #[must_use]
    pub fn root_url(&self, path: &str) -> String {
        format!("{}://{}{}", self.scheme, self.authority, path)
    }

    /// The request target of an API path (which begins with `/` and may have a query).
    ///
    /// # Errors
    /// When `path` is not a valid request target.
    pub fn uri(&self, path: &str) -> Result<Uri, http::Error> {
        let builder = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        if self.path.is_empty() {
            builder.path_and_query(path).build()
        } else {
            builder.path_and_query(format!("{}{path}", self.path)).build()
        }
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)
    }
}

#[cfg(test)]
mod tests;
