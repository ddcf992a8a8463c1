"""Writes tests/golden_distill: divergences between a student's and a teacher's logits by TRL 1.16, with gradients.

    python oracle/distill.py

GKD's loss over the whole vocabulary; and over the k best tokens of the teacher or of the student, with the rest's mass in one more
bucket or with the k best made to sum to one (TRL's self-distillation). All in f64. README.md explains the files.
"""
import json
import warnings
from pathlib import Path

import torch
import trl
from safetensors.torch import save_file
from trl.experimental.gkd import GKDTrainer
from trl.experimental.sdpo.loss_utils import add_tail_bucket, compute_divergence, compute_topk_self_distillation_loss

OUT = Path(__file__).resolve().parent.parent / "tests" / "golden_distill"
TOKENS, VOCAB, BEST, IGNORED = 9, 24, 5, -100
BETAS = {"forward": 0.0, "near_forward": 0.1, "jsd": 0.5, "near_reverse": 0.8, "reverse": 1.0}


def whole(student, teacher, labels, beta, temperature):
    return GKDTrainer.generalized_jsd_loss(student[None], teacher[None], labels[None], beta=beta, temperature=temperature)


def best_of_student(student, teacher, beta, tail):
    return compute_topk_self_distillation_loss(student, teacher, distillation_topk=BEST, distillation_alpha=beta, distillation_add_tail=tail)


def best_of_teacher(student, teacher, beta, tail):
    """As TRL takes stored logits of a teacher: its k best and what the student thinks of them."""
    known, ids = teacher.log_softmax(-1).topk(BEST)
    thought = student.log_softmax(-1).gather(-1, ids)
    if tail:
        known, thought = add_tail_bucket(known), add_tail_bucket(thought)
    else:
        known, thought = known - known.logsumexp(-1, keepdim=True), thought - thought.logsumexp(-1, keepdim=True)
    return compute_divergence(thought, known, beta)


def cases():
    """Yields name, settings and a function to the mean loss of the tokens with labels."""
    for name, beta in BETAS.items():
        for temperature in (1.0, 2.0):
            how = dict(beta=beta, temperature=temperature)
            yield f"{name}_t{temperature:g}", how, lambda s, t, labels, how=how: whole(s, t, labels, **how)
    for support, run in (("teacher", best_of_teacher), ("student", best_of_student)):
        for name in ("forward", "jsd", "reverse"):
            for tail in (True, False):
                how = dict(beta=BETAS[name], best=BEST, support=support, rest=tail)
                yield f"{support}_{name}_{'rest' if tail else 'alone'}", how, (
                    lambda s, t, labels, run=run, how=how: run(s, t, how["beta"], how["rest"])[labels != IGNORED].mean())


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    assert trl.__version__ == "1.16.0", trl.__version__
    made = torch.Generator().manual_seed(25)
    teacher = 2.0 * torch.randn(TOKENS, VOCAB, generator=made)
    student = 0.6 * teacher + 1.2 * torch.randn(TOKENS, VOCAB, generator=made)
    # A teacher that is sure: the rest has almost no mass.
    teacher[3, 7] = 30.0
    labels = torch.randint(0, VOCAB, (TOKENS,), generator=made)
    labels[[0, 5]] = IGNORED
    saved, golden = {"student": student, "teacher": teacher}, {}
    for name, how, run in cases():
        logits = student.double().requires_grad_()
        loss = run(logits, teacher.double(), labels)
        loss.backward()
        golden[name] = how | {"loss": loss.item()}
        saved[f"{name}.grad"] = logits.grad.float()
        print(name, loss.item(), logits.grad.norm().item())
    save_file(saved, OUT / "distill.safetensors")
    told = {"trl": trl.__version__, "torch": torch.__version__.split("+")[0], "labels": labels.tolist()}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in told.items()]
    inner = ",\n ".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in golden.items())
    (OUT / "distill.json").write_text("{\n" + ",\n".join(lines) + ',\n"cases": {\n ' + inner + "\n}}\n")


if __name__ == "__main__":
    main()
