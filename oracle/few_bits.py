"""Linears as folders in few bits have them, and what they stand for.

Writes tests/golden_few_bits/model.safetensors (NAME.qweight, NAME.weight_packed, ..) and expected.safetensors (NAME.weight):
compressed-tensors (0.20.0) packs and decodes pack-quantized, int-quantized, float-quantized, nvfp4 and mxfp4; rounded.safetensors has
f32 weights `x` and what they become by its own scales in three of them. GPTQ
(AutoGPTQ's first format), AWQ (`gemm`), blocks of FP8 and ModelOpt's FP8 and NVFP4, whose packages need a GPU, are packed and decoded
here by their layouts' definition.

    python3 -P oracle/few_bits.py
    python3 -P oracle/few_bits.py check FOLDER    # loads a folder that Fathom wrote, and prints a loss
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden_few_bits"
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


def pack_words(codes, bits, order=None):
    """[.., n] codes to [.., n x bits / 32] words, the first in the low bits."""
    each = 32 // bits
    codes = codes.reshape(*codes.shape[:-1], -1, each).to(torch.int64)
    if order:
        codes = codes[..., order]
    word = sum(codes[..., at] << (bits * at) for at in range(each))
    return torch.where(word >= 2**31, word - 2**32, word).to(torch.int32)


def gptq(name, bits, groups, ordered, inputs=96, outputs=64):
    codes = torch.randint(0, 2**bits, (inputs, outputs))
    zeros = torch.randint(1, 2**bits, (groups, outputs))
    scales = (torch.rand(groups, outputs) * 0.1).half()
    group = torch.arange(inputs) // (inputs // groups)
    if ordered:
        group = group[torch.randperm(inputs)]
    weight = scales[group] * (codes - zeros[group]).half()
    stored = {
        "qweight": pack_words(codes.T.contiguous(), bits).T.contiguous(),
        "qzeros": pack_words(zeros - 1, bits),
        "scales": scales,
        "g_idx": group.to(torch.int32),
    }
    return {f"{name}.{key}": value for key, value in stored.items()}, weight.T.contiguous()


def awq(name, groups=3, inputs=96, outputs=64):
    codes, zeros = torch.randint(0, 16, (inputs, outputs)), torch.randint(0, 16, (groups, outputs))
    scales = (torch.rand(groups, outputs) * 0.1).half()
    group = torch.arange(inputs) // (inputs // groups)
    weight = scales[group] * (codes - zeros[group]).half()
    stored = {"qweight": pack_words(codes, 4, AWQ), "qzeros": pack_words(zeros, 4, AWQ), "scales": scales}
    return {f"{name}.{key}": value for key, value in stored.items()}, weight.T.contiguous()


def compressed(name, compressor, kind, outputs=64, inputs=96, **weights):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(type=kind, **weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    x = (torch.randn(outputs, inputs) * 0.05 + 0.01).to(torch.bfloat16)
    side = args.group_size or inputs
    blocks = x.float().reshape(outputs, -1, side)
    shape = [outputs, inputs // side]
    state, one = {"weight": x}, None
    if str(args.strategy) in ("tensor", "QuantizationStrategy.TENSOR"):
        low, high = x.float().min().reshape(1), x.float().max().reshape(1)
    else:
        low, high = blocks.amin(-1).reshape(shape), blocks.amax(-1).reshape(shape)
    if compressor.__name__.startswith("NVFP4"):
        one = generate_gparam(x.min(), x.max())
        state["weight_global_scale"] = one
    scales, zeros = calculate_qparams(low, high, args, global_scale=one)
    state["weight_scale"] = scales if one is not None else scales.to(torch.bfloat16)
    if not args.symmetric:
        state["weight_zero_point"] = zeros
    packed = compressor.compress(dict(state), scheme)
    stored = {f"{name}.{key}": value.contiguous().clone() for key, value in packed.items()}
    return stored, compressor.decompress(packed, scheme)["weight"].to(torch.bfloat16).contiguous()


def rounded(compressor, kind, side, outputs=64, inputs=96, **weights):
    """The tensors that f32 weights become, by the library's own scales."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(type=kind, num_bits=4, symmetric=True, group_size=side, **weights)
    x = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(11)) * 0.05
    x[3, :32], x[5, 40], x[7] = 0.0, 0.7, x[7] * 1e-3
    blocks = x.reshape(outputs, -1, side)
    state, one = {"weight": x}, None
    if compressor.__name__.startswith("NVFP4"):
        state["weight_global_scale"] = one = generate_gparam(x.min(), x.max())
    scales, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, global_scale=one)
    state["weight_scale"] = scales.to(torch.bfloat16).float() if kind == "int" else scales
    packed = compressor.compress(dict(state), QuantizationScheme(targets=["Linear"], weights=args))
    return x, {key: value.contiguous().clone() for key, value in packed.items()}


def fp8_blocks(name, outputs=192, inputs=160):
    weight = (torch.randn(outputs, inputs) * 4).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-outputs // 128), -(-inputs // 128)) * 0.01
    whole = scales.repeat_interleave(128, 0)[:outputs].repeat_interleave(128, 1)[:, :inputs]
    return {f"{name}.weight": weight, f"{name}.weight_scale_inv": scales}, (weight.float() * whole).to(torch.bfloat16)


def modelopt(outputs=64, inputs=96):
    weight, scale = (torch.randn(outputs, inputs) * 40).to(torch.float8_e4m3fn), torch.tensor(0.0123)
    stored = {"opt8.weight": weight, "opt8.weight_scale": scale, "opt8.input_scale": torch.tensor(0.5)}
    expected = {"opt8.weight": (weight.float() * scale).to(torch.bfloat16)}
    fours = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = torch.randint(0, 16, (outputs, inputs))
    scales, one = (torch.rand(outputs, inputs // 16) * 8).to(torch.float8_e4m3fn), torch.tensor(0.003)
    stored |= {
        "opt4.weight": (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8),
        "opt4.weight_scale": scales,
        "opt4.weight_scale_2": one,
    }
    whole = (scales.float() * one).repeat_interleave(16, 1)
    expected["opt4.weight"] = (fours[codes] * whole).to(torch.bfloat16)
    return stored, expected


def main():
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor, IntQuantizationCompressor
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor

    torch.manual_seed(7)
    cases = {name: gptq(name, bits, groups, ordered) for name, bits, groups, ordered in
             [("gptq4", 4, 3, False), ("gptq4_ordered", 4, 3, True), ("gptq8", 8, 1, False), ("gptq2", 2, 3, False)]}
    cases["awq"] = awq("awq")
    cases["fp8_blocks"] = fp8_blocks("fp8_blocks")
    packed, whole = PackedQuantizationCompressor, dict(num_bits=8, symmetric=True)
    cases["int4"] = compressed("int4", packed, "int", num_bits=4, symmetric=True, strategy="group", group_size=32)
    cases["int4_zeros"] = compressed("int4_zeros", packed, "int", num_bits=4, symmetric=False, strategy="group", group_size=32)
    cases["int4_rows"] = compressed("int4_rows", packed, "int", num_bits=4, symmetric=True, strategy="channel")
    cases["int8_packed"] = compressed("int8_packed", packed, "int", strategy="group", group_size=32, **whole)
    cases["int8"] = compressed("int8", IntQuantizationCompressor, "int", strategy="channel", **whole)
    cases["fp8_rows"] = compressed("fp8_rows", FloatQuantizationCompressor, "float", strategy="channel", **whole)
    cases["fp8_one"] = compressed("fp8_one", FloatQuantizationCompressor, "float", strategy="tensor", **whole)
    cases["mxfp4"] = compressed("mxfp4", MXFP4PackedCompressor, "float", num_bits=4, symmetric=True, strategy="group",
                                group_size=32, scale_dtype=torch.uint8)
    cases["nvfp4"] = compressed("nvfp4", NVFP4PackedCompressor, "float", num_bits=4, symmetric=True,
                                strategy="tensor_group", group_size=16)
    files = {}
    for name, compressor, kind, side, more in [
        ("mxfp4", MXFP4PackedCompressor, "float", 32, dict(strategy="group", scale_dtype=torch.uint8)),
        ("nvfp4", NVFP4PackedCompressor, "float", 16, dict(strategy="tensor_group", scale_dtype=torch.float8_e4m3fn)),
        ("int4", packed, "int", 32, dict(strategy="group")),
    ]:
        x, tensors = rounded(compressor, kind, side, **more)
        files |= {"x": x} | {f"{name}:{key}": value for key, value in tensors.items()}
    save_file(files, HERE / "rounded.safetensors")
    stored, expected = modelopt()
    for name, (tensors, weight) in cases.items():
        stored |= tensors
        expected[f"{name}.weight"] = weight
    HERE.mkdir(exist_ok=True)
    save_file(stored, HERE / "model.safetensors")
    save_file(expected, HERE / "expected.safetensors")
    for name, value in stored.items():
        print(name, value.dtype, list(value.shape))


def check(folder):
    import transformers as tf

    model = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(5, 69)[None] % model.config.vocab_size
    print(f"{model(ids, labels=ids).loss.item():.6f}")


if len(sys.argv) > 2 and sys.argv[1] == "check":
    check(sys.argv[2])
else:
    main()
