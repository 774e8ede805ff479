//! Which conversation a request belongs to: the one that begins with the same messages up to the first of the user.
//!
//! Not the routing key: that is shared by all conversations below one system prompt, and a conversation that spilled
//! must not take the others with it.

use xxhash_rust::xxh3::Xxh3Default;

use super::outbound::elements;
use crate::{
    dialect::{Fields, scan},
    proxy::auth::Tenant,
};

/// A conversation at one of its turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Talk {
    /// The same in all its turns.
    pub(super) key: u64,
    /// Whether it is behind its first turn.
    pub(super) continued: bool,
}

/// The conversation of a request; `None` for what is no conversation.
pub(super) fn talk(body: &[u8], fields: &Fields, model: &str, tenant: Option<&Tenant>) -> Option<Talk> {
    let messages = fields.messages.or(fields.input)?;
    let messages = elements(body, messages);
    let first = messages.iter().position(|message| {
        let role = scan::member(body, *message, b"role").and_then(|role| scan::string_value(body, role));
        role.as_deref() == Some("user")
    })?;
    let mut hash = Xxh3Default::new();
    for word in [model, tenant.map_or("", |tenant| &**tenant.id())] {
        hash.update(word.as_bytes());
        hash.update(&[0]);
    }
    for message in messages.iter().take(first + 1) {
        hash.update(message.of(body));
        hash.update(&[0]);
    }
    Some(Talk { key: hash.digest(), continued: messages.len() > first + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Option<Talk> {
        talk(body.as_bytes(), &scan(body.as_bytes()).unwrap(), "m", None)
    }

    #[test]
    fn turns_of_one_conversation_share_a_key_and_its_siblings_do_not() {
        let start = r#"{"role":"system","content":"long prompt"}, {"role":"user","content":"a"}"#;
        let first = of(&format!(r#"{{"messages":[{start}]}}"#)).unwrap();
        let later = r#"{"role":"assistant","content":"b"},{"role":"user","content":"c"}"#;
        let second = of(&format!(r#"{{"messages":[{start},{later}],"temperature":1}}"#)).unwrap();
        let sibling = of(r#"{"messages":[{"role":"system","content":"long prompt"},{"role":"user","content":"x"}]}"#);

        assert_eq!((first.key, first.continued, second.continued), (second.key, false, true));
        assert_ne!(sibling.unwrap().key, first.key);
        assert_eq!(of(r#"{"prompt":"a"}"#), None);
        assert_eq!(of(r#"{"input":"a"}"#), None);
        assert!(of(r#"{"input":[{"role":"user","content":"a"}]}"#).is_some());
    }
}
