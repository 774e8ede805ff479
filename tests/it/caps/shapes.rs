//! The table of shapes: a cap of 100 and a default of 60 output tokens.

use gateway::types::Endpoint::{self, Chat, Completions, Messages, Responses};

/// What becomes of a shape: the limits that the engine reads, and the tokens that the gateway counts. `None` is 400.
pub(super) type Fate = Option<(&'static str, u64)>;

/// One request.
pub(super) struct Shape {
    pub(super) endpoint: Endpoint,
    /// Members beside the prompt.
    members: &'static str,
    /// With `on_excess: reject`.
    pub(super) reject: Fate,
    /// With `on_excess: clamp`.
    pub(super) clamp: Fate,
}

impl Shape {
    /// The whole body.
    pub(super) fn body(&self) -> String {
        let prompt = match self.endpoint {
            Responses => r#""input":"x""#,
            Completions if self.members.contains("\"prompt\"") => r#""model":"m""#,
            Completions => r#""prompt":"x""#,
            _ => r#""messages":[{"role":"user","content":"x"}]"#,
        };
        let comma = if self.members.is_empty() { "" } else { "," };
        format!(r#"{{"model":"m",{prompt}{comma}{}}}"#, self.members)
    }
}

/// Refused when over the cap, else clamped.
const fn over(endpoint: Endpoint, members: &'static str, clamp: Fate) -> Shape {
    Shape { endpoint, members, reject: None, clamp }
}

/// The same whatever happens on excess.
const fn same(endpoint: Endpoint, members: &'static str, fate: Fate) -> Shape {
    Shape { endpoint, members, reject: fate, clamp: fate }
}

pub(super) const SHAPES: &[Shape] = &[
    // Absent and null.
    same(Chat, "", Some(("max_tokens=60", 60))),
    same(Completions, "", Some(("max_tokens=60", 60))),
    same(Responses, "", Some(("max_output_tokens=60", 60))),
    same(Messages, "", Some(("max_tokens=60", 60))),
    same(Chat, r#""max_tokens":null"#, Some(("max_tokens=60", 60))),
    same(
        Chat,
        r#""max_tokens":null,"max_completion_tokens":null"#,
        Some(("max_tokens=60 max_completion_tokens=60", 60)),
    ),
    same(Chat, r#""max_completion_tokens":null"#, Some(("max_completion_tokens=60", 60))),
    same(Responses, r#""max_output_tokens":null"#, Some(("max_output_tokens=60", 60))),
    same(Messages, r#""max_tokens":null"#, Some(("max_tokens=60", 60))),
    same(Completions, r#""max_tokens":null"#, Some(("max_tokens=60", 60))),
    // Within.
    same(Chat, r#""max_tokens":1"#, Some(("max_tokens=1", 1))),
    same(Chat, r#""max_tokens":100"#, Some(("max_tokens=100", 100))),
    same(Chat, r#""max_completion_tokens":100"#, Some(("max_completion_tokens=100", 100))),
    same(Chat, r#""max_tokens":5,"max_completion_tokens":90"#, Some(("max_tokens=5 max_completion_tokens=90", 90))),
    same(Chat, r#""max_tokens":5.0"#, Some(("max_tokens=5.0", 5))),
    same(Chat, r#""max_tokens":1e2"#, Some(("max_tokens=100.0", 100))),
    same(Chat, r#""max_tokens":5,"max_completion_tokens":null"#, Some(("max_tokens=5 max_completion_tokens=null", 5))),
    same(Responses, r#""max_output_tokens":100"#, Some(("max_output_tokens=100", 100))),
    same(Messages, r#""max_tokens":99"#, Some(("max_tokens=99", 99))),
    same(Completions, r#""max_tokens":0"#, Some(("max_tokens=0", 0))),
    same(Completions, r#""max_tokens":0,"echo":true"#, Some(("max_tokens=0", 0))),
    // Over.
    over(Chat, r#""max_tokens":101"#, Some(("max_tokens=100", 100))),
    over(Completions, r#""max_tokens":101"#, Some(("max_tokens=100", 100))),
    over(Responses, r#""max_output_tokens":101"#, Some(("max_output_tokens=100", 100))),
    over(Messages, r#""max_tokens":101"#, Some(("max_tokens=100", 100))),
    over(Chat, r#""max_completion_tokens":999"#, Some(("max_completion_tokens=100", 100))),
    over(Chat, r#""max_tokens":5,"max_completion_tokens":999"#, Some(("max_tokens=5 max_completion_tokens=100", 100))),
    over(Chat, r#""max_tokens":999,"max_completion_tokens":5"#, Some(("max_tokens=100 max_completion_tokens=5", 100))),
    over(Chat, r#""max_tokens":999999999999"#, Some(("max_tokens=100", 100))),
    over(Chat, r#""max_tokens":9999999999999999999999999999"#, Some(("max_tokens=100", 100))),
    over(Chat, r#""max_tokens":9.99e99"#, Some(("max_tokens=100", 100))),
    over(Chat, r#""max_tokens":1e999"#, Some(("max_tokens=100", 100))),
    over(Chat, r#""max_tokens":999.0"#, Some(("max_tokens=100", 100))),
    over(Chat, r#""max_tokens" : 999 "#, Some(("max_tokens=100", 100))),
    over(Messages, r#""max_tokens":9.99e2"#, Some(("max_tokens=100", 100))),
    // Not a count.
    same(Chat, r#""max_tokens":0"#, None),
    same(Responses, r#""max_output_tokens":0"#, None),
    same(Messages, r#""max_tokens":0"#, None),
    same(Chat, r#""max_tokens":-1"#, None),
    same(Completions, r#""max_tokens":-1"#, None),
    same(Responses, r#""max_output_tokens":-999"#, None),
    same(Chat, r#""max_tokens":1.5"#, None),
    same(Chat, r#""max_tokens":"50""#, None),
    same(Chat, r#""max_tokens":"999""#, None),
    same(Messages, r#""max_tokens":"999""#, None),
    same(Chat, r#""max_tokens":true"#, None),
    same(Chat, r#""max_tokens":[999]"#, None),
    same(Chat, r#""max_tokens":{"max":999}"#, None),
    same(Completions, r#""max_tokens":"""#, None),
    same(Chat, r#""max_completion_tokens":"unlimited""#, None),
    // Duplicates and escaped names.
    over(Chat, r#""max_tokens":999,"max_tokens":5"#, Some(("max_tokens=5", 5))),
    over(Chat, r#""max_tokens":5,"max_tokens":999"#, Some(("max_tokens=100", 100))),
    over(Chat, r#""max\u005ftokens":999"#, Some(("max_tokens=100", 100))),
    over(
        Chat,
        r#""\u006dax_completion_tokens":999,"max_tokens":5"#,
        Some(("max_tokens=5 max_completion_tokens=100", 100)),
    ),
    same(Chat, r#""max_tokens":5,"max_tokens":null"#, Some(("max_tokens=60", 60))),
    same(Chat, r#""max_tokens":null,"max_tokens":5"#, Some(("max_tokens=5", 5))),
    over(Responses, r#""max_output_tokens":999,"max_output_tokens":null"#, Some(("max_output_tokens=60", 60))),
    // Look-alikes are no limits, and get none of their own.
    same(Chat, r#""Max_Tokens":99,"MAX_TOKENS":99"#, Some(("max_tokens=60", 60))),
    same(Chat, r#""max_tokens ":99,"maxTokens":99"#, Some(("max_tokens=60", 60))),
    same(Chat, r#""extra_body":{"max_tokens":99}"#, Some(("max_tokens=60", 60))),
    // Limits of other dialects: an engine that reads them reads nothing over the cap.
    over(Chat, r#""max_output_tokens":999"#, Some(("max_tokens=60 max_output_tokens=100", 60))),
    over(Completions, r#""max_completion_tokens":999"#, Some(("max_tokens=60 max_completion_tokens=100", 60))),
    over(Responses, r#""max_tokens":999"#, Some(("max_tokens=100 max_output_tokens=60", 60))),
    over(
        Messages,
        r#""max_tokens":5,"max_completion_tokens":999"#,
        Some(("max_tokens=5 max_completion_tokens=100", 5)),
    ),
    // A least number of tokens.
    same(Chat, r#""max_tokens":50,"min_tokens":50"#, Some(("max_tokens=50 min_tokens=50", 50))),
    same(Chat, r#""max_tokens":50,"min_tokens":0"#, Some(("max_tokens=50 min_tokens=0", 50))),
    over(Chat, r#""max_tokens":50,"min_tokens":999"#, Some(("max_tokens=50 min_tokens=100", 50))),
    same(Completions, r#""max_tokens":50,"min_tokens":-1"#, None),
    // Times choices.
    same(Chat, r#""n":1,"max_tokens":100"#, Some(("max_tokens=100", 100))),
    same(Chat, r#""n":null"#, Some(("max_tokens=60", 60))),
    same(Chat, r#""n":4,"max_tokens":25"#, Some(("max_tokens=25", 100))),
    same(Chat, r#""n":4"#, Some(("max_tokens=25", 100))),
    over(Chat, r#""n":4,"max_tokens":26"#, Some(("max_tokens=25", 100))),
    over(Chat, r#""n":2,"n":10,"max_tokens":50"#, Some(("max_tokens=10", 100))),
    over(Completions, r#""best_of":5,"max_tokens":100"#, Some(("max_tokens=20", 100))),
    over(Completions, r#""n":2,"best_of":5,"max_tokens":100"#, Some(("max_tokens=20", 100))),
    over(Completions, r#""use_beam_search":true,"n":8,"max_tokens":100"#, Some(("max_tokens=12", 96))),
    same(Chat, r#""n":101"#, None),
    same(Chat, r#""n":16384,"max_tokens":1"#, None),
    // Times prompts.
    over(Completions, r#""prompt":["a","b"],"max_tokens":100"#, Some(("max_tokens=50", 100))),
    over(Completions, r#""prompt":[[1,2],[3]],"max_tokens":100"#, Some(("max_tokens=50", 100))),
    same(Completions, r#""prompt":[1,2,3],"max_tokens":100"#, Some(("max_tokens=100", 100))),
    same(Completions, r#""prompt":[],"max_tokens":100"#, Some(("max_tokens=100", 100))),
    over(Completions, r#""prompt":["a","b"],"n":5,"max_tokens":50"#, Some(("max_tokens=10", 100))),
    over(Completions, r#""prompt":"a","prompt":["a","b","c","d"],"max_tokens":50"#, Some(("max_tokens=25", 100))),
];
