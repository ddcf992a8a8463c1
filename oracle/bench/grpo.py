"""One step of TRL's GRPOTrainer with its own generation: prompts x answers of `new` tokens, then forward, backward and AdamW in parts.

No answer ends early and rewards are by chance, so that the work is the same in every step. `generation_tokens_per_s` counts new tokens
over the time of generating, `tokens_per_s` over the whole step. `peak_rss_bytes` is that of step.py.
    oracle/bench/rival.sh grpo.py --repeat 2
"""
import random
import statistics
import time

import torch
import trl
from datasets import Dataset
from rival_model import FLAGS, build, tokenizer
from timing import PeakAnonymous, arguments, measure, row, status_bytes, turns


class Timed(trl.GRPOTrainer):
    generating = ()

    def _generate_single_turn(self, *args, **kwargs):
        start = time.perf_counter()
        found = super()._generate_single_turn(*args, **kwargs)
        self.generating = (*self.generating, time.perf_counter() - start)
        return found


def main():
    args = arguments(prompts=8, answers=8, prompt=128, new=256, batch=8, **FLAGS)
    rows, rng = args.prompts * args.answers, random.Random(0)
    parts = rows // args.batch
    texts = [" ".join(f"w{rng.randrange(3, 96)}" for _ in range(args.prompt)) for _ in range(args.prompts)]
    config = trl.GRPOConfig(
        output_dir="/tmp/rival_grpo", per_device_train_batch_size=args.batch, gradient_accumulation_steps=parts,
        num_generations=args.answers, max_completion_length=args.new, generation_kwargs={"min_new_tokens": args.new}, bf16=False,
        use_cpu=True, report_to=[], gradient_checkpointing=False)
    trainer = Timed(model=build(args, args.prompt + args.new), args=config, processing_class=tokenizer(),
                    reward_funcs=lambda completions, **_: [rng.random() for _ in completions],
                    train_dataset=Dataset.from_list([{"prompt": text} for text in texts]))
    trainer.current_gradient_accumulation_steps = parts
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-6, fused=True)
    asked = [{"prompt": text} for text in texts for _ in range(args.answers)]

    def step():
        # The first part generates for all.
        for _ in range(parts):
            trainer.training_step(trainer.model, asked, None)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    tokens = rows * args.new
    for _ in turns(args):
        with PeakAnonymous() as memory:
            median, best, waited = measure(step, args)
        generating = statistics.median(trainer.generating[-args.repeat:])
        row(bench="grpo", dtype=args.dtype, scores=args.scores, prompts=args.prompts, answers=args.answers, prompt_tokens=args.prompt,
            new_tokens=args.new, machine="cpu", threads=args.threads, tokens_per_s=tokens / median, tokens_per_s_best=tokens / best,
            generation_tokens_per_s=tokens / generating, step_s=median, generation_s=generating, peak_rss_bytes=memory.peak,
            peak_hwm_bytes=status_bytes("VmHWM"), waited=waited)


main()
