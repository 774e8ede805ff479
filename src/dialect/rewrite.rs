//! Writes a request body anew with some of its top-level members left out, replaced or added.
//!
//! For requests that go to somebody else than a replica: there the rule that nothing but splices changes a body does
//! not help, since unknown fields are refused. Kept members keep their text. Keys are compared unescaped, and every
//! occurrence of a key is treated alike.

use bytes::Bytes;

use super::{json::Cursor, scan};

/// What becomes of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// It stays.
    Keep,
    /// It goes.
    Drop,
    /// It gets this value, which is JSON.
    Replace(String),
}

/// The body with every member edited and `added` behind them; `None` when it is no JSON object.
pub fn rewrite(body: &[u8], mut edit: impl FnMut(&str, &[u8]) -> Edit, added: &[(&str, String)]) -> Option<Bytes> {
    let mut cursor = Cursor::new(body, 0);
    cursor.space();
    let mut out = Vec::with_capacity(body.len() + 64);
    out.push(b'{');
    let mut more = cursor.open(b'{', b'}').ok()?;
    while more {
        let key = cursor.key().ok()?;
        let value = cursor.value().ok()?;
        let name = scan::key_bytes(body, key);
        let value = value.of(body);
        match edit(&String::from_utf8_lossy(&name), value) {
            Edit::Keep => member(&mut out, key.of(body), value),
            Edit::Drop => {}
            Edit::Replace(with) => member(&mut out, key.of(body), with.as_bytes()),
        }
        more = cursor.more(b'}').ok()?;
    }
    for (key, value) in added {
        member(&mut out, serde_json::Value::from(*key).to_string().as_bytes(), value.as_bytes());
    }
    out.push(b'}');
    Some(out.into())
}

fn member(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    if out.len() > 1 {
        out.push(b',');
    }
    out.extend_from_slice(key);
    out.push(b':');
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_go_stay_change_and_come() {
        let body = br#" {"mod\u0065l":"a", "top_k" : 5, "x":[1.50, {"top_k":1}],"model":"b"} "#;
        let edit = |key: &str, _: &[u8]| match key {
            "model" => Edit::Replace("\"h\"".to_owned()),
            "top_k" => Edit::Drop,
            _ => Edit::Keep,
        };

        let out = rewrite(body, edit, &[("n", "1".to_owned())]).unwrap();

        assert_eq!(out, r#"{"mod\u0065l":"h","x":[1.50, {"top_k":1}],"model":"h","n":1}"#);
        assert_eq!(rewrite(b"{ }", |_, _| Edit::Keep, &[("a", "1".to_owned())]).unwrap(), r#"{"a":1}"#);
        assert_eq!(rewrite(br#"{"a":1}"#, |_, _| Edit::Drop, &[]).unwrap(), "{}");
        assert_eq!(rewrite(b"[1]", |_, _| Edit::Keep, &[]), None);
    }
}
