//! Address of a replica: scheme, host, port and an optional base path.
//!
//! A trailing `/v1` is folded away: the gateway appends `/v1/...` itself, and people paste both forms.

use std::{fmt, str::FromStr};

use http::uri::{Authority, Scheme, Uri};

/// Base URL of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BaseUrl {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
    /// Empty, or `/path` without a slash at its end.
    pub path: String,
}

impl FromStr for BaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("{what}; write it as in http://10.0.0.1:8000");
        let uri: Uri = text.parse().map_err(|_| wrong("it is not a URL"))?;
        let parts = uri.into_parts();
        let scheme = parts.scheme.ok_or_else(|| wrong("it has no scheme"))?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(wrong("the scheme is neither http nor https"));
        }
        let authority = parts.authority.ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it carries a user name or password; use api_key"));
        }
        let path = parts.path_and_query.map_or_else(String::new, |path| path.path().to_owned());
        let path = path.trim_end_matches('/');
        let path = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        Ok(Self { scheme, authority, path })
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)
    }
}
