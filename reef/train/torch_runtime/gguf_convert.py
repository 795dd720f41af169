"""Turns a GGUF file into a plain Hugging Face folder: weights in float32, tokenizer, chat template.

Llama models with a byte-level BPE tokenizer are converted here, with numpy only; others through transformers. Knows
nothing of where files come from. Called by ``pull``.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reef.errors import BadConfig

Progress = Callable[[str, int, int | None], None]
"""Called with the stage, what is done and what there is to do, in bytes."""

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_SPLITTERS = frozenset({"smollm", "gpt-2", "default"})
_CONTROL, _USER_DEFINED = 3, 4
_GGUF_HINT = "pip install 'reefd[torch]'"


def convert(source: Path, target: Path, progress: Progress) -> None:
    """Write the model in ``source`` into the empty folder ``target``."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise BadConfig("reading GGUF files needs the package gguf", hint=_GGUF_HINT) from error
    try:
        reader = GGUFReader(source)
    except (ValueError, OSError) as error:
        raise BadConfig(f"{source} is no GGUF file: {error}") from error
    facts = _Facts(reader)
    if facts.own:
        _write_weights(reader, facts, target, progress)
        _write_config(facts, target)
        _write_tokenizer(facts, target)
    else:
        progress("converting", 0, None)
        _through_transformers(source, target)


class _Facts:
    """The key-value pairs of a GGUF file."""

    def __init__(self, reader: Any) -> None:
        self._fields = reader.fields
        names = {tensor.name for tensor in reader.tensors}
        self.tied = "output.weight" not in names
        plain = all(name in _OUTER_NAMES or _known_layer(name) for name in names)
        self.own = (
            plain
            and self.get("general.architecture") == "llama"
            and self.get("tokenizer.ggml.model") == "gpt2"
            and self.get("tokenizer.ggml.pre", "default") in _SPLITTERS
            and self.get("llama.rope.scaling.type", "none") == "none"
        )

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        """The value of ``key``; raises BadConfig when the file has none."""
        value = self.get(key)
        if value is None:
            raise BadConfig(f"the GGUF file names no {key}")
        return value

    @property
    def heads(self) -> tuple[int, int]:
        """Query heads and key heads."""
        heads = int(self.need("llama.attention.head_count"))
        return heads, int(self.get("llama.attention.head_count_kv", heads))


def _known_layer(name: str) -> bool:
    match = _LAYER.fullmatch(name)
    return match is not None and match[2] in _LAYER_NAMES


def _tensors(reader: Any, facts: _Facts, progress: Progress) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    from gguf import dequantize

    heads, key_heads = facts.heads
    total = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    done = 0
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        match = _LAYER.fullmatch(tensor.name)
        if match is None:
            name = _OUTER_NAMES[tensor.name]
        else:
            kind = match[2]
            name = f"model.layers.{match[1]}.{_LAYER_NAMES[kind]}.weight"
            if kind in ("attn_q", "attn_k"):
                values = _halves(values, heads if kind == "attn_q" else key_heads)
        yield name, np.ascontiguousarray(values)
        done += int(tensor.n_bytes)
        progress("converting", done, total)


def _halves(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """GGUF keeps the two numbers of a rotary pair side by side, transformers keeps them half a head apart."""
    pairs = values.shape[0] // heads // 2
    return values.reshape(heads, pairs, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def _write_weights(reader: Any, facts: _Facts, target: Path, progress: Progress) -> None:
    from safetensors.numpy import save_file

    save_file(dict(_tensors(reader, facts, progress)), target / "model.safetensors", metadata={"format": "pt"})


def _write_config(facts: _Facts, target: Path) -> None:
    heads, key_heads = facts.heads
    width = int(facts.need("llama.embedding_length"))
    tokens = {
        "bos_token_id": facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts.need("tokenizer.ggml.eos_token_id"),
        "pad_token_id": facts.get("tokenizer.ggml.padding_token_id"),
    }
    # The file holds a float32; its shortest decimal is the number its author wrote.
    epsilon = float(str(np.float32(facts.need("llama.attention.layer_norm_rms_epsilon"))))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": int(facts.need("llama.feed_forward_length")),
        "num_hidden_layers": int(facts.need("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": int(facts.get("llama.attention.key_length", width // heads)),
        "vocab_size": len(facts.need("tokenizer.ggml.tokens")),
        "max_position_embeddings": int(facts.need("llama.context_length")),
        "rms_norm_eps": epsilon,
        "rope_theta": float(facts.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": facts.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
        **tokens,
    }
    (target / "config.json").write_text(json.dumps(config, indent=1))
    (target / "generation_config.json").write_text(json.dumps(tokens, indent=1))


def _write_tokenizer(facts: _Facts, target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = facts.need("tokenizer.ggml.tokens")
    kinds: list[int] = facts.need("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in facts.need("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if facts.get("tokenizer.ggml.pre") == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, its in zip(tokens, kinds, strict=True)
            if its == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    tokenizer.save(str(target / "tokenizer.json"))
    named = {
        f"{name}_token": tokens[at]
        for name in ("bos", "eos", "unk", "pad")
        if (
            at := facts.get(
                f"tokenizer.ggml.{'unknown' if name == 'unk' else 'padding' if name == 'pad' else name}_token_id"
            )
        )
        is not None
    }
    template = facts.get("tokenizer.chat_template")
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": facts.need("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        **named,
    }
    if template is not None:
        described["chat_template"] = template
        (target / "chat_template.jinja").write_text(template)
    (target / "tokenizer_config.json").write_text(json.dumps(described, indent=1))


def _through_transformers(source: Path, target: Path) -> None:
    """Any architecture transformers can read; slower, and it needs the package accelerate."""
    for module in ("torch", "transformers", "accelerate"):
        if importlib.util.find_spec(module) is None:
            raise BadConfig(
                f"{source.name} is no llama model with a BPE tokenizer, and converting others needs {module}",
                hint=f"pip install {module}, or give a Hugging Face folder as model_path",
            )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise BadConfig(f"transformers cannot read {source}: {error}") from error
    # The weights are dense by now, but the model still says it is quantised and would refuse to be saved.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
