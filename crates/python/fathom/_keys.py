"""Tables of recipes, and their keys as dials. `cargo xtask python` writes this file from the declaration of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypedDict

from fathom._recipe import Recipe, Table, Tables


class RunTable(Table):
    """Keys of `run`."""

    name: str
    """The run's name in reports."""

    seed: int | str
    """Seed of all randomness."""

    out: str
    """Folder for checkpoints, metrics, report and model."""

    minutes: float | None
    """Minutes for the whole run; stages share the training time by `minutes_share`. None: stages give their steps. Allowed: above 0 and at most 16666666.666666666."""

    profile: bool
    """Writes a Chrome trace of one step of each stage."""

    tensorboard: bool
    """Writes TensorBoard event files."""

    wandb: bool
    """Writes an offline run of Weights & Biases, for `wandb sync`."""

    trackio: bool
    """Writes `trackio.jsonl`, a JSON line of scalars a step."""

    mlflow: str | None
    """MLflow server to send scalars to, as `http://localhost:5000`."""

    otlp: str | None
    """OpenTelemetry collector to send metrics to (OTLP over HTTP), as `http://localhost:4318`."""


class MachineTable(Table):
    """Keys of `machine`."""

    kind: Literal["auto", "cpu", "cuda", "meta"]
    """`cpu`, `cuda` for a GPU, `auto` for a GPU if there is one, or `meta` for a plan."""

    threads: int | str
    """Threads; 0 for all cores. Allowed: from 0 to 4 096."""

    spill: str | None
    """Folder for what is offloaded to disk, on each machine's own disk; none for the run's folder, which all ranks share."""

    offload_weights: bool
    """Offloads the weights of each block, of the embedding and of the head while no operation needs them."""

    offload_optimizer: bool
    """Offloads the moments and master weights between updates."""

    offload_to: Literal["disk", "host"]
    """Target of `offload_weights` and `offload_optimizer`: `disk`, or `host` for host memory (GPU runs)."""

    optimizer_stays_percent: int | str
    """With `offload_optimizer`: percent of the optimizer state that stays in device memory. Allowed: 0 or more and at most 100."""

    chaos: int | str | None
    """For tests: seed of injected disk disorder (delays, short operations, reordering)."""

    chaos_faults: int | str
    """For tests: with `chaos`, about one disk operation in this many fails; 0 for none."""

    fault: str | None
    """For tests: injected faults, such as `kill rank 1 at step 3, flip rank 2 at step 5`; `kill`, `hang`, `slow`, `term`, `nan` or `flip`, once each."""

    memory_bytes: int | str | None
    """Memory budget in bytes, shared by the ranks that compute in the same memory (of a GPU, or of the machine); none for what there is. Allowed: from 1 to 1 152 921 504 606 846 976."""

    host_bytes: int | str | None
    """Host memory in bytes for what GPU runs offload to it, shared by the ranks of one machine; none for most of what there is. Allowed: from 0 to 1 152 921 504 606 846 976."""

    cuda_libs: str | None
    """Folders of CUDA's libraries, separated by colons, searched before those of `FATHOM_CUDA_LIBS`."""

    graphs: bool
    """On a GPU: captures each block as a CUDA graph and replays it."""

    disk_bytes: int | str | None
    """Maximum bytes of activations on disk, shared by the ranks that use it; none for most of the free space. Allowed: from 0 to 1 152 921 504 606 846 976."""

    profile: str
    """The rates that predict times: `cpu` (nominal), a file of `fathom bench profile --out`, or for plans `h100`, `h200`, `b200`, and with their interconnect `dgx-h100`, `dgx-h200`, `dgx-b200`."""


class MeshTable(Table):
    """Keys of `mesh`."""

    tp: int | str
    """Tensor parallel: each rank has a shard of every block's weights. Allowed: from 1 to 65 536."""

    cp: int | str
    """Context parallel: each rank has a part of every sequence. Allowed: from 1 to 65 536."""

    cp_comm_type: Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
    """Exchange of keys and values between context parallel ranks."""

    cp_scan_comm_type: Literal["auto", "a2a", "states"]
    """Exchange between context parallel ranks in state-space layers and convolutions: heads for tokens (`a2a`), or states of documents at borders of ranks, of a size that does not grow with length; `auto`: what takes fewer bytes."""

    cp_inner: int | str
    """Ranks per `a2a` group of `a2a+p2p`. Allowed: from 1 to 65 536."""

    cp_dynamic: bool
    """Dynamic context parallel, with `p2p`: each document is on as few ranks as load balance allows, and only keys that are attended to travel."""

    dp: int | str
    """Data parallel: each rank has some of the micro batches. Allowed: from 1 to 65 536."""

    pp: int | str
    """Pipeline parallel: each rank has some of the layers. Allowed: from 1 to 65 536."""

    ep: int | str
    """Expert parallel: each rank has some of the experts; folded, with `etp`, over the ranks of `dp`, `cp` and `tp`. Allowed: from 1 to 65 536."""

    etp: int | str
    """Tensor parallel within an expert: each rank has some of an expert's columns. Allowed: from 1 to 65 536."""

    virtual_stages: int | str
    """Pipeline stages per rank (interleaved schedule); with more than 1, the micro batches of a step must be a multiple of `pp`. Allowed: from 1 to 4 096."""

    schedule: Literal["1f1b", "zero_bubble"]
    """The pipeline schedule."""

    layout: list[int | str]
    """Layers of each pipeline stage, in forward order; empty: balanced so that all stages take equally long, counting the head. Allowed: from 0 to 4 096."""

    sequence_parallel: bool
    """Sequence parallel: tensor parallel ranks shard the activations between sub-layers by rows."""

    sharding: Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]
    """State to shard over ranks with the same weights."""

    timeout_s: float
    """Seconds that a rank waits for another before the run fails. Allowed: above 0 and at most 1000000000."""

    step_timeout_s: float | None
    """The same limit during steps; none for `timeout_s`. Allowed: above 0 and at most 1000000000."""

    restarts: int | str
    """How many rank failures to survive by going back to the last common step. Ranks as processes survive NaN and bit flips only."""

    check_every_steps: int | str
    """Steps between comparisons of replicated weights; they are compared before each checkpoint too. 0 for none."""


class ModelTable(Table):
    """Keys of `model`."""

    from_: str | None
    """Hugging Face folder to start from; the sizes below are then ignored."""

    family: Literal["llama", "qwen2", "qwen3", "granite", "smollm3", "mixtral", "qwen3_moe", "deepseek_v3", "nemotron", "mamba2", "granitemoehybrid", "t5", "retro"]
    """Family of the model."""

    no_rope_layer_interval: int | str
    """For `smollm3`: one layer in this many has no rotary embedding. Allowed: from 1 to 65 536."""

    embedding_multiplier: float
    """For `granite` and `granitemoehybrid`: factor on embeddings. With one over `init_std` the residual stream begins at a deviation of one. Allowed: above 0."""

    attention_interval: int | str
    """For `granitemoehybrid`: one layer in this many has attention. Allowed: from 1 to 65 536."""

    retro_layers: list[int | str]
    """For `retro`: numbers, from 1, of the layers that attend to neighbours. Empty: every third layer from the 6th (from the 9th if there are more than 15); the last one if there are fewer. Allowed: from 1 to 4 096."""

    ssm_head_dim: int | str
    """For `mamba2` and `granitemoehybrid`: columns of a head of the state-space layers, whose heads have twice `model.hidden` together. Allowed: from 1 to 1 048 576."""

    ssm_state: int | str
    """For these: columns of a head's state per column of the head. Allowed: from 1 to 1 024."""

    ssm_groups: int | str
    """For these: groups of heads that share the projections to and from the state; tensor parallel ranks divide them. Allowed: from 1 to 65 536."""

    precision: Literal["bf16", "f32"]
    """Type of weights and activations. Unless it is set, that of the weights of `model.from`, where most of them are f32."""

    hidden: int | str
    """Columns of the residual stream. Allowed: from 1 to 1 048 576."""

    layers: int | str
    """Blocks. Allowed: from 1 to 4 096."""

    heads: int | str
    """Query heads. Allowed: from 1 to 65 536."""

    kv_heads: int | str
    """Key and value heads. Allowed: from 1 to 65 536."""

    head_dim: int | str
    """Columns of one head. Allowed: from 8 to 512."""

    ffn: int | str
    """Columns inside the MLP, or inside an expert. Allowed: from 1 to 1 048 576."""

    vocab: int | str
    """Rows of the embedding; also the size of a tokenizer that the run trains. Allowed: from 2 to 16 777 216."""

    rope_theta: float
    """Base of the rotary frequencies. Allowed: above 0."""

    tied: bool
    """Ties the head to the embedding."""

    rope_dim: int | str
    """For `deepseek_v3`: rotated columns of a head, shared by all keys. Allowed: from 2 to 65 536."""

    kv_latent: int | str
    """For `deepseek_v3`: columns of the key-value latent. Allowed: from 1 to 1 048 576."""

    init_std: float
    """Standard deviation of the initial weights. Allowed: above 0."""

    mup_width: int | str | None
    """muP (Yang and others, 2022): the width for which `init_std` and `optimizer.lr` were chosen. At another `hidden`, initial values and learning rates of matrices follow it, so that the best learning rate stays; `head_dim` stays too, and the head is not tied. Unset: `init_std` and one learning rate for all. Allowed: from 1 to 1 048 576."""

    init: Literal["normal", "induction"]
    """Additional initialisation."""

    trained: list[str]
    """Train only weights whose names in files contain a match of one of these regular expressions, as `layers\\\\.3[01]\\\\.` or `lm_head`; the others are frozen. Empty: train all, or with an adapter it alone. A new head of scores is trained in any case."""

    quantization: Literal["none", "nf4", "int8"]
    """Hold projections and experts that are not trained in fewer bits than the model computes in. A folder of bitsandbytes in this format is taken as it is; other weights are quantized while they are loaded."""

    double_quant: bool
    """For `nf4`: weights that are quantized while they are loaded get the values of double quantization, whose scales have eight bits in files; in memory they have 32."""


class MoeTable(Table):
    """Keys of `moe`."""

    experts: int | str
    """Experts per layer. Allowed: from 1 to 65 536."""

    top_k: int | str
    """Experts per token. Allowed: from 1 to 65 536."""

    ffn: int | str | None
    """Columns inside one expert; none for `model.ffn`. Allowed: from 1 to 1 048 576."""

    shared: int | str
    """For `deepseek_v3`: shared experts, which process every token. Allowed: from 0 to 4 096."""

    dense_layers: int | str
    """First layers with a dense MLP. Allowed: from 0 to 4 096."""

    aux_loss: float
    """Weight of the load-balancing loss over each micro batch (Megatron's `moe_aux_loss_coeff`). Allowed: 0 or more."""

    z_loss: float
    """Weight of the router z-loss. Allowed: 0 or more."""

    bias_update_rate: float
    """Step size of each expert's selection bias towards a balanced load, without a loss. Allowed: 0 or more."""

    capacity_factor: float | None
    """Capacity of an expert, as a multiple of its even share of a rank's slots in a micro batch; none for no limit. Allowed: above 0."""

    drop_policy: Literal["probs", "position"]
    """Slots to drop beyond the capacity."""


class AdapterTable(Table):
    """Keys of `adapter`."""

    method: Literal["none", "lora", "rslora", "dora", "pissa", "ia3", "houlsby", "prompt", "p_tuning", "prefix"]
    """The method."""

    rank: int | str | None
    """Rank of low-rank terms, 16 by default; for `houlsby` the width of the networks, 32 by default. Allowed: from 1 to 1 048 576."""

    alpha: float | None
    """Low-rank terms are multiplied by `alpha / rank`, with `rslora` by `alpha / sqrt(rank)`. Unset: twice the rank; for `pissa` the rank. Allowed: above 0."""

    targets: Any | None
    """Projections to adapt: a list of name endings such as `['q_proj', 'v_proj']`; a regular expression for whole names; or `all-linear` for every projection of the blocks except experts. Low-rank terms can also adapt the embedding (`embed_tokens`), the head (`lm_head`), and experts, each by its name in files (`w1`) or all of a layer as stacked tensors (`mlp.experts.gate_up_proj`, `mlp.experts.down_proj`). Unset: all-linear; for `ia3` the projections of keys and values and those that close MLPs. `houlsby` and methods with virtual tokens have no targets."""

    token_rows: list[int | str]
    """For low-rank methods except `pissa`: tokens whose rows of the embedding are trained too. Allowed: from 0 to 1 048 576."""

    dropout: float | None
    """For `lora`, `rslora` and `pissa`: dropout rate on the input of the low-rank terms. Allowed: 0 or more and below 1."""

    lr_ratio: float | None
    """LoRA+ (Hayou and others, 2024): learning rate of B divided by that of A; unset: 1. Allowed: above 0."""

    embedding_lr_ratio: float | None
    """LoRA+: factor on the learning rate of the embedding's low-rank terms; unset: 1. Allowed: above 0."""

    virtual_tokens: int | str | None
    """For `prompt`, `p_tuning` and `prefix`: number of virtual tokens before each document; they count towards `seq_tokens`. Unset: 20. Allowed: from 1 to 1 048 576."""

    prompt_text: str | None
    """For `prompt`: text that initialises the virtual tokens, repeated or cut to their number. Unset: random values."""

    encoder_reparameterization_type: Literal["mlp", "lstm"]
    """For `p_tuning`: the network that computes the virtual tokens, as in PEFT."""

    prefix_projection: bool
    """For `prefix`: computes the keys and values of all layers by one network (PEFT's `prefix_projection`)."""

    encoder_hidden_size: int | str | None
    """For `p_tuning`: hidden columns of the network, per direction for an LSTM; unset: the model's columns. For `prefix` with `prefix_projection`: hidden columns of the two-layer MLP; unset: the columns of the model's keys. Allowed: from 2 to 1 048 576."""


class AdaptersTable(Table):
    """Keys of `adapters.*`."""

    name: str
    """Its name, and that of its folder inside the run's `adapter`: letters, digits, `-` and `_`."""

    paths: list[str]
    """Its lessons, or with `rl.loss` its prompts, in place of `data.paths`: files, folders and addresses."""

    reward: str | None
    """Its reward file, in place of `rl.reward`."""

    method: Literal["none", "lora", "rslora", "dora", "pissa", "ia3", "houlsby", "prompt", "p_tuning", "prefix"] | None
    """`adapter.method` of this adapter, except `pissa`, which changes the base."""

    rank: int | str | None
    """`adapter.rank` of this adapter. Allowed: from 1 to 1 048 576."""

    alpha: float | None
    """`adapter.alpha` of this adapter. Allowed: above 0."""

    targets: Any | None
    """`adapter.targets` of this adapter."""

    token_rows: list[int | str]
    """`adapter.token_rows` of this adapter. Allowed: from 0 to 1 048 576."""

    dropout: float | None
    """`adapter.dropout` of this adapter. Allowed: 0 or more and below 1."""

    lr_ratio: float | None
    """`adapter.lr_ratio` of this adapter. Allowed: above 0."""

    embedding_lr_ratio: float | None
    """`adapter.embedding_lr_ratio` of this adapter. Allowed: above 0."""

    virtual_tokens: int | str | None
    """`adapter.virtual_tokens` of this adapter. Allowed: from 1 to 1 048 576."""

    prompt_text: str | None
    """`adapter.prompt_text` of this adapter."""

    encoder_reparameterization_type: Literal["mlp", "lstm"] | None
    """`adapter.encoder_reparameterization_type` of this adapter."""

    prefix_projection: bool | None
    """`adapter.prefix_projection` of this adapter."""

    encoder_hidden_size: int | str | None
    """`adapter.encoder_hidden_size` of this adapter. Allowed: from 2 to 1 048 576."""


class PrecisionTable(Table):
    """Keys of `precision`."""

    gemm: Literal["bf16", "fp8_delayed", "fp8_current", "fp8_block", "mxfp8", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4"]
    """Number format of GEMM operands; each is quantized along the reduction dimension."""

    linears: Literal["all", "attention", "mlp"]
    """Linear layers in low precision."""

    num_layers_at_start_in_bf16: int | str
    """First layers that are not affected (Megatron's key). Allowed: from 0 to 4 096."""

    num_layers_at_end_in_bf16: int | str
    """Last layers that are not affected (Megatron's key). Allowed: from 0 to 4 096."""

    amax_history: int | str
    """For `fp8_delayed`: steps of history that set the scale (Transformer Engine's `amax_history_len`). Allowed: from 1 to 1 048 576."""

    qat: Literal["none", "mxfp4", "nvfp4", "int4"]
    """Quantization-aware training: projections of the blocks are what this format makes of their f32 masters, and gradients go to the masters. `fathom export` writes that format."""


class DataColumnsTable(Table):
    """Keys of `data.columns`."""

    prompt: str | None
    """Prompt before the answer."""

    completion: str | None
    """The answer."""

    messages: str | None
    """The list of messages."""

    role: str | None
    """Role of a message."""

    content: str | None
    """Content of a message."""

    system: str | None
    """System message."""

    tools: str | None
    """The tools: a list of schemas, or JSON text of one."""

    chosen: str | None
    """The better of two answers."""

    rejected: str | None
    """The worse of two answers."""

    label: str | None
    """Label of an answer: whether it is desirable, or its ratings."""


class DataBlendTable(Table):
    """Keys of `data.blend.*`."""

    source: str
    """`text` (the gathered text), `drill` or `recall` (synthetic documents: short and dense, or long with distant facts), or the prefix of a token store (`PREFIX.bin`, `PREFIX.idx`) made with the same tokenizer."""

    weight: float
    """Its relative weight; weights need not add up to 1. Allowed: above 0."""


class DataTable(Table):
    """Keys of `data`."""

    paths: Sequence[str | float]
    """Files and folders; of lessons and curations also addresses, `s3://` and `https://`, with `AWS_ACCESS_KEY_ID` and the like from the environment. `cargo:` alone stands for the sources and docs of the crates in cargo's folder on this machine."""

    curate: str
    """Curation of the text: a recipe of `fathom curate` by name or file, or `none`. Its final stages that order, split, write and tokenise are skipped, since the run does this itself. `auto`: `code` for `cargo:`, none for other paths. If `paths` is empty, a recipe that names its own input reads that."""

    text_field: str
    """Field that holds the text in JSON lines and Parquet."""

    format: Literal["auto", "text", "lessons"]
    """Kind of the rows in `paths`."""

    columns: DataColumnsTable
    """For lessons: the keys of a row."""

    chat_template: str | None
    """For conversations: a file with the chat template, or `steerlm` for the one inside the binary (turns marked as NeMo's, with the labels of SteerLM); none for the model's own."""

    supervise: Literal["completion", "last_turn", "all"]
    """For lessons: the tokens to learn."""

    truncation: Literal["keep_start", "keep_end", "error"]
    """For lessons: treatment of those that are too long."""

    max_rows_dropped: int | str
    """For lessons: maximum number of unusable rows to skip."""

    max_text_tokens: int | str
    """For `embed`, `rerank` and `classify`: most tokens of a text or pair, of which the rest is cut off. Allowed: 2 or more."""

    neighbours: str | None
    """For `retro`: prefix of a token store, made with the same tokenizer, whose chunks are the neighbours; none for the documents that the run trains on. A document never has neighbours from itself or from a copy of it."""

    neighbour_encoder: str | None
    """For `retro`: folder of an encoder whose vectors find neighbours; none for BM25."""

    max_bytes: int | str | None
    """Maximum bytes of text to read; unset for all of it. Unread text is reported. Allowed: from 1 to 1 152 921 504 606 846 976."""

    recall_share: float
    """Fraction of the bytes that is synthetic key-value recall, added to the text; 0 for none. Allowed: 0 or more and below 1."""

    held_out_share: float
    """Fraction of the documents held out from training. Allowed: 0 or more and below 1."""

    held_out_paths: list[str]
    """For lessons: files and folders with held-out rows; all rows of `paths` are then trained on, whatever the share."""

    document_bytes: int | str
    """Maximum bytes of one document; files of one folder (of one crate) are joined up to this size. Allowed: from 1 024 to 1 152 921 504 606 846 976."""

    tokenizer: str | None
    """The tokenizer.json to use; none for the model's, or else a newly trained one."""

    tokenizer_bytes: int | str
    """Bytes of text that the tokenizer is trained on. Allowed: from 1 to 1 152 921 504 606 846 976."""

    blend: Tables[DataBlendTable]
    """The sources of samples and their weights; empty for the gathered text and synthetic documents in their natural proportions."""

    shuffle: bool
    """Draws documents and samples in a new random order in each pass; if false, in the order of the files."""

    ahead: int | str
    """Number of samples that the loader prefetches. Allowed: from 0 to 65 536."""


class ObjectiveTable(Table):
    """Keys of `objective`."""

    method: Literal["cross_entropy", "dft", "distill", "dpo", "kto", "orpo", "simpo", "cpo", "rpo", "steerlm2", "reward", "mlm", "embed", "rerank", "classify", "span_corruption", "seq2seq", "retro"]
    """The method."""

    loss: Literal["auto", "sigmoid", "sigmoid_norm", "hinge", "ipo", "ipo_sum", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "apo_zero_unpaired", "bwd_kl", "fwd_kl", "jsd", "sq", "bt", "scaled_bt", "regression", "process", "pointwise", "pairs", "margin", "listwise", "multi_label", "tokens"]
    """The method's loss."""

    losses: list[Literal["auto", "sigmoid", "sigmoid_norm", "hinge", "ipo", "ipo_sum", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "apo_zero_unpaired", "bwd_kl", "fwd_kl", "jsd", "sq", "bt", "scaled_bt", "regression", "process", "pointwise", "pairs", "margin", "listwise", "multi_label", "tokens"]]
    """For `dpo`: several losses instead of one, as in TRL."""

    loss_weights: list[float]
    """Their weights. Allowed: 0 or more."""

    beta: float
    """Strength of the pull towards the reference model; for `orpo`, the weight of the odds ratio. Allowed: above 0."""

    reference: Literal["auto", "column", "copy", "adapter_off", "none"]
    """Source of the reference's log-probabilities; the reference is the model that the run starts from."""

    sync_ref_model: bool
    """Updates the reference towards the policy during training (TR-DPO)."""

    ref_model_mixup_alpha: float | None
    """With `sync_ref_model`: share of the policy in the updated reference; 1 replaces the reference. Unset: 0.6. Allowed: above 0 and at most 1."""

    ref_model_sync_steps: int | str | None
    """With `sync_ref_model`: steps between updates. Unset: 512. Allowed: 1 or more."""

    use_weighting: bool
    """For `dpo`: weights each pair by its likelihood under the policy (WPO)."""

    label_smoothing: float
    """Assumed fraction of wrong labels. Allowed: 0 or more and at most 0.499."""

    f_divergence: Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"]
    """For `dpo`: the divergence from the reference."""

    f_alpha: float
    """Coefficient of the alpha divergence."""

    ld_alpha: float | None
    """For `dpo`: factor on the log-probabilities of the tokens by which an answer is longer than the other one (LD-DPO); unset: 1. Allowed: 0 or more and at most 1."""

    sft_weight: float | None
    """Weight of the cross-entropy of chosen answers; unset: 1 for `cpo` and `orpo`, else 0. Allowed: 0 or more."""

    gamma: float
    """For `simpo`: the margin (TRL's `simpo_gamma`). Allowed: 0 or more."""

    alpha: float
    """For `simpo`: AlphaPO's exponent; 0 for plain log-probabilities."""

    discopop_tau: float
    """Temperature of the loss `discopop`. Allowed: above 0."""

    desirable_weight: float
    """For `kto`: weight of the losses of desirable answers. Allowed: 0 or more."""

    undesirable_weight: float
    """For `kto`: weight of the losses of undesirable answers. Allowed: 0 or more."""

    mismatched_rows: int | str
    """For `kto`: number of consecutive rows that exchange their answers to estimate the divergence (TRL's batch size). Allowed: from 2 to 1 048 576."""

    kl_over: Literal["step", "micro_batch"]
    """For `kto`: the mismatched answers over which the divergence is averaged."""

    responses: int | str
    """For `steerlm2`: answers per row. Allowed: from 2 to 4 096."""

    reward_scale: float
    """For `rpo`: factor on the rewards in the data. Allowed: above 0."""

    center_rewards: float
    """For `reward`: weight of the squared sum of a pair's rewards, a penalty that keeps their mean near 0. Allowed: 0 or more."""

    neftune_alpha: float
    """Size of the noise on the embeddings of training tokens (NEFTune), as TRL's `neftune_noise_alpha`; 5 is usual, 0 is none. Allowed: 0 or more."""

    teacher: str | None
    """For `distill`: the teacher's folder, as in `model.from`; it must have the student's tokenizer."""

    temperature: float
    """For `distill`: temperature, which divides the logits of teacher and student. The divergence is not multiplied by its square. Allowed: 0.01 or more and at most 1000."""

    kd_ratio: float
    """For `distill`: share of the divergence in the objective; the cross-entropy has the rest. Allowed: 0 or more and at most 1."""

    jsd_beta: float
    """For the loss `jsd`: share of the teacher in the mixture; near 0 it acts like `fwd_kl`, near 1 like `bwd_kl`. Allowed: 0.001 or more and at most 0.999."""

    top_k: int | str
    """For `distill`: number of the teacher's most likely tokens to store for each position, once before the first step. 0 runs the teacher in every step, with its whole vocabulary. Allowed: from 0 to 16 384."""

    top_k_rest: bool
    """With `top_k`: treats the remaining probability as one more token on both sides; if false, the stored probabilities are normalised."""

    hidden_pairs: list[str]
    """For `distill` with a teacher that runs in every step: hidden states to compare, given by the number of blocks of the student and of the teacher before them, `['4:8', '8:16']`; 0 is the first block's input. If the teacher has another width, a projection per pair is trained with the student."""

    hidden_loss: Literal["mse", "cosine"]
    """With `hidden_pairs`: the distance between the states of a pair."""

    hidden_weight: float
    """With `hidden_pairs`: weight of the mean over the pairs in the objective. Allowed: 0 or more."""

    attributes: list[str]
    """For `reward` and `classify` with `regression`: names of the ratings, in order."""

    mask_share: float
    """For `mlm` and `span_corruption`: share of the tokens that the model restores. Allowed: above 0 and at most 1."""

    masking: Literal["tokens", "words", "spans"]
    """For `mlm`: tokens that are chosen together."""

    span_tokens: float
    """For `span_corruption`: mean number of tokens of a span. Allowed: 1 or more and at most 1000000."""

    pooling: Literal["mean", "cls", "lasttoken"]
    """For `embed`: from the hidden states of a text to its vector."""

    contrast_temperature: float
    """For `embed`: divides the cosines of vectors. Allowed: above 0."""

    widths: list[int | str]
    """For `embed`: numbers of first columns that are vectors too, each with a loss of its own (Matryoshka); none for all columns alone. Allowed: from 1 to 1 048 576."""

    negatives: int | str
    """For `embed` and `rerank`: negatives of each row, besides its anchor and positive (`negative`, a text or a list). Allowed: from 0 to 4 096."""

    query_prompt: str
    """For `embed`: text before each anchor; the folder's prompt `query`."""

    document_prompt: str
    """For `embed`: text before each positive and negative; the folder's prompt `document`."""

    labels: list[str]
    """For `classify`: names of the labels, in order; the strings or numbers that rows have."""


class RlTable(Table):
    """Keys of `rl`."""

    loss: Literal["none", "grpo", "bnpo", "dapo", "dr_grpo", "gspo", "cispo", "cispo_band", "sapo", "rloo", "reinforce", "ppo", "rejection"]
    """The loss; `none` for runs that do not learn from rewards."""

    reward: str | None
    """The file that says what an answer is worth (TOML, a table `[[reward]]` for each part)."""

    prompts: int | str
    """Prompts of a rollout. Allowed: from 1 to 65 536."""

    answers: int | str
    """Answers to each prompt: a group (TRL `num_generations`). Allowed: from 1 to 65 536."""

    max_answer_tokens: int | str
    """Maximum number of tokens of an answer; of each, where an episode has several. Allowed: from 1 to 16 777 216."""

    temperature: float
    """Divides the logits of the distribution that answers are sampled from; log-probabilities are of that distribution. Allowed: above 0."""

    turns: int | str
    """Answers of an episode at most; more than one with an environment (`environment.command`) alone. Allowed: from 1 to 65 536."""

    top_k: int | str
    """Samples from the k most likely tokens alone; 0 from all. With losses of policies log-probabilities are among those too. Allowed: from 0 to 16 777 216."""

    top_p: float
    """Samples from the fewest tokens whose probability reaches this. With losses of policies log-probabilities are among those too. Allowed: above 0 and at most 1."""

    min_p: float
    """Then drops tokens less likely than this share of the most likely one, in the same way; 0 drops none. Allowed: 0 or more and at most 1."""

    sequences: int | str
    """Answers that are written at once, each with pages of keys and values; 0 for all of a rollout. Allowed: from 0 to 1 048 576."""

    minibatches: int | str
    """Steps that a rollout's groups are shared out to. Allowed: from 1 to 65 536."""

    epochs: int | str
    """Passes over a rollout (TRL `num_iterations`). Allowed: from 1 to 65 536."""

    behind: int | str
    """With 1 the answers of a rollout are written by the weights before the steps of the rollout before it. Allowed: from 0 to 1."""

    importance_sampling_mode: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
    """With `behind`, or over a ring: what a token's loss weighs, so that it makes up for who sampled it."""

    importance_sampling_clip_max: float | None
    """With `behind`: the largest such weight (TRL `vllm_importance_sampling_clip_max`); none for no such limit. Allowed: above 0."""

    importance_sampling_clip_min: float | None
    """With `behind`: the smallest (TRL `vllm_importance_sampling_clip_min`); none for no such limit. Allowed: 0 or more."""

    advantage: Literal["trl", "mean", "batch", "verl", "nemo_rl", "leave_one_out", "reinforce_pp", "reinforce_pp_baseline", "each_then_sum", "raw", "gae"]
    """Computation of advantages from rewards."""

    epsilon: float
    """Largest amount by which a ratio may fall below 1. Allowed: 0 or more and at most 1."""

    epsilon_high: float | None
    """Largest amount by which a ratio may rise above 1; unset: `epsilon`. For `cispo` the largest ratio itself. Allowed: 0 or more."""

    delta: float | None
    """Largest ratio that is not clipped (TRL `delta`); none for no such limit. Allowed: above 0."""

    dual_clip: float | None
    """Dual clip: the loss of a token with an advantage A below 0 is at most `-dual_clip A`; none for no such limit. Allowed: 1 or more."""

    sapo_positive: float
    """For `sapo`: temperature of tokens with an advantage above 0. Allowed: above 0."""

    sapo_negative: float
    """For `sapo`: temperature of the others. Allowed: above 0."""

    beta: float
    """Weight of the divergence from the reference; 0 for none, and no reference is loaded. Allowed: 0 or more."""

    kl: Literal["k3", "k2", "k1"]
    """Estimator of the divergence."""

    kl_in: Literal["loss", "reward"]
    """Place of the divergence."""

    kl_corrected: bool
    """Multiplies the divergence in the loss by the ratio, so that it is unbiased off policy (TRL `use_bias_correction_kl`)."""

    reference: str | None
    """Folder of the reference model; none for `model.from`."""

    dynamic_sampling: bool
    """Drops groups whose rewards are all the same, and samples others in their place (DAPO)."""

    dynamic_rounds: int | str
    """With `dynamic_sampling`: rollouts that a step is made of at most. Allowed: from 1 to 65 536."""

    overlong_tokens: int | str
    """The reward of an answer falls in a line over the last so many of `max_answer_tokens` (DAPO's overlong penalty); 0 for none. Allowed: from 0 to 16 777 216."""

    overlong_penalty: float
    """By how much it falls. Allowed: 0 or more."""

    mask_truncated: bool
    """Leaves answers that did not end by themselves out of the loss."""

    nan_rewards: Literal["refuse", "mask"]
    """Treatment of rewards that are not numbers."""

    gamma: float
    """For `gae`: discount of later rewards. Allowed: 0 or more and at most 1."""

    lambda_: float
    """For `gae`: weight of longer sums of them. Allowed: 0 or more and at most 1."""

    whiten: bool
    """For `gae`: brings the advantages of a rollout to mean 0 and deviation 1."""

    value_coefficient: float
    """For `ppo`: weight of the value head's loss. Allowed: 0 or more."""

    value_clip: float | None
    """For `ppo`: how far a value may go from what it was; none for no limit. Allowed: above 0."""

    top_entropy_quantile: float
    """Share of an answer's tokens, those with the largest entropies of a micro batch, whose clipped or weighted terms count; the divergence from the reference counts at all. Allowed: 0 or more and at most 1."""

    entropy_coefficient: float
    """Times the mean entropy of those tokens, in nats, is subtracted from the loss (TRL `entropy_coef`); below 0 it is added. Allowed: a finite number."""

    keep: int | str
    """For `rejection`: answers of each group that are learned. Allowed: from 1 to 65 536."""

    shown: int | str
    """Answers of a rollout that the log shows. Allowed: from 0 to 65 536."""


class EnvironmentTable(Table):
    """Keys of `environment`."""

    command: list[str]
    """The program and its arguments: one JSON object a line each way. Empty: none replies. Needs `--allow-processes`."""

    function: str | None
    """A function of the program around the run replies instead: its name and version, as Python writes them (`environment=`)."""

    processes: int | str
    """Processes of it on each rank that plays; episodes are dealt out to them by number, and each is asked one question at a time. Allowed: from 1 to 4 096."""

    timeout_s: float
    """Seconds for a reply. Allowed: above 0 and at most 1000000000."""

    role: str
    """For conversations: who says what it writes, as the chat template names it."""

    weight: float
    """Weight of its rewards in the sum. Allowed: a finite number."""

    failed_reward: float | None
    """Its reward for an episode that ends without a reply (a crash, a time-out, a line that is not understood); none leaves the episode out of its group and of the loss. Allowed: a finite number."""


class RoundsTable(Table):
    """Keys of `rounds`."""

    write: Literal["none", "own", "revised"]
    """Text that the model writes before each round."""

    count: int | str
    """Number of rounds. Allowed: from 1 to 65 536."""

    earlier: int | str
    """Rounds before each whose pairs it learns from as well (SPIN's paper has 1). Allowed: from 0 to 65 536."""

    principles: str | None
    """For `revised`: rows (JSON lines) with `critique` and `revision`, what is asked of the model; taken in turns."""

    max_answer_tokens: int | str
    """Maximum number of tokens of an answer. Allowed: from 1 to 16 777 216."""

    temperature: float
    """Divides the logits that answers are sampled from; 0 for the most likely tokens. Allowed: 0 or more."""


class ScaleTable(Table):
    """Keys of `scale`."""

    widths: list[int | str]
    """Sizes, as ascending values of `model.hidden`. Heads, MLP columns and layers follow in the proportions of `model`. The last size is that of the held-out rung alone. Allowed: from 8 to 1 048 576."""

    depth: bool
    """Layers follow the width; if false, all sizes have `model.layers`."""

    budgets: int | str
    """Number of compute budgets. Every size but the last is trained once on each. Allowed: from 1 to 64."""

    growth: float
    """Ratio of each compute budget to the one before, and of the held-out rung's to the largest. Allowed: 1.01 or more and at most 1000."""

    flops: float | None
    """FLOPs of a run on the smallest compute budget; none: those for which all rungs fill the time of `--budget`. Allowed: above 0."""

    least_steps: int | str
    """Fewest steps of a rung; a ladder with a shorter one is refused. Allowed: from 1 to 65 536."""

    lr_power: float
    """The learning rate is `optimizer.lr` times the ratio of `model.hidden` to the width, to this power; with `model.mup_width` it is `optimizer.lr`, which muP scales itself. Allowed: 0 or more and at most 2."""

    resamples: int | str
    """Resamples behind intervals. Allowed: from 0 to 65 536."""

    gpu: str
    """GPU for which the table of budgets is planned, as `machine.profile`."""

    gpu_hours: list[float]
    """Rows of that table: hours of one GPU. Allowed: above 0."""


class OptimizerTable(Table):
    """Keys of `optimizer`."""

    kind: Literal["adamw", "sgd"]
    """AdamW, or SGD with momentum."""

    moments: Literal["bf16", "f32", "fp8"]
    """Type of the moments."""

    master_weights: bool
    """Keeps f32 masters of bf16 weights. Without them a weight takes 4 bytes less, and updates round it stochastically (torchao's `bf16_stochastic_round`)."""

    lr: float
    """Peak learning rate. Allowed: 0 or more."""

    beta1: float
    """Decay of the first moment; the momentum of `sgd`. Allowed: 0 or more and below 1."""

    beta2: float
    """Decay of the second moment. Allowed: 0 or more and below 1."""

    eps: float
    """Added to the root of the second moment. Allowed: 0 or more."""

    weight_decay: float
    """Decoupled weight decay of matrices; norms and biases have none. Allowed: 0 or more."""

    clip: float | None
    """Maximum global gradient norm; none for no clipping. Allowed: above 0."""

    z_loss: float
    """Weight of the squared log-partition in the loss. Allowed: 0 or more."""


class ScheduleTable(Table):
    """Keys of `schedule`."""

    decay: Literal["cosine", "linear", "wsd", "constant"]
    """Shape after warm-up."""

    warmup_steps: int | str | None
    """Steps of linear warm-up; none for 20, or those of `warmup_share`."""

    warmup_share: float | None
    """In place of `warmup_steps`: fraction of a stage's steps that are warm-up, rounded up to a step. Allowed: 0 or more and below 1."""

    final_share: float
    """Final learning rate, as a fraction of the peak. Allowed: 0 or more and at most 1."""

    decay_share: float
    """Fraction of a stage's steps after warm-up over which `wsd` decays. Allowed: 0 or more and at most 1."""


class ActivationsPlacesTable(Table):
    """Keys of `activations.places.*`."""

    layers: list[int | str]
    """First layer and end of the range (exclusive); empty for all layers."""

    name: str
    """An activation's name, as `fathom inspect activations` prints it; a prefix ending in `*`; or `*`."""

    place: Literal["keep", "recompute", "host", "disk"]
    """Its place."""


class ActivationsTable(Table):
    """Keys of `activations`."""

    memory: Literal["manual", "auto"]
    """Choice of the places of activations and of the tile size: `manual` (the keys below) or `auto` (the solver)."""

    recompute_granularity: Literal["none", "selective", "linear", "full"]
    """Activations that the backward pass recomputes."""

    recompute_modules: list[str]
    """For `selective`: core_attn, layernorm, mlp, mlp_act, of experts and latent attention moe, moe_act, shared_experts, mla_up_proj, and mixer of other mixers."""

    recompute_method: Literal["uniform", "block"]
    """For `full`: which layers."""

    recompute_num_layers: int | str
    """For `full`: layers per group (`uniform`), or number of layers (`block`). Allowed: from 1 to 65 536."""

    places: Tables[ActivationsPlacesTable]
    """Rules that take precedence over the other keys; the first match decides."""

    offload_modules: list[str]
    """Kept activations to offload: modules as in `recompute_modules`, block (each block's input), or all."""

    offload_place: Literal["keep", "recompute", "host", "disk"]
    """Target of offloaded activations: `disk`, or `host` (GPU runs)."""

    offload_fraction: float
    """Fraction of the tokens whose activations are offloaded. Allowed: above 0 and at most 1."""

    offload_codec: Literal["as_is", "fp8"]
    """Format of offloaded values."""

    head_groups: int | str
    """Groups of key and value heads that attention processes one after the other. Allowed: from 1 to 65 536."""

    tile_rows: int | str | None
    """Tokens per tile of token-wise operations, a multiple of 128; none for no tiling."""


class StageBlendTable(Table):
    """Keys of `stage.*.blend.*`."""

    source: str
    """`text` (the gathered text), `drill` or `recall` (synthetic documents: short and dense, or long with distant facts), or the prefix of a token store (`PREFIX.bin`, `PREFIX.idx`) made with the same tokenizer."""

    weight: float
    """Its relative weight; weights need not add up to 1. Allowed: above 0."""


class StageLengthWeightsTable(Table):
    """Keys of `stage.*.length_weights.*`."""

    min_tokens: int | str
    """Applies to documents of at least this many tokens; of several entries, the largest that a document reaches."""

    weight: float
    """Times per epoch; 2.5 means twice, and a third time in half of the cases. Allowed: 0 or more and at most 1024."""


class StageTable(Table):
    """Keys of `stage.*`."""

    name: str
    """Its name; a number is appended if an earlier stage has the same name."""

    seq_tokens: int | str
    """Tokens per sample. Allowed: from 2 to 16 777 216."""

    samples_per_micro_batch: int | str
    """Samples per micro batch, packed into one stream. Allowed: from 1 to 65 536."""

    micro_batches: int | str
    """Micro batches per step. Allowed: from 1 to 1 048 576."""

    steps: int | str | None
    """Number of steps; none if `run.minutes` or `epochs` is given. Allowed: 1 or more."""

    epochs: int | str | None
    """In place of `steps`: passes over all samples of the stage's one source. The last step of a pass may have fewer samples. Allowed: from 1 to 1 048 576."""

    minutes_share: float
    """With `run.minutes`: weight of this stage in the run's training time. Allowed: 0 or more."""

    lr_scale: float
    """Multiplies `optimizer.lr`. Allowed: 0 or more."""

    warmup_steps: int | str | None
    """Overrides `schedule.warmup_steps` and `schedule.warmup_share`."""

    packing: Literal["cut", "best_fit", "single"]
    """Packing of documents into samples."""

    masked: bool
    """Restricts attention to a token's own document."""

    blend: Tables[StageBlendTable]
    """Overrides `data.blend`."""

    min_doc_tokens: int | str
    """Minimum length of a document, in tokens."""

    length_weights: Tables[StageLengthWeightsTable]
    """Draws documents more or less often by their length."""

    max_docs: int | str
    """Maximum number of documents per sample, which sizes the masks. Allowed: from 1 to 4 194 304."""

    rope_theta: float | None
    """New base of the rotary frequencies; none for that of the model. Allowed: above 0."""

    rope_type: Literal["keep", "default", "linear", "dynamic", "yarn", "llama3", "longrope"]
    """`rope_type` of the stage's rotary scaling."""

    rope_factor: float | None
    """New length over old length; none for `seq_tokens` over the model's length. Allowed: 1 or more."""

    recompute_granularity: Literal["none", "selective", "linear", "full"] | None
    """Overrides `activations.recompute_granularity`."""

    tile_rows: int | str | None
    """Overrides `activations.tile_rows`."""


class CheckpointTable(Table):
    """Keys of `checkpoint`."""

    every_s: float | None
    """Seconds between checkpoints; none for the end of each stage only. Allowed: 0 or more and at most 1000000000."""

    every_steps: int | str | None
    """Steps between checkpoints. Allowed: 1 or more."""

    memory_every_steps: int | str | None
    """Steps between in-memory copies of every rank's state, on the rank itself and on a partner; none for no copies. Allowed: 1 or more."""

    local: str | None
    """Folder on each machine's local disk to which these copies are also written. A run on the same mesh resumes from them if they are newer than its last checkpoint."""

    trained_only: bool
    """Leave frozen weights out of checkpoints, which name and hash `model.from` instead."""

    keep: int | str
    """Number of checkpoints to keep; the last of each stage is always kept."""


class EvalTable(Table):
    """Keys of `eval`."""

    tokens: int | str
    """Tokens of held-out text to score for loss by position. Allowed: from 0 to 1 152 921 504 606 846 976."""

    needle_trials: int | str
    """Trials per length and depth of the needle test. Allowed: from 0 to 65 536."""

    needle_depths: int | str
    """Number of depths of the needle test. Allowed: from 1 to 65 536."""

    enabled: bool
    """Evaluates before and after context extension."""

    ruler: list[int | str]
    """Lengths in tokens at which RULER's tasks are asked before and after context extension; none of them without a length. Allowed: from 1 to 16 777 216."""

    ruler_rows: int | str
    """Rows of each of RULER's tasks at each length; RULER has 500. Allowed: from 1 to 65 536."""

    ruler_data: str | None
    """Folder with RULER's files (`ruler/PaulGrahamEssays.json` and the others); none: the six tasks that need no file."""


class TrainRecipe(Recipe):
    """A recipe of a run."""

    run: RunTable
    """The run itself."""

    machine: MachineTable
    """The machine that computes."""

    mesh: MeshTable
    """The ranks and their axes."""

    model: ModelTable
    """The model."""

    moe: MoeTable
    """Its experts."""

    adapter: AdapterTable
    """Adapter to train in place of the model's own weights."""

    adapters: Tables[AdaptersTable]
    """Several adapters over one base, each with its lessons, trained in turns: a step of each, then the next of each."""

    precision: PrecisionTable
    """Number formats of matrix products."""

    data: DataTable
    """The training data."""

    objective: ObjectiveTable
    """The training objective."""

    rl: RlTable
    """Learning from rewards."""

    environment: EnvironmentTable
    """The environment that replies to answers."""

    rounds: RoundsTable
    """Rounds over pairs that the model writes."""

    scale: ScaleTable
    """The ladder of `fathom scale`."""

    optimizer: OptimizerTable
    """The optimizer."""

    schedule: ScheduleTable
    """The learning rate schedule."""

    activations: ActivationsTable
    """Places of activations between the forward and the backward pass."""

    stage: Tables[StageTable]
    """The stages, in order."""

    stages: list[int | str]
    """Short form of `stage`: sequence lengths. The last `stage` is repeated with each of them. Allowed: from 2 to 16 777 216."""

    checkpoint: CheckpointTable
    """Checkpoints."""

    eval: EvalTable
    """Evaluation."""


TABLES: Final[dict[str, type[Table]]] = {
    "run": RunTable,
    "machine": MachineTable,
    "mesh": MeshTable,
    "model": ModelTable,
    "moe": MoeTable,
    "adapter": AdapterTable,
    "adapters.*": AdaptersTable,
    "precision": PrecisionTable,
    "data.columns": DataColumnsTable,
    "data.blend.*": DataBlendTable,
    "data": DataTable,
    "objective": ObjectiveTable,
    "rl": RlTable,
    "environment": EnvironmentTable,
    "rounds": RoundsTable,
    "scale": ScaleTable,
    "optimizer": OptimizerTable,
    "schedule": ScheduleTable,
    "activations.places.*": ActivationsPlacesTable,
    "activations": ActivationsTable,
    "stage.*.blend.*": StageBlendTable,
    "stage.*.length_weights.*": StageLengthWeightsTable,
    "stage.*": StageTable,
    "checkpoint": CheckpointTable,
    "eval": EvalTable,
}


class Dials(TypedDict, total=False):
    """Keys of a recipe as arguments: `_` for `.`, or the last name alone."""

    activations_head_groups: int | str
    activations_memory: Literal["manual", "auto"]
    activations_offload_codec: Literal["as_is", "fp8"]
    activations_offload_fraction: float
    activations_offload_modules: list[str]
    activations_offload_place: Literal["keep", "recompute", "host", "disk"]
    activations_places_layers: list[int | str]
    activations_places_name: str
    activations_places_place: Literal["keep", "recompute", "host", "disk"]
    activations_recompute_granularity: Literal["none", "selective", "linear", "full"]
    activations_recompute_method: Literal["uniform", "block"]
    activations_recompute_modules: list[str]
    activations_recompute_num_layers: int | str
    activations_tile_rows: int | str | None
    adapter_alpha: float | None
    adapter_dropout: float | None
    adapter_embedding_lr_ratio: float | None
    adapter_encoder_hidden_size: int | str | None
    adapter_encoder_reparameterization_type: Literal["mlp", "lstm"]
    adapter_lr_ratio: float | None
    adapter_method: Literal["none", "lora", "rslora", "dora", "pissa", "ia3", "houlsby", "prompt", "p_tuning", "prefix"]
    adapter_prefix_projection: bool
    adapter_prompt_text: str | None
    adapter_rank: int | str | None
    adapter_targets: Any | None
    adapter_token_rows: list[int | str]
    adapter_virtual_tokens: int | str | None
    adapters_alpha: float | None
    adapters_dropout: float | None
    adapters_embedding_lr_ratio: float | None
    adapters_encoder_hidden_size: int | str | None
    adapters_encoder_reparameterization_type: Literal["mlp", "lstm"] | None
    adapters_lr_ratio: float | None
    adapters_method: Literal["none", "lora", "rslora", "dora", "pissa", "ia3", "houlsby", "prompt", "p_tuning", "prefix"] | None
    adapters_name: str
    adapters_paths: list[str]
    adapters_prefix_projection: bool | None
    adapters_prompt_text: str | None
    adapters_rank: int | str | None
    adapters_reward: str | None
    adapters_targets: Any | None
    adapters_token_rows: list[int | str]
    adapters_virtual_tokens: int | str | None
    advantage: Literal["trl", "mean", "batch", "verl", "nemo_rl", "leave_one_out", "reinforce_pp", "reinforce_pp_baseline", "each_then_sum", "raw", "gae"]
    ahead: int | str
    amax_history: int | str
    answers: int | str
    attention_interval: int | str
    attributes: list[str]
    aux_loss: float
    behind: int | str
    beta1: float
    beta2: float
    bias_update_rate: float
    budgets: int | str
    capacity_factor: float | None
    center_rewards: float
    chaos: int | str | None
    chaos_faults: int | str
    chat_template: str | None
    check_every_steps: int | str
    checkpoint_every_s: float | None
    checkpoint_every_steps: int | str | None
    checkpoint_keep: int | str
    checkpoint_local: str | None
    checkpoint_memory_every_steps: int | str | None
    checkpoint_trained_only: bool
    chosen: str | None
    clip: float | None
    command: list[str]
    completion: str | None
    content: str | None
    contrast_temperature: float
    count: int | str
    cp: int | str
    cp_comm_type: Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
    cp_dynamic: bool
    cp_inner: int | str
    cp_scan_comm_type: Literal["auto", "a2a", "states"]
    cuda_libs: str | None
    curate: str
    data_ahead: int | str
    data_blend_source: str
    data_blend_weight: float
    data_chat_template: str | None
    data_columns_chosen: str | None
    data_columns_completion: str | None
    data_columns_content: str | None
    data_columns_label: str | None
    data_columns_messages: str | None
    data_columns_prompt: str | None
    data_columns_rejected: str | None
    data_columns_role: str | None
    data_columns_system: str | None
    data_columns_tools: str | None
    data_curate: str
    data_document_bytes: int | str
    data_format: Literal["auto", "text", "lessons"]
    data_held_out_paths: list[str]
    data_held_out_share: float
    data_max_bytes: int | str | None
    data_max_rows_dropped: int | str
    data_max_text_tokens: int | str
    data_neighbour_encoder: str | None
    data_neighbours: str | None
    data_paths: Sequence[str | float]
    data_recall_share: float
    data_shuffle: bool
    data_supervise: Literal["completion", "last_turn", "all"]
    data_text_field: str
    data_tokenizer: str | None
    data_tokenizer_bytes: int | str
    data_truncation: Literal["keep_start", "keep_end", "error"]
    decay: Literal["cosine", "linear", "wsd", "constant"]
    decay_share: float
    delta: float | None
    dense_layers: int | str
    depth: bool
    desirable_weight: float
    discopop_tau: float
    disk_bytes: int | str | None
    document_bytes: int | str
    document_prompt: str
    double_quant: bool
    dp: int | str
    drop_policy: Literal["probs", "position"]
    dual_clip: float | None
    dynamic_rounds: int | str
    dynamic_sampling: bool
    earlier: int | str
    embedding_multiplier: float
    enabled: bool
    entropy_coefficient: float
    environment_command: list[str]
    environment_failed_reward: float | None
    environment_function: str | None
    environment_processes: int | str
    environment_role: str
    environment_timeout_s: float
    environment_weight: float
    ep: int | str
    epochs: int | str | None
    eps: float
    epsilon: float
    epsilon_high: float | None
    etp: int | str
    eval_enabled: bool
    eval_needle_depths: int | str
    eval_needle_trials: int | str
    eval_ruler: list[int | str]
    eval_ruler_data: str | None
    eval_ruler_rows: int | str
    eval_tokens: int | str
    every_s: float | None
    every_steps: int | str | None
    experts: int | str
    f_alpha: float
    f_divergence: Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"]
    failed_reward: float | None
    family: Literal["llama", "qwen2", "qwen3", "granite", "smollm3", "mixtral", "qwen3_moe", "deepseek_v3", "nemotron", "mamba2", "granitemoehybrid", "t5", "retro"]
    fault: str | None
    final_share: float
    flops: float | None
    format: Literal["auto", "text", "lessons"]
    function: str | None
    gemm: Literal["bf16", "fp8_delayed", "fp8_current", "fp8_block", "mxfp8", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4"]
    gpu: str
    gpu_hours: list[float]
    graphs: bool
    growth: float
    head_dim: int | str
    head_groups: int | str
    heads: int | str
    held_out_paths: list[str]
    held_out_share: float
    hidden: int | str
    hidden_loss: Literal["mse", "cosine"]
    hidden_pairs: list[str]
    hidden_weight: float
    host_bytes: int | str | None
    importance_sampling_clip_max: float | None
    importance_sampling_clip_min: float | None
    importance_sampling_mode: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
    init: Literal["normal", "induction"]
    init_std: float
    jsd_beta: float
    kd_ratio: float
    kl: Literal["k3", "k2", "k1"]
    kl_corrected: bool
    kl_in: Literal["loss", "reward"]
    kl_over: Literal["step", "micro_batch"]
    kv_heads: int | str
    kv_latent: int | str
    label: str | None
    label_smoothing: float
    labels: list[str]
    layout: list[int | str]
    ld_alpha: float | None
    least_steps: int | str
    linears: Literal["all", "attention", "mlp"]
    local: str | None
    loss_weights: list[float]
    losses: list[Literal["auto", "sigmoid", "sigmoid_norm", "hinge", "ipo", "ipo_sum", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "apo_zero_unpaired", "bwd_kl", "fwd_kl", "jsd", "sq", "bt", "scaled_bt", "regression", "process", "pointwise", "pairs", "margin", "listwise", "multi_label", "tokens"]]
    lr: float
    lr_power: float
    lr_scale: float
    machine_chaos: int | str | None
    machine_chaos_faults: int | str
    machine_cuda_libs: str | None
    machine_disk_bytes: int | str | None
    machine_fault: str | None
    machine_graphs: bool
    machine_host_bytes: int | str | None
    machine_kind: Literal["auto", "cpu", "cuda", "meta"]
    machine_memory_bytes: int | str | None
    machine_offload_optimizer: bool
    machine_offload_to: Literal["disk", "host"]
    machine_offload_weights: bool
    machine_optimizer_stays_percent: int | str
    machine_profile: str
    machine_spill: str | None
    machine_threads: int | str
    mask_share: float
    mask_truncated: bool
    masked: bool
    masking: Literal["tokens", "words", "spans"]
    master_weights: bool
    max_bytes: int | str | None
    max_docs: int | str
    max_rows_dropped: int | str
    max_text_tokens: int | str
    memory: Literal["manual", "auto"]
    memory_bytes: int | str | None
    memory_every_steps: int | str | None
    mesh_check_every_steps: int | str
    mesh_cp: int | str
    mesh_cp_comm_type: Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
    mesh_cp_dynamic: bool
    mesh_cp_inner: int | str
    mesh_cp_scan_comm_type: Literal["auto", "a2a", "states"]
    mesh_dp: int | str
    mesh_ep: int | str
    mesh_etp: int | str
    mesh_layout: list[int | str]
    mesh_pp: int | str
    mesh_restarts: int | str
    mesh_schedule: Literal["1f1b", "zero_bubble"]
    mesh_sequence_parallel: bool
    mesh_sharding: Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]
    mesh_step_timeout_s: float | None
    mesh_timeout_s: float
    mesh_tp: int | str
    mesh_virtual_stages: int | str
    messages: str | None
    method: Literal["cross_entropy", "dft", "distill", "dpo", "kto", "orpo", "simpo", "cpo", "rpo", "steerlm2", "reward", "mlm", "embed", "rerank", "classify", "span_corruption", "seq2seq", "retro"]
    micro_batches: int | str
    min_doc_tokens: int | str
    min_p: float
    min_tokens: int | str
    minibatches: int | str
    minutes: float | None
    minutes_share: float
    mismatched_rows: int | str
    mlflow: str | None
    model_attention_interval: int | str
    model_double_quant: bool
    model_embedding_multiplier: float
    model_family: Literal["llama", "qwen2", "qwen3", "granite", "smollm3", "mixtral", "qwen3_moe", "deepseek_v3", "nemotron", "mamba2", "granitemoehybrid", "t5", "retro"]
    model_ffn: int | str
    model_from: str | None
    model_head_dim: int | str
    model_heads: int | str
    model_hidden: int | str
    model_init: Literal["normal", "induction"]
    model_init_std: float
    model_kv_heads: int | str
    model_kv_latent: int | str
    model_layers: int | str
    model_mup_width: int | str | None
    model_no_rope_layer_interval: int | str
    model_precision: Literal["bf16", "f32"]
    model_quantization: Literal["none", "nf4", "int8"]
    model_retro_layers: list[int | str]
    model_rope_dim: int | str
    model_rope_theta: float
    model_ssm_groups: int | str
    model_ssm_head_dim: int | str
    model_ssm_state: int | str
    model_tied: bool
    model_trained: list[str]
    model_vocab: int | str
    moe_aux_loss: float
    moe_bias_update_rate: float
    moe_capacity_factor: float | None
    moe_dense_layers: int | str
    moe_drop_policy: Literal["probs", "position"]
    moe_experts: int | str
    moe_ffn: int | str | None
    moe_shared: int | str
    moe_top_k: int | str
    moe_z_loss: float
    moments: Literal["bf16", "f32", "fp8"]
    mup_width: int | str | None
    name: str
    nan_rewards: Literal["refuse", "mask"]
    needle_depths: int | str
    needle_trials: int | str
    neftune_alpha: float
    negatives: int | str
    neighbour_encoder: str | None
    neighbours: str | None
    no_rope_layer_interval: int | str
    num_layers_at_end_in_bf16: int | str
    num_layers_at_start_in_bf16: int | str
    objective_alpha: float
    objective_attributes: list[str]
    objective_beta: float
    objective_center_rewards: float
    objective_contrast_temperature: float
    objective_desirable_weight: float
    objective_discopop_tau: float
    objective_document_prompt: str
    objective_f_alpha: float
    objective_f_divergence: Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"]
    objective_gamma: float
    objective_hidden_loss: Literal["mse", "cosine"]
    objective_hidden_pairs: list[str]
    objective_hidden_weight: float
    objective_jsd_beta: float
    objective_kd_ratio: float
    objective_kl_over: Literal["step", "micro_batch"]
    objective_label_smoothing: float
    objective_labels: list[str]
    objective_ld_alpha: float | None
    objective_loss: Literal["auto", "sigmoid", "sigmoid_norm", "hinge", "ipo", "ipo_sum", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "apo_zero_unpaired", "bwd_kl", "fwd_kl", "jsd", "sq", "bt", "scaled_bt", "regression", "process", "pointwise", "pairs", "margin", "listwise", "multi_label", "tokens"]
    objective_loss_weights: list[float]
    objective_losses: list[Literal["auto", "sigmoid", "sigmoid_norm", "hinge", "ipo", "ipo_sum", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "apo_zero_unpaired", "bwd_kl", "fwd_kl", "jsd", "sq", "bt", "scaled_bt", "regression", "process", "pointwise", "pairs", "margin", "listwise", "multi_label", "tokens"]]
    objective_mask_share: float
    objective_masking: Literal["tokens", "words", "spans"]
    objective_method: Literal["cross_entropy", "dft", "distill", "dpo", "kto", "orpo", "simpo", "cpo", "rpo", "steerlm2", "reward", "mlm", "embed", "rerank", "classify", "span_corruption", "seq2seq", "retro"]
    objective_mismatched_rows: int | str
    objective_neftune_alpha: float
    objective_negatives: int | str
    objective_pooling: Literal["mean", "cls", "lasttoken"]
    objective_query_prompt: str
    objective_ref_model_mixup_alpha: float | None
    objective_ref_model_sync_steps: int | str | None
    objective_reference: Literal["auto", "column", "copy", "adapter_off", "none"]
    objective_responses: int | str
    objective_reward_scale: float
    objective_sft_weight: float | None
    objective_span_tokens: float
    objective_sync_ref_model: bool
    objective_teacher: str | None
    objective_temperature: float
    objective_top_k: int | str
    objective_top_k_rest: bool
    objective_undesirable_weight: float
    objective_use_weighting: bool
    objective_widths: list[int | str]
    offload_codec: Literal["as_is", "fp8"]
    offload_fraction: float
    offload_modules: list[str]
    offload_optimizer: bool
    offload_place: Literal["keep", "recompute", "host", "disk"]
    offload_to: Literal["disk", "host"]
    offload_weights: bool
    optimizer_beta1: float
    optimizer_beta2: float
    optimizer_clip: float | None
    optimizer_eps: float
    optimizer_kind: Literal["adamw", "sgd"]
    optimizer_lr: float
    optimizer_master_weights: bool
    optimizer_moments: Literal["bf16", "f32", "fp8"]
    optimizer_stays_percent: int | str
    optimizer_weight_decay: float
    optimizer_z_loss: float
    otlp: str | None
    out: str
    overlong_penalty: float
    overlong_tokens: int | str
    packing: Literal["cut", "best_fit", "single"]
    place: Literal["keep", "recompute", "host", "disk"]
    pooling: Literal["mean", "cls", "lasttoken"]
    pp: int | str
    precision_amax_history: int | str
    precision_gemm: Literal["bf16", "fp8_delayed", "fp8_current", "fp8_block", "mxfp8", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4"]
    precision_linears: Literal["all", "attention", "mlp"]
    precision_num_layers_at_end_in_bf16: int | str
    precision_num_layers_at_start_in_bf16: int | str
    precision_qat: Literal["none", "mxfp4", "nvfp4", "int4"]
    principles: str | None
    processes: int | str
    prompt: str | None
    prompts: int | str
    qat: Literal["none", "mxfp4", "nvfp4", "int4"]
    quantization: Literal["none", "nf4", "int8"]
    query_prompt: str
    recall_share: float
    recompute_method: Literal["uniform", "block"]
    recompute_modules: list[str]
    recompute_num_layers: int | str
    ref_model_mixup_alpha: float | None
    ref_model_sync_steps: int | str | None
    rejected: str | None
    resamples: int | str
    responses: int | str
    restarts: int | str
    retro_layers: list[int | str]
    reward_scale: float
    rl_advantage: Literal["trl", "mean", "batch", "verl", "nemo_rl", "leave_one_out", "reinforce_pp", "reinforce_pp_baseline", "each_then_sum", "raw", "gae"]
    rl_answers: int | str
    rl_behind: int | str
    rl_beta: float
    rl_delta: float | None
    rl_dual_clip: float | None
    rl_dynamic_rounds: int | str
    rl_dynamic_sampling: bool
    rl_entropy_coefficient: float
    rl_epochs: int | str
    rl_epsilon: float
    rl_epsilon_high: float | None
    rl_gamma: float
    rl_importance_sampling_clip_max: float | None
    rl_importance_sampling_clip_min: float | None
    rl_importance_sampling_mode: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
    rl_keep: int | str
    rl_kl: Literal["k3", "k2", "k1"]
    rl_kl_corrected: bool
    rl_kl_in: Literal["loss", "reward"]
    rl_lambda: float
    rl_loss: Literal["none", "grpo", "bnpo", "dapo", "dr_grpo", "gspo", "cispo", "cispo_band", "sapo", "rloo", "reinforce", "ppo", "rejection"]
    rl_mask_truncated: bool
    rl_max_answer_tokens: int | str
    rl_min_p: float
    rl_minibatches: int | str
    rl_nan_rewards: Literal["refuse", "mask"]
    rl_overlong_penalty: float
    rl_overlong_tokens: int | str
    rl_prompts: int | str
    rl_reference: str | None
    rl_reward: str | None
    rl_sapo_negative: float
    rl_sapo_positive: float
    rl_sequences: int | str
    rl_shown: int | str
    rl_temperature: float
    rl_top_entropy_quantile: float
    rl_top_k: int | str
    rl_top_p: float
    rl_turns: int | str
    rl_value_clip: float | None
    rl_value_coefficient: float
    rl_whiten: bool
    rope_dim: int | str
    rope_factor: float | None
    rope_type: Literal["keep", "default", "linear", "dynamic", "yarn", "llama3", "longrope"]
    rounds_count: int | str
    rounds_earlier: int | str
    rounds_max_answer_tokens: int | str
    rounds_principles: str | None
    rounds_temperature: float
    rounds_write: Literal["none", "own", "revised"]
    ruler: list[int | str]
    ruler_data: str | None
    ruler_rows: int | str
    run_minutes: float | None
    run_mlflow: str | None
    run_name: str
    run_otlp: str | None
    run_out: str
    run_profile: bool
    run_seed: int | str
    run_tensorboard: bool
    run_trackio: bool
    run_wandb: bool
    samples_per_micro_batch: int | str
    sapo_negative: float
    sapo_positive: float
    scale_budgets: int | str
    scale_depth: bool
    scale_flops: float | None
    scale_gpu: str
    scale_gpu_hours: list[float]
    scale_growth: float
    scale_least_steps: int | str
    scale_lr_power: float
    scale_resamples: int | str
    scale_widths: list[int | str]
    schedule_decay: Literal["cosine", "linear", "wsd", "constant"]
    schedule_decay_share: float
    schedule_final_share: float
    schedule_warmup_share: float | None
    schedule_warmup_steps: int | str | None
    seed: int | str
    seq_tokens: int | str
    sequence_parallel: bool
    sequences: int | str
    sft_weight: float | None
    sharding: Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]
    shared: int | str
    shown: int | str
    shuffle: bool
    span_tokens: float
    spill: str | None
    ssm_groups: int | str
    ssm_head_dim: int | str
    ssm_state: int | str
    stage_blend_source: str
    stage_blend_weight: float
    stage_epochs: int | str | None
    stage_length_weights_min_tokens: int | str
    stage_length_weights_weight: float
    stage_lr_scale: float
    stage_masked: bool
    stage_max_docs: int | str
    stage_micro_batches: int | str
    stage_min_doc_tokens: int | str
    stage_minutes_share: float
    stage_name: str
    stage_packing: Literal["cut", "best_fit", "single"]
    stage_recompute_granularity: Literal["none", "selective", "linear", "full"] | None
    stage_rope_factor: float | None
    stage_rope_theta: float | None
    stage_rope_type: Literal["keep", "default", "linear", "dynamic", "yarn", "llama3", "longrope"]
    stage_samples_per_micro_batch: int | str
    stage_seq_tokens: int | str
    stage_steps: int | str | None
    stage_tile_rows: int | str | None
    stage_warmup_steps: int | str | None
    stages: list[int | str]
    step_timeout_s: float | None
    steps: int | str | None
    supervise: Literal["completion", "last_turn", "all"]
    sync_ref_model: bool
    system: str | None
    teacher: str | None
    tensorboard: bool
    text_field: str
    threads: int | str
    tied: bool
    tokenizer: str | None
    tokenizer_bytes: int | str
    tokens: int | str
    tools: str | None
    top_entropy_quantile: float
    top_k_rest: bool
    top_p: float
    tp: int | str
    trackio: bool
    trained: list[str]
    trained_only: bool
    truncation: Literal["keep_start", "keep_end", "error"]
    turns: int | str
    undesirable_weight: float
    use_weighting: bool
    value_clip: float | None
    value_coefficient: float
    virtual_stages: int | str
    vocab: int | str
    wandb: bool
    warmup_share: float | None
    weight_decay: float
    whiten: bool
    write: Literal["none", "own", "revised"]


DIALS: Final[dict[str, str]] = {
    "activations_head_groups": "activations.head_groups",
    "activations_memory": "activations.memory",
    "activations_offload_codec": "activations.offload_codec",
    "activations_offload_fraction": "activations.offload_fraction",
    "activations_offload_modules": "activations.offload_modules",
    "activations_offload_place": "activations.offload_place",
    "activations_places_layers": "activations.places.*.layers",
    "activations_places_name": "activations.places.*.name",
    "activations_places_place": "activations.places.*.place",
    "activations_recompute_granularity": "activations.recompute_granularity",
    "activations_recompute_method": "activations.recompute_method",
    "activations_recompute_modules": "activations.recompute_modules",
    "activations_recompute_num_layers": "activations.recompute_num_layers",
    "activations_tile_rows": "activations.tile_rows",
    "adapter_alpha": "adapter.alpha",
    "adapter_dropout": "adapter.dropout",
    "adapter_embedding_lr_ratio": "adapter.embedding_lr_ratio",
    "adapter_encoder_hidden_size": "adapter.encoder_hidden_size",
    "adapter_encoder_reparameterization_type": "adapter.encoder_reparameterization_type",
    "adapter_lr_ratio": "adapter.lr_ratio",
    "adapter_method": "adapter.method",
    "adapter_prefix_projection": "adapter.prefix_projection",
    "adapter_prompt_text": "adapter.prompt_text",
    "adapter_rank": "adapter.rank",
    "adapter_targets": "adapter.targets",
    "adapter_token_rows": "adapter.token_rows",
    "adapter_virtual_tokens": "adapter.virtual_tokens",
    "adapters_alpha": "adapters.*.alpha",
    "adapters_dropout": "adapters.*.dropout",
    "adapters_embedding_lr_ratio": "adapters.*.embedding_lr_ratio",
    "adapters_encoder_hidden_size": "adapters.*.encoder_hidden_size",
    "adapters_encoder_reparameterization_type": "adapters.*.encoder_reparameterization_type",
    "adapters_lr_ratio": "adapters.*.lr_ratio",
    "adapters_method": "adapters.*.method",
    "adapters_name": "adapters.*.name",
    "adapters_paths": "adapters.*.paths",
    "adapters_prefix_projection": "adapters.*.prefix_projection",
    "adapters_prompt_text": "adapters.*.prompt_text",
    "adapters_rank": "adapters.*.rank",
    "adapters_reward": "adapters.*.reward",
    "adapters_targets": "adapters.*.targets",
    "adapters_token_rows": "adapters.*.token_rows",
    "adapters_virtual_tokens": "adapters.*.virtual_tokens",
    "advantage": "rl.advantage",
    "ahead": "data.ahead",
    "amax_history": "precision.amax_history",
    "answers": "rl.answers",
    "attention_interval": "model.attention_interval",
    "attributes": "objective.attributes",
    "aux_loss": "moe.aux_loss",
    "behind": "rl.behind",
    "beta1": "optimizer.beta1",
    "beta2": "optimizer.beta2",
    "bias_update_rate": "moe.bias_update_rate",
    "budgets": "scale.budgets",
    "capacity_factor": "moe.capacity_factor",
    "center_rewards": "objective.center_rewards",
    "chaos": "machine.chaos",
    "chaos_faults": "machine.chaos_faults",
    "chat_template": "data.chat_template",
    "check_every_steps": "mesh.check_every_steps",
    "checkpoint_every_s": "checkpoint.every_s",
    "checkpoint_every_steps": "checkpoint.every_steps",
    "checkpoint_keep": "checkpoint.keep",
    "checkpoint_local": "checkpoint.local",
    "checkpoint_memory_every_steps": "checkpoint.memory_every_steps",
    "checkpoint_trained_only": "checkpoint.trained_only",
    "chosen": "data.columns.chosen",
    "clip": "optimizer.clip",
    "command": "environment.command",
    "completion": "data.columns.completion",
    "content": "data.columns.content",
    "contrast_temperature": "objective.contrast_temperature",
    "count": "rounds.count",
    "cp": "mesh.cp",
    "cp_comm_type": "mesh.cp_comm_type",
    "cp_dynamic": "mesh.cp_dynamic",
    "cp_inner": "mesh.cp_inner",
    "cp_scan_comm_type": "mesh.cp_scan_comm_type",
    "cuda_libs": "machine.cuda_libs",
    "curate": "data.curate",
    "data_ahead": "data.ahead",
    "data_blend_source": "data.blend.*.source",
    "data_blend_weight": "data.blend.*.weight",
    "data_chat_template": "data.chat_template",
    "data_columns_chosen": "data.columns.chosen",
    "data_columns_completion": "data.columns.completion",
    "data_columns_content": "data.columns.content",
    "data_columns_label": "data.columns.label",
    "data_columns_messages": "data.columns.messages",
    "data_columns_prompt": "data.columns.prompt",
    "data_columns_rejected": "data.columns.rejected",
    "data_columns_role": "data.columns.role",
    "data_columns_system": "data.columns.system",
    "data_columns_tools": "data.columns.tools",
    "data_curate": "data.curate",
    "data_document_bytes": "data.document_bytes",
    "data_format": "data.format",
    "data_held_out_paths": "data.held_out_paths",
    "data_held_out_share": "data.held_out_share",
    "data_max_bytes": "data.max_bytes",
    "data_max_rows_dropped": "data.max_rows_dropped",
    "data_max_text_tokens": "data.max_text_tokens",
    "data_neighbour_encoder": "data.neighbour_encoder",
    "data_neighbours": "data.neighbours",
    "data_paths": "data.paths",
    "data_recall_share": "data.recall_share",
    "data_shuffle": "data.shuffle",
    "data_supervise": "data.supervise",
    "data_text_field": "data.text_field",
    "data_tokenizer": "data.tokenizer",
    "data_tokenizer_bytes": "data.tokenizer_bytes",
    "data_truncation": "data.truncation",
    "decay": "schedule.decay",
    "decay_share": "schedule.decay_share",
    "delta": "rl.delta",
    "dense_layers": "moe.dense_layers",
    "depth": "scale.depth",
    "desirable_weight": "objective.desirable_weight",
    "discopop_tau": "objective.discopop_tau",
    "disk_bytes": "machine.disk_bytes",
    "document_bytes": "data.document_bytes",
    "document_prompt": "objective.document_prompt",
    "double_quant": "model.double_quant",
    "dp": "mesh.dp",
    "drop_policy": "moe.drop_policy",
    "dual_clip": "rl.dual_clip",
    "dynamic_rounds": "rl.dynamic_rounds",
    "dynamic_sampling": "rl.dynamic_sampling",
    "earlier": "rounds.earlier",
    "embedding_multiplier": "model.embedding_multiplier",
    "enabled": "eval.enabled",
    "entropy_coefficient": "rl.entropy_coefficient",
    "environment_command": "environment.command",
    "environment_failed_reward": "environment.failed_reward",
    "environment_function": "environment.function",
    "environment_processes": "environment.processes",
    "environment_role": "environment.role",
    "environment_timeout_s": "environment.timeout_s",
    "environment_weight": "environment.weight",
    "ep": "mesh.ep",
    "epochs": "stage.*.epochs",
    "eps": "optimizer.eps",
    "epsilon": "rl.epsilon",
    "epsilon_high": "rl.epsilon_high",
    "etp": "mesh.etp",
    "eval_enabled": "eval.enabled",
    "eval_needle_depths": "eval.needle_depths",
    "eval_needle_trials": "eval.needle_trials",
    "eval_ruler": "eval.ruler",
    "eval_ruler_data": "eval.ruler_data",
    "eval_ruler_rows": "eval.ruler_rows",
    "eval_tokens": "eval.tokens",
    "every_s": "checkpoint.every_s",
    "every_steps": "checkpoint.every_steps",
    "experts": "moe.experts",
    "f_alpha": "objective.f_alpha",
    "f_divergence": "objective.f_divergence",
    "failed_reward": "environment.failed_reward",
    "family": "model.family",
    "fault": "machine.fault",
    "final_share": "schedule.final_share",
    "flops": "scale.flops",
    "format": "data.format",
    "function": "environment.function",
    "gemm": "precision.gemm",
    "gpu": "scale.gpu",
    "gpu_hours": "scale.gpu_hours",
    "graphs": "machine.graphs",
    "growth": "scale.growth",
    "head_dim": "model.head_dim",
    "head_groups": "activations.head_groups",
    "heads": "model.heads",
    "held_out_paths": "data.held_out_paths",
    "held_out_share": "data.held_out_share",
    "hidden": "model.hidden",
    "hidden_loss": "objective.hidden_loss",
    "hidden_pairs": "objective.hidden_pairs",
    "hidden_weight": "objective.hidden_weight",
    "host_bytes": "machine.host_bytes",
    "importance_sampling_clip_max": "rl.importance_sampling_clip_max",
    "importance_sampling_clip_min": "rl.importance_sampling_clip_min",
    "importance_sampling_mode": "rl.importance_sampling_mode",
    "init": "model.init",
    "init_std": "model.init_std",
    "jsd_beta": "objective.jsd_beta",
    "kd_ratio": "objective.kd_ratio",
    "kl": "rl.kl",
    "kl_corrected": "rl.kl_corrected",
    "kl_in": "rl.kl_in",
    "kl_over": "objective.kl_over",
    "kv_heads": "model.kv_heads",
    "kv_latent": "model.kv_latent",
    "label": "data.columns.label",
    "label_smoothing": "objective.label_smoothing",
    "labels": "objective.labels",
    "layout": "mesh.layout",
    "ld_alpha": "objective.ld_alpha",
    "least_steps": "scale.least_steps",
    "linears": "precision.linears",
    "local": "checkpoint.local",
    "loss_weights": "objective.loss_weights",
    "losses": "objective.losses",
    "lr": "optimizer.lr",
    "lr_power": "scale.lr_power",
    "lr_scale": "stage.*.lr_scale",
    "machine_chaos": "machine.chaos",
    "machine_chaos_faults": "machine.chaos_faults",
    "machine_cuda_libs": "machine.cuda_libs",
    "machine_disk_bytes": "machine.disk_bytes",
    "machine_fault": "machine.fault",
    "machine_graphs": "machine.graphs",
    "machine_host_bytes": "machine.host_bytes",
    "machine_kind": "machine.kind",
    "machine_memory_bytes": "machine.memory_bytes",
    "machine_offload_optimizer": "machine.offload_optimizer",
    "machine_offload_to": "machine.offload_to",
    "machine_offload_weights": "machine.offload_weights",
    "machine_optimizer_stays_percent": "machine.optimizer_stays_percent",
    "machine_profile": "machine.profile",
    "machine_spill": "machine.spill",
    "machine_threads": "machine.threads",
    "mask_share": "objective.mask_share",
    "mask_truncated": "rl.mask_truncated",
    "masked": "stage.*.masked",
    "masking": "objective.masking",
    "master_weights": "optimizer.master_weights",
    "max_bytes": "data.max_bytes",
    "max_docs": "stage.*.max_docs",
    "max_rows_dropped": "data.max_rows_dropped",
    "max_text_tokens": "data.max_text_tokens",
    "memory": "activations.memory",
    "memory_bytes": "machine.memory_bytes",
    "memory_every_steps": "checkpoint.memory_every_steps",
    "mesh_check_every_steps": "mesh.check_every_steps",
    "mesh_cp": "mesh.cp",
    "mesh_cp_comm_type": "mesh.cp_comm_type",
    "mesh_cp_dynamic": "mesh.cp_dynamic",
    "mesh_cp_inner": "mesh.cp_inner",
    "mesh_cp_scan_comm_type": "mesh.cp_scan_comm_type",
    "mesh_dp": "mesh.dp",
    "mesh_ep": "mesh.ep",
    "mesh_etp": "mesh.etp",
    "mesh_layout": "mesh.layout",
    "mesh_pp": "mesh.pp",
    "mesh_restarts": "mesh.restarts",
    "mesh_schedule": "mesh.schedule",
    "mesh_sequence_parallel": "mesh.sequence_parallel",
    "mesh_sharding": "mesh.sharding",
    "mesh_step_timeout_s": "mesh.step_timeout_s",
    "mesh_timeout_s": "mesh.timeout_s",
    "mesh_tp": "mesh.tp",
    "mesh_virtual_stages": "mesh.virtual_stages",
    "messages": "data.columns.messages",
    "method": "objective.method",
    "micro_batches": "stage.*.micro_batches",
    "min_doc_tokens": "stage.*.min_doc_tokens",
    "min_p": "rl.min_p",
    "min_tokens": "stage.*.length_weights.*.min_tokens",
    "minibatches": "rl.minibatches",
    "minutes": "run.minutes",
    "minutes_share": "stage.*.minutes_share",
    "mismatched_rows": "objective.mismatched_rows",
    "mlflow": "run.mlflow",
    "model_attention_interval": "model.attention_interval",
    "model_double_quant": "model.double_quant",
    "model_embedding_multiplier": "model.embedding_multiplier",
    "model_family": "model.family",
    "model_ffn": "model.ffn",
    "model_from": "model.from",
    "model_head_dim": "model.head_dim",
    "model_heads": "model.heads",
    "model_hidden": "model.hidden",
    "model_init": "model.init",
    "model_init_std": "model.init_std",
    "model_kv_heads": "model.kv_heads",
    "model_kv_latent": "model.kv_latent",
    "model_layers": "model.layers",
    "model_mup_width": "model.mup_width",
    "model_no_rope_layer_interval": "model.no_rope_layer_interval",
    "model_precision": "model.precision",
    "model_quantization": "model.quantization",
    "model_retro_layers": "model.retro_layers",
    "model_rope_dim": "model.rope_dim",
    "model_rope_theta": "model.rope_theta",
    "model_ssm_groups": "model.ssm_groups",
    "model_ssm_head_dim": "model.ssm_head_dim",
    "model_ssm_state": "model.ssm_state",
    "model_tied": "model.tied",
    "model_trained": "model.trained",
    "model_vocab": "model.vocab",
    "moe_aux_loss": "moe.aux_loss",
    "moe_bias_update_rate": "moe.bias_update_rate",
    "moe_capacity_factor": "moe.capacity_factor",
    "moe_dense_layers": "moe.dense_layers",
    "moe_drop_policy": "moe.drop_policy",
    "moe_experts": "moe.experts",
    "moe_ffn": "moe.ffn",
    "moe_shared": "moe.shared",
    "moe_top_k": "moe.top_k",
    "moe_z_loss": "moe.z_loss",
    "moments": "optimizer.moments",
    "mup_width": "model.mup_width",
    "name": "run.name",
    "nan_rewards": "rl.nan_rewards",
    "needle_depths": "eval.needle_depths",
    "needle_trials": "eval.needle_trials",
    "neftune_alpha": "objective.neftune_alpha",
    "negatives": "objective.negatives",
    "neighbour_encoder": "data.neighbour_encoder",
    "neighbours": "data.neighbours",
    "no_rope_layer_interval": "model.no_rope_layer_interval",
    "num_layers_at_end_in_bf16": "precision.num_layers_at_end_in_bf16",
    "num_layers_at_start_in_bf16": "precision.num_layers_at_start_in_bf16",
    "objective_alpha": "objective.alpha",
    "objective_attributes": "objective.attributes",
    "objective_beta": "objective.beta",
    "objective_center_rewards": "objective.center_rewards",
    "objective_contrast_temperature": "objective.contrast_temperature",
    "objective_desirable_weight": "objective.desirable_weight",
    "objective_discopop_tau": "objective.discopop_tau",
    "objective_document_prompt": "objective.document_prompt",
    "objective_f_alpha": "objective.f_alpha",
    "objective_f_divergence": "objective.f_divergence",
    "objective_gamma": "objective.gamma",
    "objective_hidden_loss": "objective.hidden_loss",
    "objective_hidden_pairs": "objective.hidden_pairs",
    "objective_hidden_weight": "objective.hidden_weight",
    "objective_jsd_beta": "objective.jsd_beta",
    "objective_kd_ratio": "objective.kd_ratio",
    "objective_kl_over": "objective.kl_over",
    "objective_label_smoothing": "objective.label_smoothing",
    "objective_labels": "objective.labels",
    "objective_ld_alpha": "objective.ld_alpha",
    "objective_loss": "objective.loss",
    "objective_loss_weights": "objective.loss_weights",
    "objective_losses": "objective.losses",
    "objective_mask_share": "objective.mask_share",
    "objective_masking": "objective.masking",
    "objective_method": "objective.method",
    "objective_mismatched_rows": "objective.mismatched_rows",
    "objective_neftune_alpha": "objective.neftune_alpha",
    "objective_negatives": "objective.negatives",
    "objective_pooling": "objective.pooling",
    "objective_query_prompt": "objective.query_prompt",
    "objective_ref_model_mixup_alpha": "objective.ref_model_mixup_alpha",
    "objective_ref_model_sync_steps": "objective.ref_model_sync_steps",
    "objective_reference": "objective.reference",
    "objective_responses": "objective.responses",
    "objective_reward_scale": "objective.reward_scale",
    "objective_sft_weight": "objective.sft_weight",
    "objective_span_tokens": "objective.span_tokens",
    "objective_sync_ref_model": "objective.sync_ref_model",
    "objective_teacher": "objective.teacher",
    "objective_temperature": "objective.temperature",
    "objective_top_k": "objective.top_k",
    "objective_top_k_rest": "objective.top_k_rest",
    "objective_undesirable_weight": "objective.undesirable_weight",
    "objective_use_weighting": "objective.use_weighting",
    "objective_widths": "objective.widths",
    "offload_codec": "activations.offload_codec",
    "offload_fraction": "activations.offload_fraction",
    "offload_modules": "activations.offload_modules",
    "offload_optimizer": "machine.offload_optimizer",
    "offload_place": "activations.offload_place",
    "offload_to": "machine.offload_to",
    "offload_weights": "machine.offload_weights",
    "optimizer_beta1": "optimizer.beta1",
    "optimizer_beta2": "optimizer.beta2",
    "optimizer_clip": "optimizer.clip",
    "optimizer_eps": "optimizer.eps",
    "optimizer_kind": "optimizer.kind",
    "optimizer_lr": "optimizer.lr",
    "optimizer_master_weights": "optimizer.master_weights",
    "optimizer_moments": "optimizer.moments",
    "optimizer_stays_percent": "machine.optimizer_stays_percent",
    "optimizer_weight_decay": "optimizer.weight_decay",
    "optimizer_z_loss": "optimizer.z_loss",
    "otlp": "run.otlp",
    "out": "run.out",
    "overlong_penalty": "rl.overlong_penalty",
    "overlong_tokens": "rl.overlong_tokens",
    "packing": "stage.*.packing",
    "place": "activations.places.*.place",
    "pooling": "objective.pooling",
    "pp": "mesh.pp",
    "precision_amax_history": "precision.amax_history",
    "precision_gemm": "precision.gemm",
    "precision_linears": "precision.linears",
    "precision_num_layers_at_end_in_bf16": "precision.num_layers_at_end_in_bf16",
    "precision_num_layers_at_start_in_bf16": "precision.num_layers_at_start_in_bf16",
    "precision_qat": "precision.qat",
    "principles": "rounds.principles",
    "processes": "environment.processes",
    "prompt": "data.columns.prompt",
    "prompts": "rl.prompts",
    "qat": "precision.qat",
    "quantization": "model.quantization",
    "query_prompt": "objective.query_prompt",
    "recall_share": "data.recall_share",
    "recompute_method": "activations.recompute_method",
    "recompute_modules": "activations.recompute_modules",
    "recompute_num_layers": "activations.recompute_num_layers",
    "ref_model_mixup_alpha": "objective.ref_model_mixup_alpha",
    "ref_model_sync_steps": "objective.ref_model_sync_steps",
    "rejected": "data.columns.rejected",
    "resamples": "scale.resamples",
    "responses": "objective.responses",
    "restarts": "mesh.restarts",
    "retro_layers": "model.retro_layers",
    "reward_scale": "objective.reward_scale",
    "rl_advantage": "rl.advantage",
    "rl_answers": "rl.answers",
    "rl_behind": "rl.behind",
    "rl_beta": "rl.beta",
    "rl_delta": "rl.delta",
    "rl_dual_clip": "rl.dual_clip",
    "rl_dynamic_rounds": "rl.dynamic_rounds",
    "rl_dynamic_sampling": "rl.dynamic_sampling",
    "rl_entropy_coefficient": "rl.entropy_coefficient",
    "rl_epochs": "rl.epochs",
    "rl_epsilon": "rl.epsilon",
    "rl_epsilon_high": "rl.epsilon_high",
    "rl_gamma": "rl.gamma",
    "rl_importance_sampling_clip_max": "rl.importance_sampling_clip_max",
    "rl_importance_sampling_clip_min": "rl.importance_sampling_clip_min",
    "rl_importance_sampling_mode": "rl.importance_sampling_mode",
    "rl_keep": "rl.keep",
    "rl_kl": "rl.kl",
    "rl_kl_corrected": "rl.kl_corrected",
    "rl_kl_in": "rl.kl_in",
    "rl_lambda": "rl.lambda",
    "rl_loss": "rl.loss",
    "rl_mask_truncated": "rl.mask_truncated",
    "rl_max_answer_tokens": "rl.max_answer_tokens",
    "rl_min_p": "rl.min_p",
    "rl_minibatches": "rl.minibatches",
    "rl_nan_rewards": "rl.nan_rewards",
    "rl_overlong_penalty": "rl.overlong_penalty",
    "rl_overlong_tokens": "rl.overlong_tokens",
    "rl_prompts": "rl.prompts",
    "rl_reference": "rl.reference",
    "rl_reward": "rl.reward",
    "rl_sapo_negative": "rl.sapo_negative",
    "rl_sapo_positive": "rl.sapo_positive",
    "rl_sequences": "rl.sequences",
    "rl_shown": "rl.shown",
    "rl_temperature": "rl.temperature",
    "rl_top_entropy_quantile": "rl.top_entropy_quantile",
    "rl_top_k": "rl.top_k",
    "rl_top_p": "rl.top_p",
    "rl_turns": "rl.turns",
    "rl_value_clip": "rl.value_clip",
    "rl_value_coefficient": "rl.value_coefficient",
    "rl_whiten": "rl.whiten",
    "rope_dim": "model.rope_dim",
    "rope_factor": "stage.*.rope_factor",
    "rope_type": "stage.*.rope_type",
    "rounds_count": "rounds.count",
    "rounds_earlier": "rounds.earlier",
    "rounds_max_answer_tokens": "rounds.max_answer_tokens",
    "rounds_principles": "rounds.principles",
    "rounds_temperature": "rounds.temperature",
    "rounds_write": "rounds.write",
    "ruler": "eval.ruler",
    "ruler_data": "eval.ruler_data",
    "ruler_rows": "eval.ruler_rows",
    "run_minutes": "run.minutes",
    "run_mlflow": "run.mlflow",
    "run_name": "run.name",
    "run_otlp": "run.otlp",
    "run_out": "run.out",
    "run_profile": "run.profile",
    "run_seed": "run.seed",
    "run_tensorboard": "run.tensorboard",
    "run_trackio": "run.trackio",
    "run_wandb": "run.wandb",
    "samples_per_micro_batch": "stage.*.samples_per_micro_batch",
    "sapo_negative": "rl.sapo_negative",
    "sapo_positive": "rl.sapo_positive",
    "scale_budgets": "scale.budgets",
    "scale_depth": "scale.depth",
    "scale_flops": "scale.flops",
    "scale_gpu": "scale.gpu",
    "scale_gpu_hours": "scale.gpu_hours",
    "scale_growth": "scale.growth",
    "scale_least_steps": "scale.least_steps",
    "scale_lr_power": "scale.lr_power",
    "scale_resamples": "scale.resamples",
    "scale_widths": "scale.widths",
    "schedule_decay": "schedule.decay",
    "schedule_decay_share": "schedule.decay_share",
    "schedule_final_share": "schedule.final_share",
    "schedule_warmup_share": "schedule.warmup_share",
    "schedule_warmup_steps": "schedule.warmup_steps",
    "seed": "run.seed",
    "seq_tokens": "stage.*.seq_tokens",
    "sequence_parallel": "mesh.sequence_parallel",
    "sequences": "rl.sequences",
    "sft_weight": "objective.sft_weight",
    "sharding": "mesh.sharding",
    "shared": "moe.shared",
    "shown": "rl.shown",
    "shuffle": "data.shuffle",
    "span_tokens": "objective.span_tokens",
    "spill": "machine.spill",
    "ssm_groups": "model.ssm_groups",
    "ssm_head_dim": "model.ssm_head_dim",
    "ssm_state": "model.ssm_state",
    "stage_blend_source": "stage.*.blend.*.source",
    "stage_blend_weight": "stage.*.blend.*.weight",
    "stage_epochs": "stage.*.epochs",
    "stage_length_weights_min_tokens": "stage.*.length_weights.*.min_tokens",
    "stage_length_weights_weight": "stage.*.length_weights.*.weight",
    "stage_lr_scale": "stage.*.lr_scale",
    "stage_masked": "stage.*.masked",
    "stage_max_docs": "stage.*.max_docs",
    "stage_micro_batches": "stage.*.micro_batches",
    "stage_min_doc_tokens": "stage.*.min_doc_tokens",
    "stage_minutes_share": "stage.*.minutes_share",
    "stage_name": "stage.*.name",
    "stage_packing": "stage.*.packing",
    "stage_recompute_granularity": "stage.*.recompute_granularity",
    "stage_rope_factor": "stage.*.rope_factor",
    "stage_rope_theta": "stage.*.rope_theta",
    "stage_rope_type": "stage.*.rope_type",
    "stage_samples_per_micro_batch": "stage.*.samples_per_micro_batch",
    "stage_seq_tokens": "stage.*.seq_tokens",
    "stage_steps": "stage.*.steps",
    "stage_tile_rows": "stage.*.tile_rows",
    "stage_warmup_steps": "stage.*.warmup_steps",
    "stages": "stages",
    "step_timeout_s": "mesh.step_timeout_s",
    "steps": "stage.*.steps",
    "supervise": "data.supervise",
    "sync_ref_model": "objective.sync_ref_model",
    "system": "data.columns.system",
    "teacher": "objective.teacher",
    "tensorboard": "run.tensorboard",
    "text_field": "data.text_field",
    "threads": "machine.threads",
    "tied": "model.tied",
    "tokenizer": "data.tokenizer",
    "tokenizer_bytes": "data.tokenizer_bytes",
    "tokens": "eval.tokens",
    "tools": "data.columns.tools",
    "top_entropy_quantile": "rl.top_entropy_quantile",
    "top_k_rest": "objective.top_k_rest",
    "top_p": "rl.top_p",
    "tp": "mesh.tp",
    "trackio": "run.trackio",
    "trained": "model.trained",
    "trained_only": "checkpoint.trained_only",
    "truncation": "data.truncation",
    "turns": "rl.turns",
    "undesirable_weight": "objective.undesirable_weight",
    "use_weighting": "objective.use_weighting",
    "value_clip": "rl.value_clip",
    "value_coefficient": "rl.value_coefficient",
    "virtual_stages": "mesh.virtual_stages",
    "vocab": "model.vocab",
    "wandb": "run.wandb",
    "warmup_share": "schedule.warmup_share",
    "weight_decay": "optimizer.weight_decay",
    "whiten": "rl.whiten",
    "write": "rounds.write",
}
