//! Forced tool calls: when `tool_choice` names a tool or requires one, the answer is that call.
//!
//! The arguments are the smallest JSON that has the schema's required members. With `tool_choice` "auto" the model talks,
//! as an untrained one does. As captured, a forced call ends with "stop" or "length", not with `tool_calls`.
//! Source: captures `chat-tool_named`, `chat-tool_required`, `errors/tool_choice_without_tools`.

use serde_json::{Map, Value, json};

use super::{errors::ApiError, fields::Fields};

/// A call that the answer must make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    /// JSON text.
    pub(super) arguments: String,
}

/// The call that `tool_choice` forces, if it forces one.
pub(super) fn forced(fields: &Fields<'_>) -> Result<Option<Call>, ApiError> {
    let Some(choice) = fields.get("tool_choice") else { return Ok(None) };
    let word = choice.as_str();
    if matches!(word, Some("auto" | "none")) {
        return Ok(None);
    }
    let tools = fields.list("tools")?.unwrap_or_default();
    if tools.is_empty() {
        let message = "When using `tool_choice`, `tools` must be set.";
        return Err(ApiError::param(fields.flavor, message, "tool_choice", None));
    }
    // Chat nests {"function": {"name"}}, responses and messages have {"name"}.
    let name = function(choice).get("name").and_then(Value::as_str);
    let tool = tools.iter().find(|tool| name.is_none() || function(tool).get("name").and_then(Value::as_str) == name);
    let Some(tool) = tool.map(function) else {
        let name = name.unwrap_or_default();
        return Err(ApiError::bad(format!("Tool '{name}' has not been passed in `tools`.")));
    };
    let schema = tool.get("parameters").or_else(|| tool.get("input_schema")).cloned().unwrap_or_default();
    let name = tool.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Some(Call { name, arguments: sample(&schema, 0).to_string() }))
}

fn function(tool: &Value) -> &Value {
    tool.get("function").unwrap_or(tool)
}

/// The smallest value of a schema.
fn sample(schema: &Value, depth: usize) -> Value {
    if let Some(first) = schema.get("enum").and_then(|list| list.get(0)) {
        return first.clone();
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => json!("text"),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("null") => Value::Null,
        _ if depth > 8 => json!({}),
        _ => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let required = schema.get("required").and_then(Value::as_array);
            let names = required.into_iter().flatten().filter_map(Value::as_str);
            let members: Map<String, Value> = names
                .map(|name| {
                    let member = properties.and_then(|map| map.get(name)).unwrap_or(&Value::Null);
                    (name.to_owned(), sample(member, depth + 1))
                })
                .collect();
            Value::Object(members)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simserver::Flavor;

    #[test]
    fn a_forced_call_has_the_required_members() {
        let body = json!({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]},
            "days": {"type": "integer"}}, "required": ["city", "unit"]}}}]});

        let call = forced(&Fields::new(Flavor::Vllm, body.as_object().unwrap())).unwrap().unwrap();

        assert_eq!(call, Call { name: "weather".into(), arguments: "{\"city\":\"text\",\"unit\":\"c\"}".into() });
    }

    #[test]
    fn a_choice_without_tools_is_refused() {
        let body = json!({"tool_choice": "required"});

        let error = forced(&Fields::new(Flavor::Vllm, body.as_object().unwrap())).unwrap_err();

        assert_eq!(error.message, "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)");
    }
}
