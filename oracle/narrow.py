"""What numbers become in FP8 and micro-scaling formats, by PyTorch's types where it has them.

Writes tests/narrow: x.bf16 and NAME.bf16, each 132 x 36 bf16 numbers by rows. `e4m3` and `e5m2` are x cast to PyTorch's
float8 types and back (clamped to their largest numbers first, as Transformer Engine does). The others have scales: `mx_ELEMENT_cols`
and `_rows` are blocks of 32 neighbours along rows or down columns with scale 2^(floor(log2(largest)) - emax) (OCP Microscaling
Formats 1.0, section 6.3), `fp8_...` lines and tiles of 128 with the smallest power of two that keeps the largest within 448.
Six- and four-bit elements are looked up in the list of all codes' values, nearest, ties to even codes.

    python3 -P oracle/narrow.py
"""

import pathlib

import torch

HERE = pathlib.Path(__file__).resolve().parent.parent / "tests" / "narrow"
ROWS, COLS = 132, 36
# Bits of exponent and mantissa.
SMALL = {"e2m3": (2, 3), "e3m2": (3, 2), "e2m1": (2, 1)}
EMAX = {"e4m3": 8, "e5m2": 15, "e2m3": 2, "e3m2": 4, "e2m1": 2}
MOST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m3": 7.5, "e3m2": 28.0, "e2m1": 6.0}
TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def codes(name):
    """The values of all codes without a sign, ascending, which is the order of the codes."""
    exponent_bits, mantissa_bits = SMALL[name]
    bias = 2 ** (exponent_bits - 1) - 1
    values = []
    for exponent in range(2**exponent_bits):
        for mantissa in range(2**mantissa_bits):
            fraction = mantissa / 2**mantissa_bits
            values.append(2.0 ** (1 - bias) * fraction if exponent == 0 else 2.0 ** (exponent - bias) * (1 + fraction))
    return torch.tensor(values, dtype=torch.float64)


def element(x, name):
    """The nearest number of a format, in float64."""
    x = x.clamp(-MOST[name], MOST[name])
    if name in TYPES:
        return x.float().to(TYPES[name]).double()
    values = codes(name)
    above = torch.searchsorted(values, x.abs()).clamp(max=len(values) - 1)
    below = (above - 1).clamp(min=0)
    up, down = values[above] - x.abs(), x.abs() - values[below]
    take_above = (up < down) | ((up == down) & (above % 2 == 0))
    return torch.where(take_above, values[above], values[below]).copysign(x)


def scaled(x, name, block, covers):
    out = torch.empty_like(x)
    for r in range(0, ROWS, block[0]):
        for c in range(0, COLS, block[1]):
            part = x[r : r + block[0], c : c + block[1]]
            largest = part.abs().max()
            exponent = torch.floor(torch.log2(largest)) - EMAX[name] if largest > 0 else torch.tensor(0.0)
            if covers and largest > MOST[name] * 2.0**exponent:
                exponent += 1
            scale = 2.0 ** exponent.clamp(-127, 127).double()
            out[r : r + block[0], c : c + block[1]] = element(part / scale, name) * scale
    return out


def save(name, x):
    bits = x.to(torch.bfloat16)
    assert torch.equal(bits.double(), x), name
    (HERE / f"{name}.bf16").write_bytes(bits.view(torch.int16).numpy().tobytes())


def main():
    torch.manual_seed(3)
    HERE.mkdir(parents=True, exist_ok=True)
    x = torch.randn(ROWS, COLS) * 2.0 ** torch.randint(-12, 8, (ROWS, 1)) * 2.0 ** torch.randint(-6, 6, (1, COLS))
    x[7, :] = 0.0
    x[:, 5] = 0.0
    x[0, :8] = torch.tensor([448.0, 464.0, 480.0, 511.0, -449.0, -0.0, 57344.0, 61440.0])
    x[1, :8] = torch.tensor([2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-16, 2.0**-17, 3.0 * 2.0**-17, 1e-30, -1e-30])
    x[40, :32] = torch.arange(32) / 4
    x[41, :32] = torch.arange(32) * 1.75 - 28
    x = x.to(torch.bfloat16).double()
    save("x", x)
    for name in TYPES:
        save(name, element(x, name))
    for name in EMAX:
        save(f"mx_{name}_cols", scaled(x, name, (1, 32), False))
        save(f"mx_{name}_rows", scaled(x, name, (32, 1), False))
    for kind, block in [("cols", (1, 128)), ("rows", (128, 1)), ("tiles", (128, 128))]:
        save(f"fp8_{kind}", scaled(x, "e4m3", block, True))


main()
