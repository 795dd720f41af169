"""A GGUF file written here becomes a folder whose model computes what the original computes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter, TokenType
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from reef.errors import BadConfig
from reef.train.torch_runtime.modelfiles import model_facts, read_json
from reef.train.torch_runtime.pull import MANIFEST, usable_folder
from tests.models import CHAT_TEMPLATE, SPECIAL
from tests.train.torch_runtime.support import plain_logprobs

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def write_gguf(folder: Path, path: Path, architecture: str = "llama") -> None:
    """The tiny model as GGUF, with the rotary pairs side by side as that format has them."""
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in load_file(folder / "model.safetensors").items():
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        count = next((n for part, n in heads.items() if part in name), None)
        if count is not None:
            halves = tensor.reshape(count, 2, tensor.shape[0] // count // 2, tensor.shape[1])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_converted_once_and_computes_the_same(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "tiny.gguf"
    write_gguf(tiny, source)
    folder = usable_folder(source, tmp_path / "cache")
    tokens = [1, 50, 60, 70, 80, 90, 100]
    assert plain_logprobs(folder, tokens, 6) == plain_logprobs(tiny, tokens, 6)
    facts, original = model_facts(folder), model_facts(tiny)
    assert (facts.context, facts.vocab, facts.stop_ids) == (original.context, original.vocab, original.stop_ids)
    text = "né 12 <|im_end|> yes"
    both = [Tokenizer.from_file(str(place / "tokenizer.json")).encode(text).ids for place in (folder, tiny)]
    assert both[0] == both[1]
    assert (folder / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    manifest = read_json(folder / MANIFEST)
    assert manifest["source"] == "tiny.gguf" and set(manifest["files"]) >= {"model.safetensors", "config.json"}
    stamp = (folder / MANIFEST).stat().st_mtime_ns
    assert usable_folder(source, tmp_path / "cache") == folder
    assert (folder / MANIFEST).stat().st_mtime_ns == stamp
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_foreign_architecture_says_what_it_needs(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "other.gguf"
    write_gguf(tiny, source, architecture="mamba")
    with pytest.raises(BadConfig):
        usable_folder(source, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "models").iterdir())


def test_a_broken_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(BadConfig, match=r"x\.gguf"):
        usable_folder(tmp_path / "x.gguf", tmp_path / "cache")
