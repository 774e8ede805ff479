//! Error answers in each engine's own shape.
//!
//! vLLM nests (`{"error": {...}}`), SGLang is flat (`{"object": "error", ...}`), `/v1/messages` follows Anthropic, 401 and
//! 404 are bare in both. SGLang's validation messages also leak source paths; that part is left out here.
//! Source: `shared/captures/{vllm,sglang}/errors`, `replica2/auth-*`.

use serde_json::{Map, Value, json};

use super::config::Flavor;

/// A request that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: u16,
    pub(super) message: String,
    pub(super) kind: &'static str,
    pub(super) param: Option<String>,
}

impl ApiError {
    /// 400 found by looking at values.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self { status: 400, message: message.into(), kind: "BadRequestError", param: None }
    }

    /// 400 about one parameter; vLLM adds its name and value to the message.
    pub(super) fn param(flavor: Flavor, message: &str, name: &str, value: Option<String>) -> Self {
        if flavor == Flavor::Sglang {
            return Self::bad(message);
        }
        let value = value.map(|value| format!(", value={value}")).unwrap_or_default();
        Self { param: Some(name.to_owned()), ..Self::bad(format!("{message} (parameter={name}{value})")) }
    }

    /// 400 found by the schema: wrong type, missing field, broken JSON.
    pub(super) fn schema(flavor: Flavor, kind: &str, path: &[&str], message: &str, input: &str) -> Self {
        let (location, param) = match flavor {
            Flavor::Vllm => {
                let location = std::iter::once("body").chain(path.iter().copied()).collect::<Vec<_>>().join(".");
                (format!("'{location}'"), Some(location))
            }
            Flavor::Sglang if path.is_empty() => ("('body',)".to_owned(), None),
            Flavor::Sglang => {
                let parts: Vec<String> = path.iter().map(|part| format!("'{part}'")).collect();
                (format!("('body', {})", parts.join(", ")), None)
            }
        };
        let message = format!(
            "1 validation error:\n  {{'type': '{kind}', 'loc': {location}, 'msg': '{message}', 'input': {input}}}"
        );
        Self { status: 400, message, kind: "Bad Request", param }
    }

    /// 404 of a model that is not served; vLLM only.
    pub(super) fn unknown_model(model: &str, served: &str) -> Self {
        Self {
            status: 404,
            message: format!("The model `{model}` does not exist. Valid aliases: {served}."),
            kind: "NotFoundError",
            param: Some("model".to_owned()),
        }
    }

    /// The queue is full.
    pub(super) fn queue_full(flavor: Flavor) -> Self {
        let (message, kind) = match flavor {
            Flavor::Vllm => (
                "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                 different instance.",
                "Service Unavailable",
            ),
            Flavor::Sglang => ("The request queue is full.", "503"),
        };
        Self { status: 503, message: message.to_owned(), kind, param: None }
    }

    /// The engine process died.
    pub(super) fn dead() -> Self {
        Self {
            status: 500,
            message: "EngineCore encountered an issue. See stack trace (above) for the root cause.".to_owned(),
            kind: "InternalServerError",
            param: None,
        }
    }

    /// The body of the answer.
    pub(super) fn body(&self, flavor: Flavor, anthropic: bool) -> String {
        let message = &self.message;
        if anthropic {
            let error = ordered(&[("type", json!(self.kind)), ("message", json!(message))]);
            return format!("{{\"type\":\"error\",\"error\":{error}}}");
        }
        let tail = [
            ("message", json!(message)),
            ("type", json!(self.kind)),
            ("param", json!(self.param)),
            ("code", json!(self.status)),
        ];
        match flavor {
            Flavor::Vllm => format!("{{\"error\":{}}}", ordered(&tail)),
            Flavor::Sglang => {
                let mut all = vec![("object", json!("error"))];
                all.extend(tail);
                ordered(&all)
            }
        }
    }

    /// The event that ends a stream. Both engines write it with Python's spaces.
    pub(super) fn event(&self, flavor: Flavor) -> String {
        let (object, kind) = match flavor {
            Flavor::Vllm => ("", self.kind),
            Flavor::Sglang if self.status == 503 => ("\"object\": \"error\", ", "SERVICE_UNAVAILABLE"),
            Flavor::Sglang => ("\"object\": \"error\", ", "INTERNAL_SERVER_ERROR"),
        };
        let message = json!(self.message);
        format!(
            "data: {{\"error\": {{{object}\"message\": {message}, \"type\": \"{kind}\", \"param\": null, \"code\": {}}}}}\n\n",
            self.status
        )
    }
}

/// A JSON object with its members in this order.
fn ordered(members: &[(&str, Value)]) -> String {
    let members: Vec<String> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

/// A value as the validation messages show it.
pub(super) fn shown(flavor: Flavor, value: &Value) -> String {
    match (value, flavor) {
        (Value::String(text), _) => format!("'{text}'"),
        (Value::Null, _) => "None".to_owned(),
        (Value::Object(map), Flavor::Vllm) => shown_map(map),
        (Value::Array(list), Flavor::Vllm) => format!("'<list of {} items>'", list.len()),
        (other, _) => other.to_string(),
    }
}

/// A whole body as the validation messages show it.
pub(super) fn shown_map(map: &Map<String, Value>) -> String {
    format!("'<dict of {} items>'", map.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_the_captures() {
        let full = ApiError::queue_full(Flavor::Vllm);
        assert_eq!(
            full.body(Flavor::Vllm, false),
            "{\"error\":{\"message\":\"The engine is currently busy and cannot accept new requests. Please try again \
             later or on a different instance.\",\"type\":\"Service Unavailable\",\"param\":null,\"code\":503}}"
        );
        let full = ApiError::queue_full(Flavor::Sglang);
        assert_eq!(
            full.body(Flavor::Sglang, false),
            "{\"object\":\"error\",\"message\":\"The request queue is full.\",\"type\":\"503\",\"param\":null,\"code\":503}"
        );
        assert_eq!(
            full.event(Flavor::Sglang),
            "data: {\"error\": {\"object\": \"error\", \"message\": \"The request queue is full.\", \
             \"type\": \"SERVICE_UNAVAILABLE\", \"param\": null, \"code\": 503}}\n\n"
        );
        assert_eq!(
            ApiError::unknown_model("nope", "tiny").body(Flavor::Vllm, true),
            "{\"type\":\"error\",\"error\":{\"type\":\"NotFoundError\",\"message\":\"The model `nope` does not exist. \
             Valid aliases: tiny.\"}}"
        );
    }
}
