"""A tiny random model for tests: 93k parameters, byte-level BPE, chat template with tools, as a plain HF folder.

Knows nothing of reef. Called by tests of any layer that need a real model folder.
"""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
EOS = "<|im_end|>"
CORPUS = (
    "digits letters answer with one word please capital of France is Paris",
    "user assistant system tool 0 1 2 3 4 5 6 7 8 9 a b c d e f yes no",
)
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{% endif %}
{{- 'Tools:\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{% endfor %}
{{- 'Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{{- '\\n<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


def build_tiny_model(folder: Path, *, seed: int = 0, context: int = 512, initializer_range: float = 0.08) -> Path:
    """Write the tiny model into ``folder`` (created) and return it; the same seed gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = _write_tokenizer(folder)
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=initializer_range,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    before = torch.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    torch.set_rng_state(before)
    model.save_pretrained(folder)
    return folder


def _write_tokenizer(folder: Path) -> int:
    """Train and write the byte-level BPE tokenizer; returns its vocabulary size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=298,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[1],
        "eos_token": EOS,
        "pad_token": SPECIAL[0],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(facts, indent=1))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return int(tokenizer.get_vocab_size())
