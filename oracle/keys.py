"""Writes tests/golden_keys.json with Transformers: logits of golden models whose configurations have other keys, as published or
edited ones may.

    python oracle/keys.py
"""
import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers

TESTS = Path(__file__).resolve().parent.parent / "tests"
IDS = [3, 9, 30, 5, 41, 7, 12, 8, 60, 22]
PADDED = [1, 2, 3, 1, 1, 7, 8, 2, 1, 5]


def cases():
    """Folder, keys that are set (`None` removes one), ids, and ids of the decoder."""
    # Padding has a position of its own, which is not counted.
    for name in ("roberta", "xlm_roberta", "mpnet"):
        yield f"masked/{name}", {}, PADDED, None
    yield "masked/roberta", {"pad_token_id": 7}, PADDED, None
    yield "masked/mpnet", {"pad_token_id": 7}, PADDED, None
    yield "masked/bert", {"hidden_act": "gelu_python"}, IDS, None
    # Heads of 4 and 2 columns.
    yield "masked/bert", {"num_attention_heads": 8}, IDS, None
    yield "masked/modernbert", {"num_attention_heads": 16}, IDS, None
    yield "masked/deberta", {"num_attention_heads": 8}, IDS, None
    yield "golden/gpt2", {"n_head": 8}, IDS, None
    # The activation is the masked head's too, and no masked head reads the pooling.
    yield "masked/modernbert", {"classifier_activation": "silu", "classifier_pooling": "mean"}, IDS, None
    yield "golden_t5/t5_v11", {"dense_act_fn": "relu"}, IDS, [0, 5, 6]
    yield "golden_t5/t5_v11", {"feed_forward_proj": "relu"}, IDS, [0, 5, 6]
    yield "golden_t5/t5_v11", {"feed_forward_proj": "gated-swish", "dense_act_fn": None, "is_gated_act": None}, IDS, [0, 5, 6]
    yield "golden_t5/t5_v10", {"dense_act_fn": "gelu"}, IDS, [0, 5, 6]
    # Half of each head rotates, unless the map says otherwise.
    yield "golden/bamba", {"rope_parameters": None, "rope_theta": 777.0, "partial_rotary_factor": 0.25}, IDS, None
    quarter = {"rope_type": "default", "rope_theta": 777.0, "partial_rotary_factor": 0.25}
    yield "golden/bamba", {"rope_parameters": quarter}, IDS, None
    yield "golden/mamba2", {"hidden_act": "swish"}, IDS, None
    # The convolution's, and that of MLPs and experts; the gate keeps its own.
    for name in ("mamba2", "bamba", "granite_hybrid", "granite_hybrid_moe", "falcon_h1"):
        yield f"golden/{name}", {"hidden_act": "gelu"}, IDS, None
    yield "golden/nemotron_h", {"mamba_hidden_act": "relu"}, IDS, None
    yield "golden/nemotron_h", {"time_step_min": 0.8, "time_step_limit": [0.0, 0.9]}, IDS, None
    yield "golden/nemotron_h", {"mamba_dt_min": 0.9, "tie_word_embeddings": True}, IDS, None
    yield "golden/nemotron_h", {"n_groups": 4, "mamba_n_groups": 2, "conv_kernel": None, "mamba_d_conv": 4}, IDS, None
    ffn = json.loads((TESTS / "golden/lfm2/config.json").read_text())["intermediate_size"]
    yield "golden/lfm2", {"intermediate_size": None, "block_ff_dim": ffn}, IDS, None
    yield "golden/lfm2", {"intermediate_size": 7, "block_ff_dim": ffn}, IDS, None


def logits(folder, keys, ids, decoder):
    config = json.loads((TESTS / folder / "config.json").read_text())
    config.update(keys)
    config = {key: value for key, value in config.items() if value is not None or key not in keys}
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copy(TESTS / folder / "model.safetensors", tmp)
        (Path(tmp) / "config.json").write_text(json.dumps(config))
        kind = getattr(transformers, config["architectures"][0])
        model = kind.from_pretrained(tmp, attn_implementation="eager", dtype=torch.float32).eval()
        more = {} if decoder is None else {"decoder_input_ids": torch.tensor([decoder])}
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), **more).logits[0].flatten().tolist()


def main():
    rows, plain = [], {}
    for folder, keys, ids, decoder in cases():
        found = logits(folder, keys, ids, decoder)
        at = (folder, tuple(ids))
        plain[at] = plain.get(at) or logits(folder, {}, ids, decoder)
        far = max(abs(a - b) for a, b in zip(found, plain[at])) / max(map(abs, found))
        print(folder, keys, f"{far:.1e} from the golden configuration")
        rows.append({"folder": folder, "keys": keys, "ids": ids, "decoder": decoder, "logits": [round(x, 6) for x in found]})
    lines = ",\n".join(json.dumps(row) for row in rows)
    (TESTS / "golden_keys.json").write_text(f'{{"transformers": "{transformers.__version__}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
