"""What SciPy fits to synthetic ladders: crates/scaling/tests/golden.json.

Losses are drawn from a known law with noise; fits minimise the Huber loss of log residuals (delta 1e-3), written here from
the papers' formulas and minimised by SciPy's BFGS from many starts, then by Nelder and Mead. Parabolas and lines are NumPy's.
"""
import json
import pathlib

import numpy as np
from scipy.optimize import minimize

DELTA = 1e-3


def huber(r):
    a = np.abs(r)
    return np.where(a <= DELTA, 0.5 * r * r, DELTA * (a - 0.5 * DELTA)).sum()


def best(predict, logs, starts):
    """Minimum over starts of the Huber loss, polished until nothing moves."""

    def objective(x):
        with np.errstate(all="ignore"):
            value = huber(predict(x) - logs)
        return value if np.isfinite(value) else 1e9

    found = None
    for start in starts:
        at = minimize(objective, start, method="BFGS", options={"gtol": 1e-12, "maxiter": 2000})
        if found is None or at.fun < found.fun:
            found = at
    x, value = found.x, found.fun
    for _ in range(60):
        options = {"xatol": 1e-14, "fatol": 1e-20, "maxiter": 20000, "maxfev": 40000}
        simplex = np.vstack([x] + [x + np.eye(len(x))[i] * 1e-3 * (1 + abs(x[i])) for i in range(len(x))])
        at = minimize(objective, x, method="Nelder-Mead", options={**options, "initial_simplex": simplex})
        again = minimize(objective, at.x, method="BFGS", options={"gtol": 1e-14})
        at = again if again.fun <= at.fun else at
        moved = np.max(np.abs(at.x - x) / (1 + np.abs(x)))
        x, value = at.x, at.fun
        if moved < 1e-11:
            break
    return x, value


def lse(*terms):
    return np.logaddexp.reduce(np.stack(terms), axis=0)


def surface(n, d, logs):
    x, y = np.log(n) - np.log(n).mean(), np.log(d) - np.log(d).mean()
    least = np.exp(logs).min()
    starts = [
        [np.log(least / 4), a, np.log(least / 4), b, np.log(least * s)]
        for a in (0.2, 0.5) for b in (0.2, 0.5) for s in (0.4, 0.8)
    ]
    predict = lambda t: lse(t[0] - t[1] * x, t[2] - t[3] * y, np.full_like(x, t[4]))
    t, value = best(predict, logs, starts)
    return {
        "a": np.exp(t[0] + t[1] * np.log(n).mean()), "alpha": t[1],
        "b": np.exp(t[2] + t[3] * np.log(d).mean()), "beta": t[3],
        "irreducible": np.exp(t[4]), "objective": value,
    }


def joint(n, d, logs):
    x, y = np.log(n) - np.log(n).mean(), np.log(d) - np.log(d).mean()

    def predict(t):
        u, ratio, w, power = t
        return power * lse(u - ratio * x, w - y)

    starts = [[logs.mean() / p, r, logs.mean() / p, p] for p in (0.1, 0.3) for r in (0.5, 1.0, 2.0)]
    (u, ratio, w, power), value = best(predict, logs, starts)
    return {
        "params_scale": np.exp(u / ratio + np.log(n).mean()), "params_exponent": ratio * power,
        "tokens_scale": np.exp(w + np.log(d).mean()), "tokens_exponent": power, "objective": value,
    }


def power(x, logs, irreducible):
    z = np.log(x) - np.log(x).mean()
    least = np.exp(logs).min()
    if irreducible:
        predict = lambda t: lse(t[0] - t[1] * z, np.full_like(z, t[2]))
        starts = [[np.log(least / 3), a, np.log(least * s)] for a in (0.2, 0.5) for s in (0.3, 0.7)]
    else:
        predict = lambda t: t[0] - t[1] * z
        starts = [[np.log(least), 0.1]]
    t, value = best(predict, logs, starts)
    return {
        "scale": np.exp(t[0] + t[1] * np.log(x).mean()), "exponent": t[1],
        "irreducible": np.exp(t[2]) if irreducible else 0.0, "objective": value,
    }


def ladder(seed, noise):
    rng = np.random.default_rng(seed)
    sizes = np.array([4e5, 9e5, 2e6, 4.5e6, 1e7])
    budgets = [[], [], [], []]
    for index, flops in enumerate([3e14, 1e15, 3e15, 1e16]):
        for size in sizes:
            tokens = flops / (6 * size)
            loss = 1.7 + 60 / size**0.34 + 170 / tokens**0.29
            budgets[index].append([size, tokens, flops, loss * np.exp(noise * rng.standard_normal())])
    points = np.array([row for budget in budgets for row in budget])
    n, d, c, logs = points[:, 0], points[:, 1], points[:, 2], np.log(points[:, 3])
    tops = []
    for budget in budgets:
        rows = np.array(budget)
        c2, c1, c0 = np.polyfit(np.log(rows[:, 0]), rows[:, 3], 2)
        tops.append({"coefficients": [c0, c1, c2], "params": np.exp(-c1 / (2 * c2)), "flops": rows[0, 2]})
    exponent, scale = np.polyfit(np.log([t["flops"] for t in tops]), np.log([t["params"] for t in tops]), 1)
    # Laws of one quantity, and Kaplan's, are fitted to losses drawn from themselves.
    x = np.geomspace(1e6, 3e8, 12)
    one = lambda least: np.log((least + 40 / x**0.22) * np.exp(noise * rng.standard_normal(len(x))))
    with_least, without = one(1.5), one(0.0)
    of_joint = 0.095 * np.log((8e13 / n) ** (0.076 / 0.095) + 5e13 / d) + noise * rng.standard_normal(len(n))
    return {
        "budgets": budgets,
        "surface": surface(n, d, logs),
        "joint_losses": list(np.exp(of_joint)),
        "joint": joint(n, d, of_joint),
        "x": list(x),
        "power_losses": list(np.exp(with_least)),
        "power": power(x, with_least, True),
        "power_without_losses": list(np.exp(without)),
        "power_without": power(x, without, False),
        "profiles": tops,
        "allocation": {"exponent": exponent, "scale": np.exp(scale)},
    }


def main():
    out = pathlib.Path(__file__).parents[1] / "crates/scaling/tests/golden.json"
    cases = [ladder(1, 0.0), ladder(2, 3e-4), ladder(3, 5e-3)]
    out.write_text(json.dumps(cases, indent=1) + "\n")
    for case in cases:
        print({k: float(v) for k, v in case["surface"].items()}, float(case["joint"]["objective"]))


if __name__ == "__main__":
    main()
