"""Golden files of ggml's block formats: tests/golden_gguf/blocks.

Run with the packages gguf, numpy and llama-cpp-python in a virtual environment:

    python oracle/gguf_blocks.py tests/golden_gguf

Elements are quantised and dequantised by the C library of llama-cpp-python (libggml-base), whose reference quantisers these are.
`x.f32` has the elements; TYPE.blocks what ggml makes of them, TYPE.f32 what those blocks stand for.
"""

import ctypes
import pathlib
import sys

import numpy as np

TYPES = {
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q4_K": (256, 144),
    "q5_K": (256, 176),
    "q6_K": (256, 210),
}


def elements() -> np.ndarray:
    """Blocks of 256 of several characters: normal, with outliers, of one sign, constant, tiny, zero."""
    rng = np.random.default_rng(7)
    normal = rng.standard_normal((3, 256)) * np.array([[0.02], [1.0], [300.0]])
    outliers = rng.standard_normal(256) * 0.05
    outliers[[3, 77, 200]] = [4.0, -3.0, 2.5]
    ramp = np.linspace(0.5, 1.5, 256)
    rows = [*normal, outliers, ramp, -ramp, np.full(256, 0.25), rng.standard_normal(256) * 1e-7, np.zeros(256)]
    return np.concatenate(rows).astype(np.float32)


def main(out: pathlib.Path) -> None:
    import llama_cpp

    library = ctypes.CDLL(str(pathlib.Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    out.mkdir(parents=True, exist_ok=True)
    x = elements()
    x.tofile(out / "x.f32")
    pointer = lambda array: array.ctypes.data_as(ctypes.c_void_p)
    for name, (block, size) in TYPES.items():
        blocks = np.zeros(x.size // block * size, dtype=np.uint8)
        getattr(library, f"quantize_row_{name}_ref")(pointer(x), pointer(blocks), ctypes.c_int64(x.size))
        back = np.zeros_like(x)
        getattr(library, f"dequantize_row_{name}")(pointer(blocks), pointer(back), ctypes.c_int64(x.size))
        blocks.tofile(out / f"{name.lower()}.blocks")
        back.tofile(out / f"{name.lower()}.f32")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
