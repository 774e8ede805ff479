//! Reads a `/v1/models` answer.
//!
//! One odd entry does not hide the others; an answer that is no model list is `None`, which is not an empty list.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::fleet::ServedModel;

/// A model list and who says to own its models.
#[derive(Debug, Clone)]
pub struct ModelList {
    /// What is served.
    pub models: Vec<ServedModel>,
    /// `owned_by` of the first entry that has one.
    pub owned_by: Option<String>,
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

/// Reads a model list.
#[must_use]
pub fn parse(body: &[u8]) -> Option<ModelList> {
    let answer: Answer<'_> = serde_json::from_slice(body).ok()?;
    let mut list = ModelList { models: Vec::with_capacity(answer.data.len()), owned_by: None };
    for raw in answer.data {
        let Ok(entry) = serde_json::from_str::<Value>(raw.get()) else { continue };
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        let Some(id) = text("id").filter(|id| !id.is_empty()) else { continue };
        list.owned_by = list.owned_by.or_else(|| text("owned_by").map(str::to_owned));
        list.models.push(ServedModel {
            id: id.into(),
            max_model_len: entry.get("max_model_len").and_then(Value::as_u64),
            adapter_of: text("parent").map(Into::into),
            raw: raw.get().into(),
        });
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_own_text_and_odd_ones_are_passed_over() {
        let list = parse(
            br#"{"object":"list","data":[7,{"id":""},{"id":"base","max_model_len":4096,"owned_by":"vllm"},
                {"id":"sql-lora","parent":"base","x":1e2}]}"#,
        )
        .unwrap();

        let ids: Vec<&str> = list.models.iter().map(|model| &*model.id).collect();
        assert_eq!(ids, ["base", "sql-lora"]);
        assert_eq!(list.models[0].max_model_len, Some(4096));
        assert_eq!(list.models[1].adapter_of.as_deref(), Some("base"));
        assert_eq!(&*list.models[1].raw, r#"{"id":"sql-lora","parent":"base","x":1e2}"#);
        assert_eq!(list.owned_by.as_deref(), Some("vllm"));
    }

    #[test]
    fn what_is_no_list_is_not_an_empty_list() {
        for body in [&b"<html>"[..], b"", b"[]", br#"{"detail":"Not Found"}"#, br#"{"data":3}"#] {
            assert!(parse(body).is_none());
        }
        assert!(parse(br#"{"data":[]}"#).unwrap().models.is_empty());
    }
}
