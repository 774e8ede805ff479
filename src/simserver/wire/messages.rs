//! `/v1/messages`, Anthropic's shape, as both engines write it.
//!
//! SGLang leaves cached tokens out of `input_tokens` and names them apart; vLLM counts them in and does not name them.
//! Source: `shared/captures/{vllm,sglang}/stream/messages-stream`, `json/messages`.

use super::{Choice, Delta, Head, Usage, Wire, quoted};
use crate::simserver::{config::Flavor, errors::ApiError, meter::put, output::Finish};

/// `/v1/messages`.
#[derive(Debug)]
pub(super) struct Messages {
    flavor: Flavor,
    head: Head,
    finish: Finish,
}

impl Messages {
    pub(super) fn new(flavor: Flavor, head: Head) -> Self {
        Self { flavor, head, finish: Finish::Length }
    }

    fn input_usage(&self, prompt: usize, cached: usize, output: usize) -> String {
        match self.flavor {
            Flavor::Vllm => format!("{{\"input_tokens\":{prompt},\"output_tokens\":{output}}}"),
            Flavor::Sglang => format!(
                "{{\"input_tokens\":{},\"output_tokens\":{output},\"cache_read_input_tokens\":{cached}}}",
                prompt.saturating_sub(cached)
            ),
        }
    }

    /// Anthropic's name of the reason; a stop string is named too.
    fn stop(&self, finish: &Finish) -> (&'static str, String) {
        match finish {
            Finish::Length => ("max_tokens", "null".to_owned()),
            Finish::Stop(text) => ("stop_sequence", quoted(text)),
            Finish::Eos if self.head.tool.is_some() => ("tool_use", "null".to_owned()),
            Finish::Eos | Finish::StopToken(_) => ("end_turn", "null".to_owned()),
        }
    }
}

fn event(out: &mut String, name: &str, members: &str) {
    put(out, format_args!("event: {name}\ndata: {{\"type\":\"{name}\"{members}}}\n\n"));
}

impl Wire for Messages {
    fn delta(&mut self, out: &mut String, delta: &Delta<'_>) {
        if delta.first {
            let (id, model) = (quoted(&self.head.id), quoted(&self.head.model));
            let stop = if self.flavor == Flavor::Vllm { "\"stop_reason\":null,\"stop_sequence\":null," } else { "" };
            let usage = self.input_usage(self.head.prompt_tokens(0), delta.cached, 0);
            event(
                out,
                "message_start",
                &format!(
                    ",\"message\":{{\"id\":{id},\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\
                     \"model\":{model},{stop}\"usage\":{usage}}}"
                ),
            );
            let block = match &self.head.tool {
                None => "\"content_block\":{\"type\":\"text\",\"text\":\"\"}".to_owned(),
                Some((name, id)) => format!(
                    "\"content_block\":{{\"type\":\"tool_use\",\"id\":\"{id}\",\"name\":{},\"input\":{{}}}}",
                    quoted(name)
                ),
            };
            let members = match self.flavor {
                Flavor::Vllm => format!(",{block},\"index\":0"),
                Flavor::Sglang => format!(",\"index\":0,{block}"),
            };
            event(out, "content_block_start", &members);
        }
        if !delta.text.is_empty() {
            let text = quoted(delta.text);
            let change = match self.head.tool {
                None => format!("\"delta\":{{\"type\":\"text_delta\",\"text\":{text}}}"),
                Some(_) => format!("\"delta\":{{\"type\":\"input_json_delta\",\"partial_json\":{text}}}"),
            };
            let members = match self.flavor {
                Flavor::Vllm => format!(",{change},\"index\":0"),
                Flavor::Sglang => format!(",\"index\":0,{change}"),
            };
            event(out, "content_block_delta", &members);
        }
        if let Some(finish) = delta.finish {
            self.finish = finish.clone();
        }
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        let (reason, sequence) = self.stop(&self.finish);
        event(out, "content_block_stop", ",\"index\":0");
        let Usage { prompt, completion, .. } = *usage;
        let members = match self.flavor {
            Flavor::Vllm => format!(
                ",\"delta\":{{\"stop_reason\":\"{reason}\",\"stop_sequence\":{sequence}}},\
                 \"usage\":{{\"input_tokens\":{prompt},\"output_tokens\":{completion}}}"
            ),
            Flavor::Sglang => {
                format!(",\"delta\":{{\"stop_reason\":\"{reason}\"}},\"usage\":{{\"output_tokens\":{completion}}}")
            }
        };
        event(out, "message_delta", &members);
        event(out, "message_stop", "");
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        let (kind, message) = (error.kind, quoted(&error.message));
        event(out, "error", &format!(",\"error\":{{\"type\":\"{kind}\",\"message\":{message}}}"));
    }

    fn whole(&self, choices: &[Choice], usage: &Usage) -> String {
        let (text, finish) =
            choices.first().map_or((String::new(), &Finish::Eos), |choice| (choice.text.clone(), &choice.finish));
        let (reason, _) = self.stop(finish);
        let content = match &self.head.tool {
            None => format!("{{\"type\":\"text\",\"text\":{}}}", quoted(&text)),
            Some((name, id)) => {
                let input = if *finish == Finish::Length { "{}".to_owned() } else { text };
                format!("{{\"type\":\"tool_use\",\"id\":\"{id}\",\"name\":{},\"input\":{input}}}", quoted(name))
            }
        };
        format!(
            "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"content\":[{content}],\"model\":{},\
             \"stop_reason\":\"{reason}\",\"usage\":{}}}",
            quoted(&self.head.id),
            quoted(&self.head.model),
            self.input_usage(usage.prompt, usage.cached, usage.completion)
        )
    }
}
