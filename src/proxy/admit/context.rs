//! The model's context: a request that surely does not fit is answered as its engine would, or is made to fit.

use super::caps::{Limits, Output};
use crate::{
    error::{ErrorKind, GatewayError, Stage},
    prompt::Counted,
    types::EngineKind,
};

/// Prompt plus output that the replicas of a model can take, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Of the smallest replica.
    pub least: u64,
    /// Of the largest replica.
    pub most: u64,
}

/// Refuses a prompt over its cap. A prompt cannot be clamped.
///
/// # Errors
/// `OverCap` with both numbers.
pub fn hold_prompt(counted: &Counted, limits: &Limits) -> Result<(), GatewayError> {
    let Some(cap) = limits.prompt.filter(|cap| counted.most > *cap) else { return Ok(()) };
    let message = if counted.exact {
        format!("the prompt has {} tokens; this gateway allows at most {cap}", counted.tokens)
    } else {
        format!("the prompt has up to {} tokens by estimate; this gateway allows at most {cap}", counted.most)
    };
    Err(GatewayError::new(ErrorKind::OverCap, Stage::Admit, message).param("prompt"))
}

/// Makes prompt and output fit the context, or refuses the request in the words of its engine.
///
/// Only a sure count refuses. With `on_excess: clamp` the output is lowered to what is left; a default that the gateway
/// itself sets always is.
///
/// # Errors
/// `OverContext` with both numbers.
pub fn fit(
    counted: &Counted,
    output: &mut Output<'_>,
    context: Context,
    limits: &Limits,
    engine: EngineKind,
) -> Result<(), GatewayError> {
    let sure = if counted.exact { counted.longest } else { counted.longest.min(counted.tokens) };
    if sure >= context.most {
        return Err(refusal(sure, None, context.most, engine));
    }
    let prompt = if counted.exact { counted.longest } else { counted.most };
    let room = context.least.saturating_sub(prompt);
    match output.named() {
        None => {
            if output.limit().is_some_and(|limit| limit > room) && room > 0 {
                output.fit(room);
            }
        }
        Some(named) if named <= room => {}
        Some(_) if limits.clamps && room > 0 => output.fit(room),
        Some(named) if counted.exact && counted.longest + named > context.most => {
            return Err(refusal(counted.longest, Some(named), context.most, engine));
        }
        Some(_) => {}
    }
    Ok(())
}

/// What the engine says of a request that is too long.
fn refusal(prompt: u64, output: Option<u64>, context: u64, engine: EngineKind) -> GatewayError {
    let message = match (engine, output) {
        (EngineKind::Sglang, None) => {
            format!("The input ({prompt} tokens) is longer than the model's context length ({context} tokens).")
        }
        (EngineKind::Sglang, Some(output)) => format!(
            "Requested token count exceeds the model's maximum context length of {context} tokens. You requested a \
             total of {} tokens: {prompt} tokens from the input messages and {output} tokens for the completion. \
             Please reduce the number of tokens in the input messages or the completion to fit within the limit.",
            prompt.saturating_add(output)
        ),
        (_, None) => format!(
            "This model's maximum context length is {context} tokens. However, your prompt contains at least {prompt} \
             input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
             input prompt. (parameter=input_tokens, value={prompt})"
        ),
        (_, Some(output)) => format!(
            "This model's maximum context length is {context} tokens. However, you requested {output} output tokens \
             and your prompt contains at least {prompt} input tokens, for a total of at least {} tokens. Please reduce \
             the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, \
             value={prompt})",
            prompt.saturating_add(output)
        ),
    };
    GatewayError::new(ErrorKind::OverContext, Stage::Admit, message).param("input_tokens")
}
