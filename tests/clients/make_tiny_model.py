#!/usr/bin/env python3
"""Makes the folder of a tiny Llama: configuration, a tokenizer trained on what lies on the machine, a chat template. No
weights; serve it with --load-format dummy, which makes random ones.

Usage: make_tiny_model.py FOLDER      needs the package tokenizers
"""

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 8192,
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "chat_template": TEMPLATE,
}


def texts():
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:120]
    for path in [*sorted(Path("/usr/share/common-licenses").glob("*")), *library]:
        if path.is_file():
            text = path.read_text(errors="replace")[:400_000]
            yield from (text[at : at + 4000] for at in range(0, len(text), 4000))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "pad_token_id": 0}))
    print(f"a model of {tokenizer.get_vocab_size()} tokens in {folder}")


if __name__ == "__main__":
    main()
