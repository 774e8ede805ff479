//! Step 1: the client's key to the tenant behind it.
//!
//! Only digests are held and compared, at full length: a table of SHA-256 over keys of high entropy. What an attacker
//! can time is the digest of a guess, which tells nothing about the key. Unknown and malformed keys get one answer.

use std::{collections::HashMap, sync::Arc};

use http::{HeaderMap, HeaderName, header};

use crate::{
    config::{KeyPlan, Rate},
    error::{ErrorKind, GatewayError, Stage},
    limits::KeyLimits,
};

/// Whoever a key stands for, with all that the configuration says of it.
#[derive(Debug)]
pub struct Tenant {
    /// The key's section.
    pub plan: KeyPlan,
    /// Its rates, if it has any.
    pub limits: Option<Arc<KeyLimits>>,
}

impl Tenant {
    /// Id of the key, as in logs and metrics.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        &self.plan.id
    }

    /// Whether it may use the model of this name.
    #[must_use]
    pub fn may_use(&self, model: &str) -> bool {
        self.plan.models.as_ref().is_none_or(|models| models.iter().any(|allowed| allowed == model))
    }

    /// Its group, if that is kept apart from all others.
    #[must_use]
    pub fn isolated_group(&self) -> Option<&str> {
        self.plan.group.as_deref().filter(|_| self.plan.isolate)
    }
}

/// Keys by digest. Empty: the gateway is open.
#[derive(Debug, Default)]
pub struct Keys {
    by_digest: HashMap<[u8; 32], Arc<Tenant>>,
}

impl Keys {
    /// A table of the configured keys. A key whose rate is what it was `before` keeps what it has used.
    #[must_use]
    pub fn new(keys: &[KeyPlan], before: &Self) -> Self {
        let used = |key: &KeyPlan, rate: &Rate| {
            let known = before.by_digest.values().find(|tenant| tenant.plan.id == key.id)?;
            known.limits.clone().filter(|limits| limits.rate() == rate)
        };
        let tenant = |key: &KeyPlan| {
            let limits = |rate| used(key, rate).unwrap_or_else(|| Arc::new(KeyLimits::new(rate)));
            Arc::new(Tenant { plan: key.clone(), limits: key.rate.as_ref().map(limits) })
        };
        Self { by_digest: keys.iter().map(|key| (key.sha256, tenant(key))).collect() }
    }

    /// Whether anybody may ask.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.by_digest.is_empty()
    }

    /// Whose key the request carries; `None` when the gateway is open.
    ///
    /// # Errors
    /// `Unauthorized`, the same for a missing, a malformed and an unknown key.
    pub fn check(&self, headers: &HeaderMap) -> Result<Option<Arc<Tenant>>, GatewayError> {
        if self.is_open() {
            return Ok(None);
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, secret(headers).unwrap_or_default());
        let known = <[u8; 32]>::try_from(digest.as_ref()).ok().and_then(|digest| self.by_digest.get(&digest));
        known.cloned().map(Some).ok_or_else(|| {
            let message = "missing or unknown API key; send it as `Authorization: Bearer KEY`";
            GatewayError::new(ErrorKind::Unauthorized, Stage::Auth, message)
        })
    }
}

/// The key of `Authorization: Bearer`, else of `x-api-key` (Anthropic clients).
fn secret(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).map(http::HeaderValue::as_bytes).and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| headers.get(HeaderName::from_static("x-api-key")).map(http::HeaderValue::as_bytes))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn keys() -> Keys {
        let digest = ring::digest::digest(&ring::digest::SHA256, b"sk-right");
        let sha256 = digest.as_ref().try_into().unwrap();
        Keys::new(&[KeyPlan::new("team-a", sha256)], &Keys::default())
    }

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))])
    }

    #[test]
    fn a_known_key_is_let_in_by_either_header() {
        for (name, value) in
            [("authorization", "Bearer sk-right"), ("authorization", "bearer  sk-right "), ("x-api-key", "sk-right")]
        {
            let tenant = keys().check(&headers(name, value)).unwrap().unwrap();
            assert_eq!(&**tenant.id(), "team-a", "{name}: {value}");
        }
    }

    #[test]
    fn every_other_key_gets_one_answer() {
        for (name, value) in [
            ("authorization", "Bearer sk-righ"),
            ("authorization", "Bearer sk-right2"),
            ("authorization", "Basic sk-right"),
            ("authorization", "Bearer"),
            ("x-api-key", ""),
            ("x-other", "sk-right"),
        ] {
            let error = keys().check(&headers(name, value)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unauthorized, "{name}: {value}");
            assert!(!error.message.contains("sk-"), "no error repeats a key");
        }
        assert!(Keys::default().check(&HeaderMap::new()).unwrap().is_none(), "no keys: open");
    }

    #[test]
    fn a_reload_keeps_what_a_key_has_used_unless_its_rate_changed() {
        let key = |rate: u64| KeyPlan {
            rate: Some(Rate { requests_per_minute: Some(rate), ..Rate::default() }),
            ..KeyPlan::new("a", [0; 32])
        };
        let left = |keys: &Keys| {
            let limits = keys.by_digest.values().next().unwrap().limits.clone().unwrap();
            limits.standing().requests.unwrap().remaining
        };
        let before = Keys::new(&[key(2)], &Keys::default());
        let limits = before.by_digest.values().next().unwrap().limits.clone().unwrap();
        let _one = limits.charge(crate::types::Asked::default()).unwrap();

        assert_eq!(left(&Keys::new(&[key(2)], &before)), 1);
        assert_eq!(left(&Keys::new(&[key(5)], &before)), 5);
        assert_eq!(left(&Keys::new(&[KeyPlan { sha256: [1; 32], ..key(2) }], &before)), 1, "a rotated key is the same");
    }
}
