"""Golden files of llama.cpp's quantiser: tests/golden_gguf/qwen2.TYPE.gguf.

Run with the packages gguf, numpy, safetensors and llama-cpp-python in a virtual environment:

    python oracle/gguf_mixtures.py tests/golden/qwen2 tests/golden_gguf

The golden model of the family is written as GGUF in f32, and `llama_model_quantize` makes the rest of that. Its rows have 32 and 48
elements, so the mixtures have the types that stand in for those of 256.
"""

import ctypes
import json
import pathlib
import sys
import tempfile

from gguf import GGUFWriter
from safetensors.numpy import load_file

# llama.cpp's numbers of mixtures.
TYPES = {"q4_1": 3, "q5_0": 8, "q5_1": 9, "q4_k_m": 15, "q5_k_m": 17}

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def renamed(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def write(model: pathlib.Path, to: pathlib.Path) -> None:
    config = json.loads((model / "config.json").read_text())
    writer = GGUFWriter(to, "qwen2")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    for name, tensor in load_file(model / "model.safetensors").items():
        writer.add_tensor(renamed(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(model: pathlib.Path, out: pathlib.Path) -> None:
    import llama_cpp

    with tempfile.TemporaryDirectory() as folder:
        plain = pathlib.Path(folder) / "plain.gguf"
        write(model, plain)
        for name, number in TYPES.items():
            how = llama_cpp.llama_model_quantize_default_params()
            how.ftype, how.nthread = number, 1
            to = out / f"{model.name}.{name}.gguf"
            failed = llama_cpp.llama_model_quantize(str(plain).encode(), str(to).encode(), ctypes.byref(how))
            if failed:
                raise SystemExit(f"{to}: {failed}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
