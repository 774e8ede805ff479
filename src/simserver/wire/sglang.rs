//! Chat and text completions as SGLang 0.5 writes them.
//!
//! A chat's finish reasons come in chunks of their own after all text, each choice of a stream has its own id, and text
//! completions carry `"usage":null` in every chunk.
//! Source: `shared/captures/sglang/stream/{chat,completions}-*`, `json/{chat,completions}-*`.

use super::{Choice, DONE, Delta, Head, Usage, Wire, quoted};
use crate::{
    simserver::{config::Flavor, errors::ApiError, meter::put, output::Finish},
    simulator::text,
};

/// `/v1/chat/completions`.
#[derive(Debug)]
pub(super) struct Chat {
    head: Head,
    ends: Vec<Option<Finish>>,
    last_index: usize,
}

/// `/v1/completions`.
#[derive(Debug)]
pub(super) struct Completions(pub(super) Head);

impl Chat {
    pub(super) fn new(head: Head) -> Self {
        let ends = vec![None; head.choices];
        Self { head, ends, last_index: 0 }
    }
}

/// SGLang names the end-of-sequence token as what matched.
fn matched(finish: &Finish) -> String {
    if *finish == Finish::Eos { text::EOS.to_string() } else { super::matched(finish) }
}

fn usage_text(head: &Head, usage: &Usage, details: &str) -> String {
    let Usage { prompt, completion, cached, .. } = *usage;
    let total = prompt + completion;
    let cached = if head.report_cached { format!("{{\"cached_tokens\":{cached}}}") } else { "null".to_owned() };
    format!(
        "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{completion},\
         \"prompt_tokens_details\":{cached},\"reasoning_tokens\":0{details}}}"
    )
}

const DETAILS: &str = ",\"completion_tokens_details\":null";

/// What a chunk begins with: id of the choice, object, time, model.
fn prefix(head: &Head, index: usize, object: &str) -> String {
    let (id, created, model) = (quoted(head.id_of(index)), head.created, quoted(&head.model));
    format!("\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model}")
}

fn chunk(out: &mut String, prefix: &str, choice: &str, rest: &str) {
    put(out, format_args!("data: {{{prefix},\"choices\":[{choice}]{rest}}}\n\n"));
}

fn fail(out: &mut String, error: &ApiError) {
    out.push_str(&error.event(Flavor::Sglang));
    out.push_str(DONE);
}

/// The trailer of a whole answer.
fn metadata(completion: usize, choices: usize) -> String {
    let end = completion / choices.max(1);
    format!(
        "{{\"weight_version\":\"default\",\"weight_versions\":[{{\"version\":\"default\",\"start\":0,\"end\":{end}}}]}}"
    )
}

impl Chat {
    const OBJECT: &'static str = "chat.completion.chunk";

    fn piece(&self, out: &mut String, index: usize, delta: &str, rest: &str) {
        let choice = format!(
            "{{\"index\":{index},\"delta\":{{{delta}}},\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null}}"
        );
        chunk(out, &prefix(&self.head, index, Self::OBJECT), &choice, rest);
    }
}

impl Wire for Chat {
    fn delta(&mut self, out: &mut String, delta: &Delta<'_>) {
        let index = delta.index;
        if delta.first {
            self.piece(out, index, "\"reasoning_content\":null,\"role\":\"assistant\",\"content\":\"\"", "");
            if let Some((name, id)) = &self.head.tool {
                let call = format!(
                    "\"role\":null,\"content\":null,\"reasoning_content\":null,\"tool_calls\":[{{\"id\":\"{id}\",\
                     \"index\":0,\"type\":\"function\",\"function\":{{\"name\":{},\"arguments\":\"\"}}}}]",
                    quoted(name)
                );
                self.piece(out, index, &call, ",\"usage\":null");
            }
        }
        if !delta.text.is_empty() || delta.finish.is_none() {
            let text = quoted(delta.text);
            if self.head.tool.is_some() {
                let call = format!(
                    "\"role\":null,\"content\":null,\"reasoning_content\":null,\"tool_calls\":[{{\"id\":null,\
                     \"index\":0,\"type\":\"function\",\"function\":{{\"name\":null,\"arguments\":{text}}}}}]"
                );
                self.piece(out, index, &call, ",\"usage\":null");
            } else {
                let mut rest = String::new();
                if self.head.continuous_usage {
                    let prompt = self.head.prompt_tokens(index);
                    let usage = Usage { prompt, completion: delta.generated, cached: delta.cached, stored: 0 };
                    rest = format!(",\"usage\":{}", usage_text(&self.head, &usage, DETAILS));
                }
                self.piece(out, index, &format!("\"reasoning_content\":null,\"content\":{text}"), &rest);
            }
        }
        self.last_index = index;
        if let (Some(finish), Some(slot)) = (delta.finish, self.ends.get_mut(index)) {
            *slot = Some(finish.clone());
        }
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        for (index, finish) in self.ends.iter().enumerate() {
            let Some(finish) = finish else { continue };
            let choice = format!(
                "{{\"index\":{index},\"delta\":{{\"reasoning_content\":null}},\"logprobs\":null,\
                 \"finish_reason\":\"{}\",\"matched_stop\":{}}}",
                finish.reason(),
                matched(finish)
            );
            chunk(out, &prefix(&self.head, self.last_index, Self::OBJECT), &choice, "");
        }
        if self.head.include_usage {
            let rest = format!(",\"usage\":{}", usage_text(&self.head, usage, DETAILS));
            chunk(out, &prefix(&self.head, self.last_index, Self::OBJECT), "", &rest);
        }
        out.push_str(DONE);
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        fail(out, error);
    }

    fn whole(&self, choices: &[Choice], usage: &Usage) -> String {
        let head = &self.head;
        let list: Vec<String> = choices
            .iter()
            .enumerate()
            .map(|(index, choice)| {
                let text = quoted(&choice.text);
                let (content, calls) = match &head.tool {
                    None => (text, String::new()),
                    Some((name, id)) => (
                        "null".to_owned(),
                        format!(
                            ",\"tool_calls\":[{{\"id\":\"{id}\",\"index\":0,\"type\":\"function\",\"function\":\
                             {{\"name\":{},\"arguments\":{text}}}}}]",
                            quoted(name)
                        ),
                    ),
                };
                let ids = head
                    .prompt_ids
                    .as_ref()
                    .and_then(|ids| ids.first())
                    .map(|prompt| format!(",\"prompt_token_ids\":{prompt},\"response_token_ids\":{}", choice.ids));
                format!(
                    "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":{content},\
                     \"reasoning_content\":null{calls}}},\"logprobs\":null,\"finish_reason\":\"{}\",\
                     \"matched_stop\":{}{}}}",
                    choice.finish.reason(),
                    matched(&choice.finish),
                    ids.unwrap_or_default()
                )
            })
            .collect();
        whole(head, "chat.completion", &list, usage)
    }
}

fn whole(head: &Head, object: &str, list: &[String], usage: &Usage) -> String {
    format!(
        "{{\"id\":{},\"object\":\"{object}\",\"created\":{},\"model\":{},\"choices\":[{}],\"usage\":{},\
         \"metadata\":{}}}",
        quoted(&head.id),
        head.created,
        quoted(&head.model),
        list.join(","),
        usage_text(head, usage, DETAILS),
        metadata(usage.completion, list.len())
    )
}

impl Wire for Completions {
    fn delta(&mut self, out: &mut String, delta: &Delta<'_>) {
        let head = &self.0;
        let choice = format!(
            "{{\"index\":{},\"text\":{},\"logprobs\":null,\"finish_reason\":{},\"matched_stop\":{}}}",
            delta.index,
            quoted(delta.text),
            delta.finish.map_or("null".to_owned(), |finish| format!("\"{}\"", finish.reason())),
            delta.finish.map_or("null".to_owned(), matched),
        );
        let usage = if head.continuous_usage {
            let (prompt, completion) = (head.prompt_tokens(delta.index), delta.generated);
            let total = prompt + completion;
            format!(
                "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{completion},\
                 \"prompt_tokens_details\":null,\"reasoning_tokens\":0,\"completion_tokens_details\":null}}"
            )
        } else {
            "null".to_owned()
        };
        chunk(out, &prefix(head, delta.index, "text_completion"), &choice, &format!(",\"usage\":{usage}"));
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        let head = &self.0;
        if head.include_usage {
            let last = head.choices.saturating_sub(1);
            let rest = format!(",\"usage\":{}", usage_text(head, usage, ""));
            chunk(out, &prefix(head, last, "text_completion"), "", &rest);
        }
        out.push_str(DONE);
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        fail(out, error);
    }

    fn whole(&self, choices: &[Choice], usage: &Usage) -> String {
        let head = &self.0;
        let list: Vec<String> = choices
            .iter()
            .enumerate()
            .map(|(index, choice)| {
                let ids = head
                    .prompt_ids
                    .as_ref()
                    .and_then(|ids| ids.get(index))
                    .map(|prompt| format!(",\"token_ids\":{},\"prompt_token_ids\":{prompt}", choice.ids));
                format!(
                    "{{\"index\":{index},\"text\":{},\"logprobs\":null,\"finish_reason\":\"{}\",\
                     \"matched_stop\":{}{}}}",
                    quoted(&choice.text),
                    choice.finish.reason(),
                    matched(&choice.finish),
                    ids.unwrap_or_default()
                )
            })
            .collect();
        whole(head, "text_completion", &list, usage)
    }
}
