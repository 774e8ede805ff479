//! `/v1/responses` as both engines write it: numbered events, the whole answer again in the last one.
//!
//! `response.created` comes before any token. A cut answer ends with `response.completed` in vLLM (and the status
//! "incomplete" inside), with `response.incomplete` in SGLang. There is no `[DONE]`.
//! Source: `shared/captures/{vllm,sglang}/stream/responses-stream`, `json/responses`.

use super::{Choice, Delta, Head, Usage, Wire, quoted};
use crate::simserver::{config::Flavor, errors::ApiError, meter::put, output::Finish};

/// `/v1/responses`.
#[derive(Debug)]
pub(super) struct Responses {
    flavor: Flavor,
    head: Head,
    item: String,
    sequence: usize,
    text: String,
    finish: Finish,
}

impl Responses {
    pub(super) fn new(flavor: Flavor, head: Head) -> Self {
        let item = head.id.replacen("resp_", "msg_", 1);
        Self { flavor, head, item, sequence: 0, text: String::new(), finish: Finish::Eos }
    }

    /// vLLM writes `type` last, SGLang first.
    fn event(&mut self, out: &mut String, name: &str, members: &str) {
        let sequence = self.sequence;
        self.sequence += 1;
        let typed = name.starts_with("response.created")
            || name.starts_with("response.in_progress")
            || name.starts_with("response.incomplete")
            || name.starts_with("response.completed");
        if self.flavor == Flavor::Sglang && typed {
            put(
                out,
                format_args!(
                    "event: {name}\ndata: {{\"type\":\"{name}\",{members},\"sequence_number\":{sequence}}}\n\n"
                ),
            );
        } else {
            put(
                out,
                format_args!(
                    "event: {name}\ndata: {{{members},\"sequence_number\":{sequence},\"type\":\"{name}\"}}\n\n"
                ),
            );
        }
    }

    fn phase(&self) -> &'static str {
        match self.flavor {
            Flavor::Vllm => "null",
            Flavor::Sglang => "\"final_answer\"",
        }
    }

    fn part(text: &str, logprobs: &str) -> String {
        format!("{{\"annotations\":[],\"text\":{},\"type\":\"output_text\",\"logprobs\":{logprobs}}}", quoted(text))
    }

    fn item(&self, content: &str, status: &str) -> String {
        let (id, phase) = (&self.item, self.phase());
        format!(
            "{{\"id\":\"{id}\",\"content\":[{content}],\"role\":\"assistant\",\"status\":\"{status}\",\
             \"type\":\"message\",\"phase\":{phase}}}"
        )
    }

    /// The response object. `done` has what only a finished one has.
    fn object(&self, output: &str, done: Option<(&Finish, &Usage)>) -> String {
        let cut = done.is_some_and(|(finish, _)| *finish == Finish::Length);
        let status = match (done.is_some(), cut) {
            (false, _) => "in_progress",
            (true, true) => "incomplete",
            (true, false) => "completed",
        };
        let incomplete = if cut { "{\"reason\":\"max_output_tokens\"}" } else { "null" };
        let usage = done.map_or("null".to_owned(), |(_, usage)| self.usage(usage));
        let (id, created, model) = (quoted(&self.head.id), self.head.created, quoted(&self.head.model));
        let max = self.head.max_tokens.map_or("null".to_owned(), |max| max.to_string());
        let temperature = self.head.temperature.map_or("1.0".to_owned(), |value| format!("{value:?}"));
        match self.flavor {
            Flavor::Vllm => format!(
                "{{\"id\":{id},\"created_at\":{created},\"incomplete_details\":{incomplete},\"instructions\":null,\
                 \"metadata\":null,\"model\":{model},\"object\":\"response\",\"output\":[{output}],\
                 \"parallel_tool_calls\":true,\"temperature\":{temperature},\"tool_choice\":\"none\",\"tools\":[],\
                 \"top_p\":1.0,\"background\":false,\"max_output_tokens\":{max},\"max_tool_calls\":null,\
                 \"previous_response_id\":null,\"prompt\":null,\"reasoning\":null,\"service_tier\":\"auto\",\
                 \"status\":\"{status}\",\"text\":null,\"top_logprobs\":null,\"truncation\":\"disabled\",\
                 \"usage\":{usage},\"user\":null,\"presence_penalty\":0.0,\"frequency_penalty\":0.0,\
                 \"kv_transfer_params\":null,\"ec_transfer_params\":null,\"input_messages\":null,\
                 \"output_messages\":null}}"
            ),
            Flavor::Sglang => {
                let text = if done.is_some() { "{\"format\":{\"type\":\"text\"}}" } else { "null" };
                format!(
                    "{{\"id\":{id},\"object\":\"response\",\"created_at\":{created},\"model\":{model},\
                     \"output\":[{output}],\"status\":\"{status}\",\"usage\":{usage},\"parallel_tool_calls\":true,\
                     \"tool_choice\":\"auto\",\"tools\":[],\"error\":null,\"incomplete_details\":{incomplete},\
                     \"instructions\":null,\"max_output_tokens\":{max},\"previous_response_id\":null,\
                     \"reasoning\":{{\"effort\":null,\"summary\":null}},\"store\":true,\"temperature\":{temperature},\
                     \"text\":{text},\"top_p\":null,\"truncation\":\"disabled\",\"user\":null,\"metadata\":{{}}}}"
                )
            }
        }
    }

    fn usage(&self, usage: &Usage) -> String {
        let Usage { prompt, completion, .. } = *usage;
        let (cached, total) = (if self.head.report_cached { usage.cached } else { 0 }, prompt + completion);
        let (more_in, more_out) = match self.flavor {
            Flavor::Vllm => (
                ",\"input_tokens_per_turn\":[],\"cached_tokens_per_turn\":[]",
                ",\"tool_output_tokens\":0,\"output_tokens_per_turn\":[],\"tool_output_tokens_per_turn\":[]",
            ),
            Flavor::Sglang => ("", ""),
        };
        format!(
            "{{\"input_tokens\":{prompt},\"input_tokens_details\":{{\"cached_tokens\":{cached},\
             \"cache_write_tokens\":0{more_in}}},\"output_tokens\":{completion},\
             \"output_tokens_details\":{{\"reasoning_tokens\":0{more_out}}},\"total_tokens\":{total}}}"
        )
    }
}

impl Wire for Responses {
    fn open(&mut self, out: &mut String) {
        let members = format!("\"response\":{}", self.object("", None));
        self.event(out, "response.created", &members);
        self.event(out, "response.in_progress", &members);
    }

    fn delta(&mut self, out: &mut String, delta: &Delta<'_>) {
        let id = self.item.clone();
        if delta.first {
            let item = self.item("", "in_progress");
            self.event(out, "response.output_item.added", &format!("\"item\":{item},\"output_index\":0"));
            let part = Self::part("", if self.flavor == Flavor::Vllm { "[]" } else { "null" });
            self.event(
                out,
                "response.content_part.added",
                &format!("\"content_index\":0,\"item_id\":\"{id}\",\"output_index\":0,\"part\":{part}"),
            );
        }
        if !delta.text.is_empty() {
            self.text.push_str(delta.text);
            self.event(
                out,
                "response.output_text.delta",
                &format!(
                    "\"content_index\":0,\"delta\":{},\"item_id\":\"{id}\",\"logprobs\":[],\"output_index\":0",
                    quoted(delta.text)
                ),
            );
        }
        if let Some(finish) = delta.finish {
            self.finish = finish.clone();
        }
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        let (id, text) = (self.item.clone(), quoted(&self.text));
        let place = format!("\"content_index\":0,\"item_id\":\"{id}\"");
        // The one event whose number is in the middle.
        let sequence = self.sequence;
        self.sequence += 1;
        put(
            out,
            format_args!(
                "event: response.output_text.done\ndata: {{{place},\"logprobs\":[],\"output_index\":0,\
                 \"sequence_number\":{sequence},\"text\":{text},\"type\":\"response.output_text.done\"}}\n\n"
            ),
        );
        let part = Self::part(&self.text, "null");
        self.event(out, "response.content_part.done", &format!("{place},\"output_index\":0,\"part\":{part}"));
        let item = self.item(&part, "completed");
        self.event(out, "response.output_item.done", &format!("\"item\":{item},\"output_index\":0"));
        let cut = self.finish == Finish::Length && self.flavor == Flavor::Sglang;
        let finish = self.finish.clone();
        let members = format!("\"response\":{}", self.object(&item, Some((&finish, usage))));
        self.event(out, if cut { "response.incomplete" } else { "response.completed" }, &members);
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        let members = format!("\"code\":\"{}\",\"message\":{},\"param\":null", error.status, quoted(&error.message));
        self.event(out, "error", &members);
    }

    fn whole(&self, choices: &[Choice], usage: &Usage) -> String {
        let Some(choice) = choices.first() else { return self.object("", None) };
        let item = self.item(&Self::part(&choice.text, "null"), "completed");
        self.object(&item, Some((&choice.finish, usage)))
    }
}
