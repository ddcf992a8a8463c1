"""Golden length-controlled win rates: tests/golden_eval/judged.json.

    python oracle/judged.py

The regression of AlpacaEval 2 (`length_controlled_minimal` and `length_controlled_noreg` of alpaca_eval's glm_winrate.py)
by scikit-learn's LogisticRegression (SAGA to a tolerance of 1e-14) with its penalty, strengths, folds and score. Folds are
dealt from the last comparison to the first: `GroupKFold` sorts equal groups in an order that differs between machines.
"""
import json
import warnings
from pathlib import Path

import numpy
import scipy.optimize
from sklearn.linear_model import LogisticRegression

OUT = Path(__file__).parent.parent / "tests" / "golden_eval" / "judged.json"
warnings.filterwarnings("ignore")


def optimum(X, y, C):
    """Weights by scikit-learn, polished by the bounded form w = u - v of the same problem."""
    rows, target = numpy.concatenate([X, X]), numpy.concatenate([numpy.ones(len(y)), numpy.zeros(len(y))])
    weight = numpy.concatenate([y, 1 - y])
    keep = weight > 0
    model = LogisticRegression(C=C, l1_ratio=1.0, solver="saga", fit_intercept=False, tol=1e-12, max_iter=20000)
    start = model.fit(rows[keep], target[keep], sample_weight=weight[keep]).coef_[0]
    d = X.shape[1]

    def value(uv):
        z = X @ (uv[:d] - uv[d:])
        return C * numpy.sum(numpy.logaddexp(0, z) - y * z) + uv.sum()

    def slope(uv):
        g = C * X.T @ (1 / (1 + numpy.exp(-(X @ (uv[:d] - uv[d:])))) - y)
        return numpy.concatenate([g, -g]) + 1
    uv = numpy.concatenate([numpy.maximum(start, 0), numpy.maximum(-start, 0)])
    for _ in range(5):
        uv = scipy.optimize.minimize(value, uv, jac=slope, bounds=[(0, None)] * (2 * d), method="L-BFGS-B",
                                     options={"ftol": 1e-20, "gtol": 1e-13, "maxiter": 10000}).x
    found = uv[:d] - uv[d:]
    assert numpy.abs(found - start).max() < 1e-3 * (1 + numpy.abs(start).max()), (found, start, C)
    return found


def rate(preference, lengths, difficulty):
    difference = numpy.array([other - own for own, other in lengths], float)
    feature = numpy.tanh(difference / difference.std(ddof=1))
    columns = [feature] + ([difficulty] if difficulty is not None else []) + [numpy.ones(len(feature))]
    X, y = numpy.stack(columns, 1), numpy.array(preference)
    fold = (len(y) - 1 - numpy.arange(len(y))) % 5
    losses = []
    strengths = numpy.logspace(-4, 4, 10)
    for C in strengths:
        total = 0
        for out in range(5):
            w = optimum(X[fold != out], y[fold != out], C)
            p = numpy.clip(1 / (1 + numpy.exp(-X[fold == out] @ w)), 1e-15, 1 - 1e-15)
            total += -numpy.mean(y[fold == out] * numpy.log(p) + (1 - y[fold == out]) * numpy.log(1 - p))
        losses.append(total)
    C = strengths[int(numpy.argmin(losses))]
    w = optimum(X, y, C)
    X[:, 0] = 0
    return float(numpy.mean(1 / (1 + numpy.exp(-X @ w)))), float(C), w.tolist()


def main():
    rng = numpy.random.default_rng(3)
    cases = []
    for count, bias, known in ((40, 0.9, False), (25, -0.4, True), (12, 0.0, False), (60, 2.0, True)):
        lengths = [[int(a), int(b)] for a, b in rng.integers(20, 900, (count, 2))]
        difficulty = rng.normal(size=count).round(3) if known else None
        lift = numpy.array([(own - other) / 300 for own, other in lengths]) * bias + 0.3 + (0.8 * difficulty if known else 0)
        preference = [float(x) for x in (rng.random((2, count)) < 1 / (1 + numpy.exp(-lift))).mean(0)]
        found, C, weights = rate(preference, lengths, difficulty)
        cases.append({"lengths": lengths, "preference": preference, "difficulty": None if difficulty is None else difficulty.tolist(),
                      "rate": found, "strength": C, "weights": weights})
        print(count, known, found, C, weights, "raw", numpy.mean(preference))
    OUT.write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main()
