//! Chat and text completions as vLLM 0.32 writes them.
//!
//! The role comes in a chunk of its own together with the first token, the finish reason on the chunk with the last
//! text, usage in a last chunk without choices, and the fingerprint only on whichever chunk is the last.
//! Source: `shared/captures/vllm/stream/{chat,completions}-*`, `json/{chat,completions}-*`.

use super::{Choice, DONE, Delta, Head, Usage, Wire, matched, quoted};
use crate::simserver::{config::Flavor, errors::ApiError, meter::put};

/// `/v1/chat/completions`.
#[derive(Debug)]
pub(super) struct Chat(pub(super) Head);

/// `/v1/completions`.
#[derive(Debug)]
pub(super) struct Completions(pub(super) Head);

/// Usage in a stream. `details` is a chat's running usage, which has one more key than all others.
fn stream_usage(head: &Head, usage: &Usage, details: bool) -> String {
    let Usage { prompt, completion, cached, stored } = *usage;
    let total = prompt + completion;
    let mut out = format!("{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{completion}");
    if head.report_cached {
        put(
            &mut out,
            format_args!(",\"prompt_tokens_details\":{{\"cached_tokens\":{cached},\"created_cache_tokens\":{stored}}}"),
        );
    }
    if details {
        out.push_str(",\"completion_tokens_details\":null");
    }
    out.push('}');
    out
}

fn full_usage(head: &Head, usage: &Usage) -> String {
    let Usage { prompt, completion, cached, stored } = *usage;
    let total = prompt + completion;
    let details = if head.report_cached {
        format!("{{\"cached_tokens\":{cached},\"created_cache_tokens\":{stored},\"multimodal_tokens\":null}}")
    } else {
        "null".to_owned()
    };
    format!(
        "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{completion},\
         \"prompt_tokens_details\":{details},\"completion_tokens_details\":null}}"
    )
}

/// The running usage of one chunk, as a member with a comma before it; empty when it was not asked for.
fn running(head: &Head, delta: &Delta<'_>, completion: usize, details: bool) -> String {
    if !(head.include_usage && head.continuous_usage) {
        return String::new();
    }
    let prompt = head.prompt_tokens(delta.index);
    let usage = Usage { prompt, completion, cached: delta.cached, stored: stored(head, prompt, delta.cached) };
    format!(",\"usage\":{}", stream_usage(head, &usage, details))
}

/// Prompt tokens that a request wrote to the cache: its whole blocks, less those that were there.
pub(super) fn stored(head: &Head, prompt: usize, cached: usize) -> usize {
    (prompt / head.block_size * head.block_size).saturating_sub(cached)
}

fn chunk(out: &mut String, head: &Head, object: &str, choice: &str, rest: &str) {
    let (id, created, model) = (quoted(&head.id), head.created, quoted(&head.model));
    put(
        out,
        format_args!(
            "data: {{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\
             \"choices\":[{choice}]{rest}}}\n\n"
        ),
    );
}

fn fingerprint(head: &Head, here: bool) -> String {
    if here { format!(",\"system_fingerprint\":{}", quoted(&head.fingerprint)) } else { String::new() }
}

fn close(out: &mut String, head: &Head, object: &str, usage: &Usage) {
    if head.include_usage {
        let rest = format!(",\"usage\":{}{}", stream_usage(head, usage, false), fingerprint(head, true));
        chunk(out, head, object, "", &rest);
    }
    out.push_str(DONE);
}

fn fail(out: &mut String, error: &ApiError) {
    out.push_str(&error.event(Flavor::Vllm));
    out.push_str(DONE);
}

impl Wire for Chat {
    fn delta(&mut self, out: &mut String, delta: &Delta<'_>) {
        const OBJECT: &str = "chat.completion.chunk";
        let head = &self.0;
        if delta.opens {
            for index in 0..head.choices {
                let choice = format!(
                    "{{\"index\":{index},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\
                     \"finish_reason\":null}}"
                );
                let ids = head.prompt_ids.as_ref().and_then(|ids| ids.first()).map_or("null", String::as_str);
                let usage = running(head, delta, 0, true);
                chunk(out, head, OBJECT, &choice, &format!("{usage},\"prompt_token_ids\":{ids},\"prompt_text\":null"));
            }
        }
        let (index, ids, text) = (delta.index, delta.ids, quoted(delta.text));
        let usage = running(head, delta, delta.generated, true);
        if let Some((name, id)) = head.tool.as_ref().filter(|_| delta.first) {
            let name = quoted(name);
            let choice = format!(
                "{{\"index\":{index},\"delta\":{{\"content\":null,\"tool_calls\":[{{\"id\":\"{id}\",\
                 \"type\":\"function\",\"index\":0,\"function\":{{\"name\":{name}}}}}]}},\"logprobs\":null,\
                 \"finish_reason\":null,\"token_ids\":null}}"
            );
            chunk(out, head, OBJECT, &choice, &usage);
        }
        let content = match (&head.tool, delta.text.is_empty() && delta.finish.is_some()) {
            (_, true) => String::new(),
            (None, _) => format!("\"content\":{text}"),
            (Some(_), _) => {
                format!("\"content\":null,\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":{text}}}}}]")
            }
        };
        let finish = match delta.finish {
            None => "null".to_owned(),
            Some(finish) => format!("\"{}\",\"stop_reason\":{}", finish.reason(), matched(finish)),
        };
        let choice = format!(
            "{{\"index\":{index},\"delta\":{{{content}}},\"logprobs\":null,\"finish_reason\":{finish},\
             \"token_ids\":{ids}}}"
        );
        let rest = usage + &fingerprint(head, delta.last && !head.include_usage);
        chunk(out, head, OBJECT, &choice, &rest);
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        close(out, &self.0, "chat.completion.chunk", usage);
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        fail(out, error);
    }

    fn whole(&self, choices: &[Choice], usage: &Usage) -> String {
        let head = &self.0;
        let choices: Vec<String> = choices
            .iter()
            .enumerate()
            .map(|(index, choice)| {
                let text = quoted(&choice.text);
                let (content, calls) = match &head.tool {
                    None => (text, String::new()),
                    Some((name, id)) => (
                        "\"\"".to_owned(),
                        format!(
                            ",\"tool_calls\":[{{\"id\":\"{id}\",\"type\":\"function\",\"function\":{{\"name\":{},\
                             \"arguments\":{text}}}}}]",
                            quoted(name)
                        ),
                    ),
                };
                format!(
                    "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":{content},\"refusal\":null,\
                     \"annotations\":null,\"audio\":null,\"function_call\":null{calls},\"reasoning\":null}},\
                     \"logprobs\":null,\"finish_reason\":\"{}\",\"stop_reason\":{},\"token_ids\":{},\
                     \"routed_experts\":null}}",
                    choice.finish.reason(),
                    matched(&choice.finish),
                    choice.ids
                )
            })
            .collect();
        let prompt_ids = head.prompt_ids.as_ref().and_then(|ids| ids.first()).map_or("null", String::as_str);
        format!(
            "{{\"id\":{},\"object\":\"chat.completion\",\"created\":{},\"model\":{},\"choices\":[{}],\
             \"service_tier\":null,\"system_fingerprint\":{},\"usage\":{},\"prompt_logprobs\":null,\
             \"prompt_token_ids\":{prompt_ids},\"prompt_text\":null,\"kv_transfer_params\":null,\
             \"ec_transfer_params\":null,\"metrics\":null}}",
            quoted(&head.id),
            head.created,
            quoted(&head.model),
            choices.join(","),
            quoted(&head.fingerprint),
            full_usage(head, usage)
        )
    }
}

impl Wire for Completions {
    fn delta(&mut self, out: &mut String, delta: &Delta<'_>) {
        let head = &self.0;
        let finish = delta.finish.map_or("null".to_owned(), |finish| format!("\"{}\"", finish.reason()));
        let prompt_ids = head.prompt_ids.as_ref().and_then(|ids| ids.get(delta.index)).filter(|_| delta.first);
        let choice = format!(
            "{{\"index\":{},\"text\":{},\"logprobs\":null,\"finish_reason\":{finish},\"stop_reason\":{},\
             \"prompt_token_ids\":{},\"token_ids\":{}}}",
            delta.index,
            quoted(delta.text),
            delta.finish.map_or("null".to_owned(), matched),
            prompt_ids.map_or("null", String::as_str),
            delta.ids
        );
        let rest = running(head, delta, delta.generated, false) + &fingerprint(head, delta.last && !head.include_usage);
        chunk(out, head, "text_completion", &choice, &rest);
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        close(out, &self.0, "text_completion", usage);
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        fail(out, error);
    }

    fn whole(&self, choices: &[Choice], usage: &Usage) -> String {
        let head = &self.0;
        let choices: Vec<String> = choices
            .iter()
            .enumerate()
            .map(|(index, choice)| {
                let prompt_ids = head.prompt_ids.as_ref().and_then(|ids| ids.get(index)).map_or("null", String::as_str);
                format!(
                    "{{\"index\":{index},\"text\":{},\"logprobs\":null,\"finish_reason\":\"{}\",\"stop_reason\":{},\
                     \"token_ids\":{},\"prompt_logprobs\":null,\"prompt_token_ids\":{prompt_ids},\
                     \"routed_experts\":null}}",
                    quoted(&choice.text),
                    choice.finish.reason(),
                    matched(&choice.finish),
                    choice.ids
                )
            })
            .collect();
        format!(
            "{{\"id\":{},\"object\":\"text_completion\",\"created\":{},\"model\":{},\"choices\":[{}],\
             \"service_tier\":null,\"system_fingerprint\":{},\"usage\":{},\"kv_transfer_params\":null,\
             \"ec_transfer_params\":null,\"metrics\":null}}",
            quoted(&head.id),
            head.created,
            quoted(&head.model),
            choices.join(","),
            quoted(&head.fingerprint),
            full_usage(head, usage)
        )
    }
}
