"""The shipped recipes, a function each: `recipes.sft(model_from="..", data_paths=[".."])`. `cargo xtask python` writes this file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fathom._recipe import curation, shipped

if TYPE_CHECKING:
    from typing import Any, Unpack

    from fathom._keys import Dials, TrainRecipe
    from fathom._recipe import CurationRecipe


def quickstart(**dials: Unpack[Dials]) -> TrainRecipe:
    """From raw text to a model that answers: 2K, then 32K, in ten minutes on two cores."""
    return shipped("quickstart", dials)


def quickstart_128k(**dials: Unpack[Dials]) -> TrainRecipe:
    """The quickstart of an hour: 2K, 32K, then 128K (fathom quickstart --minutes 60)."""
    return shipped("quickstart-128k", dials)


def extend(**dials: Unpack[Dials]) -> TrainRecipe:
    """Extends a Hugging Face model's context: model.from=DIR stages=16k,64k data.paths=..."""
    return shipped("extend", dials)


def long_1m_cpu(**dials: Unpack[Dials]) -> TrainRecipe:
    """A million tokens in one step on two cores and 4 GiB: 2K, then 1M."""
    return shipped("long-1m-cpu", dials)


def ladder(**dials: Unpack[Dials]) -> TrainRecipe:
    """Scaling laws on two cores: a ladder of sizes and compute budgets over the quickstart's text (fathom scale)."""
    return shipped("ladder", dials)


def mamba2_56m(**dials: Unpack[Dials]) -> TrainRecipe:
    """Mamba-2 of 56 million weights: 2K, then 16K, with the same memory per token."""
    return shipped("mamba2-56m", dials)


def hybrid_16k(**dials: Unpack[Dials]) -> TrainRecipe:
    """A hybrid of seven state-space layers and one of attention: 2K, then 16K."""
    return shipped("hybrid-16k", dials)


def hybrid_64k(**dials: Unpack[Dials]) -> TrainRecipe:
    """The same hybrid at 64K."""
    return shipped("hybrid-64k", dials)


def hybrid_256k(**dials: Unpack[Dials]) -> TrainRecipe:
    """The same hybrid at 256K, on two cores and 4 GiB."""
    return shipped("hybrid-256k", dials)


def sft(**dials: Unpack[Dials]) -> TrainRecipe:
    """Teaches a Hugging Face model from lessons: model.from=DIR data.paths=F.jsonl."""
    return shipped("sft", dials)


def lora(**dials: Unpack[Dials]) -> TrainRecipe:
    """Teaches a Hugging Face model by a LoRA adapter: model.from=DIR data.paths=F.jsonl."""
    return shipped("lora", dials)


def qlora(**dials: Unpack[Dials]) -> TrainRecipe:
    """The same over a model in four bits (QLoRA): model.from=DIR data.paths=F.jsonl."""
    return shipped("qlora", dials)


def dora(**dials: Unpack[Dials]) -> TrainRecipe:
    """Teaches a Hugging Face model by a DoRA adapter: model.from=DIR data.paths=F.jsonl."""
    return shipped("dora", dials)


def distill(**dials: Unpack[Dials]) -> TrainRecipe:
    """A student learns a teacher's distribution: model.from=DIR objective.teacher=DIR data.paths=F.jsonl."""
    return shipped("distill", dials)


def steerlm(**dials: Unpack[Dials]) -> TrainRecipe:
    """Teaches answers with what they are like said before them (SteerLM): model.from=DIR data.paths=F.jsonl."""
    return shipped("steerlm", dials)


def continue_(**dials: Unpack[Dials]) -> TrainRecipe:
    """Goes on with a Hugging Face model on new text, blended with old: model.from=DIR data.paths=NEW data.blend.1.source=STORE."""
    return shipped("continue", dials)


def dpo(**dials: Unpack[Dials]) -> TrainRecipe:
    """Learns from pairs of answers (DPO and its forms): model.from=DIR data.paths=F.jsonl."""
    return shipped("dpo", dials)


def kto(**dials: Unpack[Dials]) -> TrainRecipe:
    """Learns from answers that are wanted or not (KTO): model.from=DIR data.paths=F.jsonl."""
    return shipped("kto", dials)


def orpo(**dials: Unpack[Dials]) -> TrainRecipe:
    """Learns from pairs of answers without a reference (ORPO): model.from=DIR data.paths=F.jsonl."""
    return shipped("orpo", dials)


def simpo(**dials: Unpack[Dials]) -> TrainRecipe:
    """Learns from pairs of answers without a reference (SimPO): model.from=DIR data.paths=F.jsonl."""
    return shipped("simpo", dials)


def rpo(**dials: Unpack[Dials]) -> TrainRecipe:
    """Learns from pairs of answers with rewards (RPO): model.from=DIR data.paths=F.jsonl."""
    return shipped("rpo", dials)


def steerlm2(**dials: Unpack[Dials]) -> TrainRecipe:
    """Learns from several answers to each prompt, each as likely as it should be (SteerLM 2): model.from=DIR data.paths=F.jsonl."""
    return shipped("steerlm2", dials)


def spin(**dials: Unpack[Dials]) -> TrainRecipe:
    """Learns to answer as its rows do and not as it did itself, in rounds (SPIN): model.from=DIR data.paths=F.jsonl."""
    return shipped("spin", dials)


def rlaif(**dials: Unpack[Dials]) -> TrainRecipe:
    """Prefers its own answers as it revised them by principles: model.from=DIR data.paths=F.jsonl rounds.principles=P.jsonl."""
    return shipped("rlaif", dials)


def reward(**dials: Unpack[Dials]) -> TrainRecipe:
    """Trains a reward model on pairs of answers: model.from=DIR data.paths=F.jsonl."""
    return shipped("reward", dials)


def mlm(**dials: Unpack[Dials]) -> TrainRecipe:
    """Goes on with pretraining an encoder on new text: model.from=DIR data.paths=TEXT."""
    return shipped("mlm", dials)


def embed(**dials: Unpack[Dials]) -> TrainRecipe:
    """Trains an embedder on texts that belong together: model.from=DIR data.paths=F.jsonl."""
    return shipped("embed", dials)


def rerank(**dials: Unpack[Dials]) -> TrainRecipe:
    """Trains a model that scores texts for a query: model.from=DIR data.paths=F.jsonl."""
    return shipped("rerank", dials)


def classify(**dials: Unpack[Dials]) -> TrainRecipe:
    """Trains labels of texts: model.from=DIR data.paths=F.jsonl objective.labels=[..]."""
    return shipped("classify", dials)


def t5(**dials: Unpack[Dials]) -> TrainRecipe:
    """Goes on with pretraining an encoder-decoder on new text, by its dropped spans: model.from=DIR data.paths=TEXT."""
    return shipped("t5", dials)


def t5_small(**dials: Unpack[Dials]) -> TrainRecipe:
    """T5 1.1 small, 77 million weights: spans of texts of 568 tokens (sources of 512), then of 2K."""
    return shipped("t5-small", dials)


def retro(**dials: Unpack[Dials]) -> TrainRecipe:
    """RETRO: a decoder of 12 layers that reads neighbours of its text, which are found in the text itself: data.paths=TEXT."""
    return shipped("retro", dials)


def grpo(**dials: Unpack[Dials]) -> TrainRecipe:
    """A Hugging Face model learns from rewards by GRPO: model.from=DIR data.paths=F.jsonl rl.reward=FILE.toml."""
    return shipped("grpo", dials)


def dapo(**dials: Unpack[Dials]) -> TrainRecipe:
    """GRPO as DAPO: clip-higher, groups that all agree are replaced, long answers cost."""
    return shipped("dapo", dials)


def rloo(**dials: Unpack[Dials]) -> TrainRecipe:
    """Rewards less the mean of the other answers, ratios of whole answers (RLOO)."""
    return shipped("rloo", dials)


def reinforce(**dials: Unpack[Dials]) -> TrainRecipe:
    """REINFORCE++: rewards brought to mean 0 and deviation 1 over the tokens of a rollout."""
    return shipped("reinforce", dials)


def ppo(**dials: Unpack[Dials]) -> TrainRecipe:
    """PPO with a value head beside the model: four passes over a rollout, advantages by GAE."""
    return shipped("ppo", dials)


def rejection(**dials: Unpack[Dials]) -> TrainRecipe:
    """The best of several answers by reward become lessons (rejection sampling)."""
    return shipped("rejection", dials)


def llama3_8b_sft_nemo(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B taught whole on 8 GPUs, as NeMo does."""
    return shipped("llama3-8b-sft-nemo", dials)


def llama3_8b_lora_nemo(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B with LoRA on 8 GPUs, as NeMo does."""
    return shipped("llama3-8b-lora-nemo", dials)


def llama3_70b_lora_nemo(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 70B with LoRA on 8 GPUs, as NeMo does."""
    return shipped("llama3-70b-lora-nemo", dials)


def llama3_8b_lora_torchtune(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B with LoRA on one GPU, as torchtune does."""
    return shipped("llama3-8b-lora-torchtune", dials)


def llama3_8b_qlora_torchtune(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B in four bits with LoRA on one GPU, as torchtune does."""
    return shipped("llama3-8b-qlora-torchtune", dials)


def llama3_70b_lora_torchtune(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 70B with LoRA on 8 GPUs, as torchtune does."""
    return shipped("llama3-70b-lora-torchtune", dials)


def llama3_8b_qlora_unsloth(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B in four bits on rows of 300K tokens, on one GPU."""
    return shipped("llama3-8b-qlora-unsloth", dials)


def llama3_1b_dpo_nemo(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 1B learns from pairs of answers, as NeMo-RL does."""
    return shipped("llama3-1b-dpo-nemo", dials)


def llama3_8b_grpo_nemo(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B learns from rewards on 8 GPUs, as NeMo-RL does."""
    return shipped("llama3-8b-grpo-nemo", dials)


def llama3_8b_grpo_20k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B in four bits learns from rewards on one GPU: 8 answers of up to 20K tokens."""
    return shipped("llama3-8b-grpo-20k", dials)


def llama3_1b(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 1B, pretraining at 8K."""
    return shipped("llama3-1b", dials)


def llama3_8b(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B, pretraining at 8K."""
    return shipped("llama3-8b", dials)


def llama3_70b(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 70B, pretraining at 8K."""
    return shipped("llama3-70b", dials)


def llama3_405b(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3.1 405B, pretraining at 8K."""
    return shipped("llama3-405b", dials)


def mixtral_8x7b(**dials: Unpack[Dials]) -> TrainRecipe:
    """Mixtral 8x7B, pretraining at 4K."""
    return shipped("mixtral-8x7b", dials)


def mixtral_8x22b(**dials: Unpack[Dials]) -> TrainRecipe:
    """Mixtral 8x22B, pretraining at 4K."""
    return shipped("mixtral-8x22b", dials)


def nemotron3_4b(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 3 4B, pretraining at 4K."""
    return shipped("nemotron3-4b", dials)


def nemotron3_22b(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 3 22B, pretraining at 4K."""
    return shipped("nemotron3-22b", dials)


def nemotron4_15b(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 4 15B, pretraining at 4K."""
    return shipped("nemotron4-15b", dials)


def nemotron4_340b(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 4 340B, pretraining at 4K."""
    return shipped("nemotron4-340b", dials)


def llama3_1b_16k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 1B of model.from, extended to 16K."""
    return shipped("llama3-1b-16k", dials)


def llama3_1b_64k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 1B of model.from, extended to 64K."""
    return shipped("llama3-1b-64k", dials)


def llama3_1b_128k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 1B of model.from, extended to 128K."""
    return shipped("llama3-1b-128k", dials)


def llama3_1b_1m(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 1B of model.from, extended to 1M."""
    return shipped("llama3-1b-1m", dials)


def llama3_8b_16k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B of model.from, extended to 16K."""
    return shipped("llama3-8b-16k", dials)


def llama3_8b_64k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B of model.from, extended to 64K."""
    return shipped("llama3-8b-64k", dials)


def llama3_8b_128k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B of model.from, extended to 128K."""
    return shipped("llama3-8b-128k", dials)


def llama3_8b_1m(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B of model.from, extended to 1M."""
    return shipped("llama3-8b-1m", dials)


def llama3_70b_16k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 70B of model.from, extended to 16K."""
    return shipped("llama3-70b-16k", dials)


def llama3_70b_64k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 70B of model.from, extended to 64K."""
    return shipped("llama3-70b-64k", dials)


def llama3_70b_128k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 70B of model.from, extended to 128K."""
    return shipped("llama3-70b-128k", dials)


def llama3_70b_1m(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 70B of model.from, extended to 1M."""
    return shipped("llama3-70b-1m", dials)


def nemotron3_22b_16k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 3 22B of model.from, extended to 16K."""
    return shipped("nemotron3-22b-16k", dials)


def nemotron3_22b_64k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 3 22B of model.from, extended to 64K."""
    return shipped("nemotron3-22b-64k", dials)


def nemotron3_22b_128k(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 3 22B of model.from, extended to 128K."""
    return shipped("nemotron3-22b-128k", dials)


def nemotron3_22b_1m(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 3 22B of model.from, extended to 1M."""
    return shipped("nemotron3-22b-1m", dials)


def llama3_8b_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B at 8K on NVIDIA's mesh."""
    return shipped("llama3-8b-nvidia", dials)


def llama3_8b_16k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B at 16K on NVIDIA's mesh."""
    return shipped("llama3-8b-16k-nvidia", dials)


def llama3_8b_64k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B at 64K on NVIDIA's mesh."""
    return shipped("llama3-8b-64k-nvidia", dials)


def llama3_8b_128k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 8B at 128K on NVIDIA's mesh."""
    return shipped("llama3-8b-128k-nvidia", dials)


def llama3_70b_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 70B at 8K on NVIDIA's mesh."""
    return shipped("llama3-70b-nvidia", dials)


def llama3_70b_16k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 70B at 16K on NVIDIA's mesh."""
    return shipped("llama3-70b-16k-nvidia", dials)


def llama3_70b_64k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3 70B at 64K on NVIDIA's mesh."""
    return shipped("llama3-70b-64k-nvidia", dials)


def llama3_405b_128k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Llama 3.1 405B at 128K on NVIDIA's mesh."""
    return shipped("llama3-405b-128k-nvidia", dials)


def mixtral_8x7b_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Mixtral 8x7B at 4K on NVIDIA's mesh."""
    return shipped("mixtral-8x7b-nvidia", dials)


def mixtral_8x7b_16k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Mixtral 8x7B at 16K on NVIDIA's mesh."""
    return shipped("mixtral-8x7b-16k-nvidia", dials)


def mixtral_8x7b_64k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Mixtral 8x7B at 64K on NVIDIA's mesh."""
    return shipped("mixtral-8x7b-64k-nvidia", dials)


def mixtral_8x22b_64k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Mixtral 8x22B at 64K on NVIDIA's mesh."""
    return shipped("mixtral-8x22b-64k-nvidia", dials)


def nemotron3_22b_16k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 3 22B at 16K on NVIDIA's mesh."""
    return shipped("nemotron3-22b-16k-nvidia", dials)


def nemotron3_22b_64k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 3 22B at 64K on NVIDIA's mesh."""
    return shipped("nemotron3-22b-64k-nvidia", dials)


def nemotron4_15b_16k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 4 15B at 16K on NVIDIA's mesh."""
    return shipped("nemotron4-15b-16k-nvidia", dials)


def nemotron4_15b_64k_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 4 15B at 64K on NVIDIA's mesh."""
    return shipped("nemotron4-15b-64k-nvidia", dials)


def nemotron4_340b_nvidia(**dials: Unpack[Dials]) -> TrainRecipe:
    """Nemotron 4 340B at 4K on NVIDIA's mesh."""
    return shipped("nemotron4-340b-nvidia", dials)


def dense_48l_10m(**dials: Unpack[Dials]) -> TrainRecipe:
    """A dense 48-layer model at 10M tokens on 256 H200: a plan."""
    return shipped("dense-48l-10m", dials)


def mesh_parity(**dials: Unpack[Dials]) -> TrainRecipe:
    """Whether a mesh computes what one rank does: tiny, f32, packed and masked, 20 steps."""
    return shipped("mesh-parity", dials)


def common_crawl(**dials: Any) -> CurationRecipe:
    """Common Crawl (WARC, WET): main content, English, quality filters, fuzzy deduplication, tokens."""
    return curation("common-crawl", dials)


def code(**dials: Any) -> CurationRecipe:
    """Folders of source code: code filters, personal data, exact and fuzzy deduplication, tokens."""
    return curation("code", dials)


def books(**dials: Any) -> CurationRecipe:
    """Books and other long texts: repair, boilerplate, language, repeated paragraphs; whole documents for long contexts."""
    return curation("books", dials)


def wikipedia(**dials: Any) -> CurationRecipe:
    """Wikipedia dumps (pages-articles): wikitext to text, short articles dropped, tokens."""
    return curation("wikipedia", dials)


def arxiv(**dials: Any) -> CurationRecipe:
    """arXiv source tars: LaTeX to text with equations, bibliography cut, fuzzy deduplication of versions, tokens."""
    return curation("arxiv", dials)


__all__ = [
    "quickstart",
    "quickstart_128k",
    "extend",
    "long_1m_cpu",
    "ladder",
    "mamba2_56m",
    "hybrid_16k",
    "hybrid_64k",
    "hybrid_256k",
    "sft",
    "lora",
    "qlora",
    "dora",
    "distill",
    "steerlm",
    "continue_",
    "dpo",
    "kto",
    "orpo",
    "simpo",
    "rpo",
    "steerlm2",
    "spin",
    "rlaif",
    "reward",
    "mlm",
    "embed",
    "rerank",
    "classify",
    "t5",
    "t5_small",
    "retro",
    "grpo",
    "dapo",
    "rloo",
    "reinforce",
    "ppo",
    "rejection",
    "llama3_8b_sft_nemo",
    "llama3_8b_lora_nemo",
    "llama3_70b_lora_nemo",
    "llama3_8b_lora_torchtune",
    "llama3_8b_qlora_torchtune",
    "llama3_70b_lora_torchtune",
    "llama3_8b_qlora_unsloth",
    "llama3_1b_dpo_nemo",
    "llama3_8b_grpo_nemo",
    "llama3_8b_grpo_20k",
    "llama3_1b",
    "llama3_8b",
    "llama3_70b",
    "llama3_405b",
    "mixtral_8x7b",
    "mixtral_8x22b",
    "nemotron3_4b",
    "nemotron3_22b",
    "nemotron4_15b",
    "nemotron4_340b",
    "llama3_1b_16k",
    "llama3_1b_64k",
    "llama3_1b_128k",
    "llama3_1b_1m",
    "llama3_8b_16k",
    "llama3_8b_64k",
    "llama3_8b_128k",
    "llama3_8b_1m",
    "llama3_70b_16k",
    "llama3_70b_64k",
    "llama3_70b_128k",
    "llama3_70b_1m",
    "nemotron3_22b_16k",
    "nemotron3_22b_64k",
    "nemotron3_22b_128k",
    "nemotron3_22b_1m",
    "llama3_8b_nvidia",
    "llama3_8b_16k_nvidia",
    "llama3_8b_64k_nvidia",
    "llama3_8b_128k_nvidia",
    "llama3_70b_nvidia",
    "llama3_70b_16k_nvidia",
    "llama3_70b_64k_nvidia",
    "llama3_405b_128k_nvidia",
    "mixtral_8x7b_nvidia",
    "mixtral_8x7b_16k_nvidia",
    "mixtral_8x7b_64k_nvidia",
    "mixtral_8x22b_64k_nvidia",
    "nemotron3_22b_16k_nvidia",
    "nemotron3_22b_64k_nvidia",
    "nemotron4_15b_16k_nvidia",
    "nemotron4_15b_64k_nvidia",
    "nemotron4_340b_nvidia",
    "dense_48l_10m",
    "mesh_parity",
    "common_crawl",
    "code",
    "books",
    "wikipedia",
    "arxiv",
]
