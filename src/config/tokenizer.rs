//! Reads the tokenizers and chat templates that models name, so that a wrong one is an error at the start.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    error::{ConfigError, Problem},
    plan::{Plan, TokenizerPlan},
};
use crate::prompt::{
    PromptCounter,
    template::{ChatTemplate, TokenizerConfig},
    tokenizer::Tokenizer,
};

/// Largest tokenizer; those of large vocabularies have 35 MB.
const BYTES: u64 = 256 << 20;

/// Reads every model's tokenizer. Relative paths begin at the folder of the configuration file.
pub(super) fn read_all(plan: &mut Plan, place: &str, near: &Path) -> Result<(), ConfigError> {
    let mut problems = Vec::new();
    for (index, model) in plan.models.iter_mut().enumerate() {
        let Some(TokenizerPlan::File { path, chat_template }) = &model.tokenizer else { continue };
        let path = near.join(path);
        match read(&path, chat_template.as_ref().map(|template| near.join(template))) {
            Ok(counter) => model.counter = Some(Arc::new(counter)),
            Err(Wrong { key, message }) => {
                let message = format!("models[{index}].tokenizer.{key} {message}");
                problems.push(Problem { place: place.to_owned(), message });
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(ConfigError { problems }) }
}

/// What is wrong with which key.
struct Wrong {
    key: &'static str,
    message: String,
}

fn read(path: &Path, template: Option<PathBuf>) -> Result<PromptCounter, Wrong> {
    let wrong = |key, path: &Path, error: &dyn std::fmt::Display| Wrong {
        key,
        message: format!("is `{}`, which {error}; name the file that came with the model", path.display()),
    };
    let json = bytes_of(path).map_err(|error| wrong("path", path, &error))?;
    let tokenizer = Tokenizer::from_json(&json).map_err(|error| wrong("path", path, &error))?;
    let beside = path.with_file_name("tokenizer_config.json");
    let config: TokenizerConfig = if beside.exists() {
        let json = bytes_of(&beside).map_err(|error| wrong("path", &beside, &error))?;
        serde_json::from_slice(&json).map_err(|error| wrong("path", &beside, &format!("cannot be read: {error}")))?
    } else {
        TokenizerConfig::default()
    };
    let alone = path.with_file_name("chat_template.jinja");
    let source = match template.or_else(|| alone.exists().then_some(alone)) {
        Some(file) => {
            let text = bytes_of(&file).map_err(|error| wrong("chat_template", &file, &error))?;
            Some(
                String::from_utf8(text)
                    .map_err(|error| wrong("chat_template", &file, &format!("is no text: {error}")))?,
            )
        }
        None => config.template().map(str::to_owned),
    };
    let template = source.map(|source| ChatTemplate::new(&source, &config)).transpose();
    let template = template.map_err(|error| wrong("chat_template", path, &format!("does not compile: {error}")))?;
    Ok(PromptCounter::new(tokenizer, template))
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("cannot be read: {error}");
    let bytes = std::fs::metadata(path).map_err(cannot)?.len();
    if bytes > BYTES {
        return Err(format!("has {bytes} bytes, more than {BYTES}"));
    }
    std::fs::read(path).map_err(cannot)
}
