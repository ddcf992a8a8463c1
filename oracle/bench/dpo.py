"""One step of TRL's DPOTrainer with a precomputed reference: a pair of `tokens` each, half of them the prompt; AdamW on all weights.

`tokens_per_s` counts both answers with their prompts, which TRL computes twice. `peak_rss_bytes` and `places` are those of step.py.
    oracle/bench/rival.sh dpo.py --tokens 2048
"""
import torch
import trl
from datasets import Dataset
from rival_model import FLAGS, build, tokenizer
from timing import PeakAnonymous, arguments, measure, row, status_bytes, turns


def main():
    args = arguments(tokens=2048, places="none", **FLAGS)
    config = trl.DPOConfig(
        output_dir="/tmp/rival_dpo", per_device_train_batch_size=1, bf16=False, use_cpu=True, report_to=[], max_length=None, precompute_ref_log_probs=True,
        gradient_checkpointing=args.places == "full", gradient_checkpointing_kwargs={"use_reentrant": False})
    row_of_text = {"prompt": "w3 ", "chosen": "w4 end", "rejected": "w5 end"}
    trainer = trl.DPOTrainer(model=build(args, args.tokens), args=config, train_dataset=Dataset.from_list([row_of_text]),
                             processing_class=tokenizer())
    trainer.current_gradient_accumulation_steps = 1
    # The sums of the reference come with the batch, as if computed before; what they are does not matter here.
    prompt, chosen, rejected = (torch.randint(3, args.vocab, (args.tokens // 2,)).tolist() for _ in range(3))
    batch = trainer.data_collator([{"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected,
                                    "ref_chosen_logps": -10.0 * len(chosen), "ref_rejected_logps": -10.0 * len(rejected)}])
    if args.places == "full":
        trainer.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-6, fused=True)

    def step():
        trainer.training_step(trainer.model, dict(batch), None)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in turns(args):
        with PeakAnonymous() as memory:
            median, best, waited = measure(step, args)
        row(bench="dpo", dtype=args.dtype, scores=args.scores, tokens=args.tokens, places=args.places, machine="cpu",
            threads=args.threads, tokens_per_s=2 * args.tokens / median, tokens_per_s_best=2 * args.tokens / best,
            peak_rss_bytes=memory.peak, peak_hwm_bytes=status_bytes("VmHWM"), waited=waited)


main()
