//! The objective of a run.

use std::path::PathBuf;

use fathom_base::{choice, recipe};
use fathom_text::lessons::{Answers, Judge, LessonConversion, Truncation};

use super::limits::{Above0, Any, COLUMNS, NO_END, Real, Whole};
use super::{AdapterName, GemmName, Packing, Recipe, Stage};
use crate::reference::Sync;
use crate::seq2seq::{Seq2seq, SpanSizes};

choice! {
    /// The training objective.
    pub enum MethodName {
        /// The cross-entropy of the next token.
        CrossEntropy = "cross_entropy",
        /// Dynamic fine-tuning (Wu and others, 2025): each token's cross-entropy times its probability, which is constant for the
        /// gradient. Computes the logits twice, and has no z-loss.
        Dft = "dft",
        /// The cross-entropy and the divergence from a teacher's distribution of the next token (Hinton and others, 2015).
        Distill = "distill",
        /// Pairs of answers against a reference model (Rafailov and others, 2023).
        Dpo = "dpo",
        /// Answers that are wanted or not, against a reference model (Ethayarajh and others, 2024).
        Kto = "kto",
        /// Pairs without a reference: the cross-entropy of chosen texts, and the ratio of odds (Hong and others, 2024).
        Orpo = "orpo",
        /// Pairs without a reference: mean log-probabilities with a margin (Meng and others, 2024).
        Simpo = "simpo",
        /// Pairs without a reference, and the cross-entropy of chosen answers (Xu and others, 2024).
        Cpo = "cpo",
        /// Pairs with rewards, against a reference model (Nemotron-4 340B).
        Rpo = "rpo",
        /// Several answers to each prompt, each as likely as its attributes and two models say (SteerLM 2.0, NeMo-Aligner).
        Steerlm2 = "steerlm2",
        /// A reward model: a head of scores.
        Reward = "reward",
        /// Encoders: the cross-entropy of masked tokens (Devlin and others, 2019).
        Mlm = "mlm",
        /// Encoders: vectors of texts that belong together, against all others of the step.
        Embed = "embed",
        /// Scores of texts for a query.
        Rerank = "rerank",
        /// Labels of texts, of pairs of texts, or of tokens.
        Classify = "classify",
        /// Encoder-decoders: spans that were dropped from a text (Raffel and others, 2020).
        SpanCorruption = "span_corruption",
        /// Encoder-decoders: answers to prompts.
        Seq2seq = "seq2seq",
        /// Decoders that read neighbours of their text (Borgeaud and others, 2022): the cross-entropy of the next token.
        Retro = "retro",
    }
}

choice! {
    /// The loss of a method, by TRL's names.
    pub enum LossName {
        /// The method's default: `sigmoid` for `dpo` and `cpo`, `bwd_kl` for `rpo`, `fwd_kl` for `distill`, `bt` for `reward`.
        Auto = "auto",
        /// For `dpo` and `cpo`: logistic; with `label_smoothing` conservative DPO.
        Sigmoid = "sigmoid",
        /// For `dpo`: logistic, of means over tokens.
        SigmoidNorm = "sigmoid_norm",
        /// For `dpo` and `cpo`: hinge (SLiC).
        Hinge = "hinge",
        /// For `dpo` and `cpo`: squared distance of means over tokens from a margin of 1/(2 beta) (IPO).
        Ipo = "ipo",
        /// For `dpo`: the same with sums, as in NeMo-Aligner.
        IpoSum = "ipo_sum",
        /// For `dpo`: EXO for pairs; needs `label_smoothing`.
        ExoPair = "exo_pair",
        /// For `dpo`: noise-contrastive alignment.
        NcaPair = "nca_pair",
        /// For `dpo`: robust DPO, unbiased if a fraction `label_smoothing` of the labels is wrong.
        Robust = "robust",
        /// For `dpo`: binary classifier optimisation.
        BcoPair = "bco_pair",
        /// For `dpo`: self-play preference optimisation with hard labels.
        SppoHard = "sppo_hard",
        /// For `dpo`: optimal transport between the micro batch's sorted ratios of pairs.
        Aot = "aot",
        /// For `dpo`: the same between chosen and rejected answers.
        AotUnpaired = "aot_unpaired",
        /// For `dpo`: anchored; chosen answers become likelier, rejected ones less likely.
        ApoZero = "apo_zero",
        /// For `dpo`: anchored; both become less likely, rejected ones more so.
        ApoDown = "apo_down",
        /// For `dpo`: the loss that a search found.
        Discopop = "discopop",
        /// For `dpo`: the cross-entropy of chosen answers alone.
        Sft = "sft",
        /// For `kto`: with gains from 0 rather than from the mean ratio of mismatched answers.
        ApoZeroUnpaired = "apo_zero_unpaired",
        /// For `rpo`: divergence of the implied margin from the margin of the rewards. For `distill`: divergence of the student
        /// from the teacher.
        BackwardKl = "bwd_kl",
        /// For `rpo` and `distill`: the reverse direction.
        ForwardKl = "fwd_kl",
        /// For `distill`: Jensen and Shannon's, by `jsd_beta` (GKD; Agarwal and others, 2024).
        Jsd = "jsd",
        /// For `rpo`: squared distance.
        Squared = "sq",
        /// For `reward`: of pairs (Bradley and Terry), with `margin` where rows have it.
        BradleyTerry = "bt",
        /// For `reward`: the same, times the margin.
        Scaled = "scaled_bt",
        /// For `reward`: squared distance from ratings.
        Regression = "regression",
        /// For `reward`: steps that are right or wrong.
        Process = "process",
        /// For `rerank`: the cross-entropy of each text's label, 0 to 1 (the default).
        Pointwise = "pointwise",
        /// For `rerank`: the logistic loss of each two texts of a query with different labels.
        Pairs = "pairs",
        /// For `rerank`: the squared error of the distances between the first text's score and the others'.
        Margin = "margin",
        /// For `rerank`: the cross-entropy of the labels as a distribution over a query's texts.
        Listwise = "listwise",
        /// For `classify`: labels that are true or not, each by itself.
        MultiLabel = "multi_label",
        /// For `classify`: a label of each word of `tokens`.
        Tokens = "tokens",
    }
}

choice! {
    /// Tokens that `mlm` chooses together.
    pub enum MaskingName {
        /// Each token alone.
        Tokens = "tokens",
        /// All tokens of a word.
        Words = "words",
        /// Spans of words, of random lengths (SpanBERT).
        Spans = "spans",
    }
}

choice! {
    /// From the hidden states of a text to its vector.
    pub enum PoolingName {
        /// Their mean.
        Mean = "mean",
        /// The first token's.
        First = "cls",
        /// The last token's.
        Last = "lasttoken",
    }
}

choice! {
    /// A divergence from the reference model.
    pub enum DivergenceName {
        /// DPO's own.
        ReverseKl = "reverse_kl",
        /// Forward Kullback-Leibler.
        ForwardKl = "forward_kl",
        /// Jensen-Shannon.
        JsDivergence = "js_divergence",
        /// The alpha divergence, by `f_alpha`.
        AlphaDivergence = "alpha_divergence",
    }
}

choice! {
    /// Source of the reference model's log-probabilities.
    pub enum ReferenceName {
        /// For methods with a reference: `copy` if it is updated (`sync_ref_model`), `adapter_off` if the run trains only an
        /// adapter over an unchanged base, else `column`.
        Auto = "auto",
        /// Computed once, before the first step, and kept next to the tokens.
        Column = "column",
        /// From a frozen copy of the weights in memory, in each step.
        Copy = "copy",
        /// From the policy without its adapter, in each step.
        AdapterOff = "adapter_off",
        /// No reference: its log-probabilities are 0, so the method only rewards likely answers.
        None = "none",
    }
}

choice! {
    /// Distance of a student's hidden states from the teacher's.
    pub enum HiddenLossName {
        /// The mean of the squared differences of the columns.
        Mse = "mse",
        /// One minus the cosine of the angle between them.
        Cosine = "cosine",
    }
}

choice! {
    /// Answers over which a divergence is averaged.
    pub enum KlOverName {
        /// All answers of a step, on all ranks: micro batches are read twice, and their number does not change the result.
        Step = "step",
        /// Those of each micro batch, as in TRL.
        MicroBatch = "micro_batch",
    }
}

recipe! {
    /// The training objective: a mean over the weighted tokens, pairs, answers or ratings of a whole step.
    pub struct ObjectiveTable {
        /// The method.
        pub method: MethodName = MethodName::CrossEntropy,
        /// The method's loss.
        pub loss: LossName = LossName::Auto,
        /// For `dpo`: several losses instead of one, as in TRL.
        pub losses: Vec<LossName>,
        /// Their weights.
        pub loss_weights: Vec<f64> [Real(0.0, NO_END)],
        /// Strength of the pull towards the reference model; for `orpo`, the weight of the odds ratio.
        pub beta: f64 [Above0(NO_END)] = 0.1,
        /// Source of the reference's log-probabilities; the reference is the model that the run starts from.
        pub reference: ReferenceName = ReferenceName::Auto,
        /// Updates the reference towards the policy during training (TR-DPO).
        pub sync_ref_model: bool = false,
        /// With `sync_ref_model`: share of the policy in the updated reference; 1 replaces the reference. Unset: 0.6.
        pub ref_model_mixup_alpha: Option<f64> [Above0(1.0)],
        /// With `sync_ref_model`: steps between updates. Unset: 512.
        pub ref_model_sync_steps: Option<usize> [Whole(1, u64::MAX)],
        /// For `dpo`: weights each pair by its likelihood under the policy (WPO).
        pub use_weighting: bool = false,
        /// Assumed fraction of wrong labels.
        pub label_smoothing: f64 [Real(0.0, 0.499)] = 0.0,
        /// For `dpo`: the divergence from the reference.
        pub f_divergence: DivergenceName = DivergenceName::ReverseKl,
        /// Coefficient of the alpha divergence.
        pub f_alpha: f64 [Any] = 0.5,
        /// For `dpo`: factor on the log-probabilities of the tokens by which an answer is longer than the other one (LD-DPO);
        /// unset: 1.
        pub ld_alpha: Option<f64> [Real(0.0, 1.0)],
        /// Weight of the cross-entropy of chosen answers; unset: 1 for `cpo` and `orpo`, else 0.
        pub sft_weight: Option<f64> [Real(0.0, NO_END)],
        /// For `simpo`: the margin (TRL's `simpo_gamma`).
        pub gamma: f64 [Real(0.0, NO_END)] = 0.5,
        /// For `simpo`: AlphaPO's exponent; 0 for plain log-probabilities.
        pub alpha: f64 [Any] = 0.0,
        /// Temperature of the loss `discopop`.
        pub discopop_tau: f64 [Above0(NO_END)] = 0.05,
        /// For `kto`: weight of the losses of desirable answers.
        pub desirable_weight: f64 [Real(0.0, NO_END)] = 1.0,
        /// For `kto`: weight of the losses of undesirable answers.
        pub undesirable_weight: f64 [Real(0.0, NO_END)] = 1.0,
        /// For `kto`: number of consecutive rows that exchange their answers to estimate the divergence (TRL's batch size).
        pub mismatched_rows: usize [Whole(2, COLUMNS)] = 8,
        /// For `kto`: the mismatched answers over which the divergence is averaged.
        pub kl_over: KlOverName = KlOverName::Step,
        /// For `steerlm2`: answers per row.
        pub responses: usize [Whole(2, 4096)] = 4,
        /// For `rpo`: factor on the rewards in the data.
        pub reward_scale: f64 [Above0(NO_END)] = 1.0,
        /// For `reward`: weight of the squared sum of a pair's rewards, a penalty that keeps their mean near 0.
        pub center_rewards: f64 [Real(0.0, NO_END)] = 0.0,
        /// Size of the noise on the embeddings of training tokens (NEFTune), as TRL's `neftune_noise_alpha`; 5 is usual, 0 is none.
        pub neftune_alpha: f64 [Real(0.0, NO_END)] = 0.0,
        /// For `distill`: the teacher's folder, as in `model.from`; it must have the student's tokenizer.
        pub teacher: Option<PathBuf>,
        /// For `distill`: temperature, which divides the logits of teacher and student. The divergence is not multiplied by its
        /// square.
        pub temperature: f64 [Real(0.01, 1000.0)] = 1.0,
        /// For `distill`: share of the divergence in the objective; the cross-entropy has the rest.
        pub kd_ratio: f64 [Real(0.0, 1.0)] = 0.5,
        /// For the loss `jsd`: share of the teacher in the mixture; near 0 it acts like `fwd_kl`, near 1 like `bwd_kl`.
        pub jsd_beta: f64 [Real(0.001, 0.999)] = 0.5,
        /// For `distill`: number of the teacher's most likely tokens to store for each position, once before the first step. 0 runs
        /// the teacher in every step, with its whole vocabulary.
        pub top_k: usize [Whole(0, 1 << 14)] = 0,
        /// With `top_k`: treats the remaining probability as one more token on both sides; if false, the stored probabilities are
        /// normalised.
        pub top_k_rest: bool = true,
        /// For `distill` with a teacher that runs in every step: hidden states to compare, given by the number of blocks of the
        /// student and of the teacher before them, `["4:8", "8:16"]`; 0 is the first block's input. If the teacher has another
        /// width, a projection per pair is trained with the student.
        pub hidden_pairs: Vec<String>,
        /// With `hidden_pairs`: the distance between the states of a pair.
        pub hidden_loss: HiddenLossName = HiddenLossName::Mse,
        /// With `hidden_pairs`: weight of the mean over the pairs in the objective.
        pub hidden_weight: f64 [Real(0.0, NO_END)] = 1.0,
        /// For `reward` and `classify` with `regression`: names of the ratings, in order.
        pub attributes: Vec<String>,
        /// For `mlm` and `span_corruption`: share of the tokens that the model restores.
        pub mask_share: f64 [Above0(1.0)] = 0.15,
        /// For `mlm`: tokens that are chosen together.
        pub masking: MaskingName = MaskingName::Tokens,
        /// For `span_corruption`: mean number of tokens of a span.
        pub span_tokens: f64 [Real(1.0, 1e6)] = 3.0,
        /// For `embed`: from the hidden states of a text to its vector.
        pub pooling: PoolingName = PoolingName::Mean,
        /// For `embed`: divides the cosines of vectors.
        pub contrast_temperature: f64 [Above0(NO_END)] = 0.05,
        /// For `embed`: numbers of first columns that are vectors too, each with a loss of its own (Matryoshka); none for all columns
        /// alone.
        pub widths: Vec<usize> [Whole(1, COLUMNS)],
        /// For `embed` and `rerank`: negatives of each row, besides its anchor and positive (`negative`, a text or a list).
        pub negatives: usize [Whole(0, 4096)] = 0,
        /// For `embed`: text before each anchor; the folder's prompt `query`.
        pub query_prompt: String,
        /// For `embed`: text before each positive and negative; the folder's prompt `document`.
        pub document_prompt: String,
        /// For `classify`: names of the labels, in order; the strings or numbers that rows have.
        pub labels: Vec<String>,
    }
}

impl MethodName {
    /// True if it learns from rows of compared or judged answers.
    pub fn judges(self) -> bool {
        use MethodName::{CrossEntropy, Dft, Distill, Mlm, Retro, Seq2seq, SpanCorruption};
        !matches!(self, CrossEntropy | Dft | Distill | Mlm | Retro | Seq2seq | SpanCorruption)
    }

    /// True if it trains an encoder.
    pub fn encodes(self) -> bool {
        matches!(self, MethodName::Mlm | MethodName::Embed | MethodName::Rerank | MethodName::Classify)
    }

    /// True if it trains an encoder-decoder.
    pub fn has_source(self) -> bool {
        matches!(self, MethodName::SpanCorruption | MethodName::Seq2seq)
    }

    /// True if it uses a reference model.
    pub fn has_reference(self) -> bool {
        matches!(self, MethodName::Dpo | MethodName::Kto | MethodName::Rpo)
    }
}

impl ObjectiveTable {
    /// True if a reference's log-probabilities are needed.
    fn refers(&self) -> bool {
        let needs = self.loss != LossName::Sft || self.method != MethodName::Dpo;
        self.method.has_reference() && self.reference != ReferenceName::None && needs
    }

    /// The objective of an encoder-decoder, if it is one.
    pub(crate) fn seq2seq(&self) -> Option<Seq2seq> {
        let spans = SpanSizes { share: self.mask_share, mean: self.span_tokens };
        let spans = Some(spans).filter(|_| self.method == MethodName::SpanCorruption);
        self.method.has_source().then_some(Seq2seq { spans })
    }

    /// The teacher that runs in every step.
    pub fn runs_teacher(&self) -> Option<&PathBuf> {
        self.teacher.as_ref().filter(|_| self.method == MethodName::Distill && self.top_k == 0)
    }

    /// Number of scores per token that the model must have.
    pub fn scores(&self) -> usize {
        match (self.method, self.loss) {
            (MethodName::Reward, LossName::Regression) => self.attributes.len(),
            (MethodName::Reward | MethodName::Rerank, _) => 1,
            (MethodName::Classify, LossName::Regression) => self.attributes.len(),
            (MethodName::Classify, _) => self.labels.len(),
            _ => 0,
        }
    }

    /// The form of documents made from rows.
    fn answers(&self) -> Answers {
        let judge = match (self.method, self.loss) {
            (method, _) if !method.judges() => Judge::None,
            (MethodName::Embed, _) => Judge::Related,
            (MethodName::Rerank, _) => Judge::Ranked,
            (MethodName::Classify, LossName::Tokens) => Judge::Words,
            (MethodName::Classify, LossName::MultiLabel) => Judge::Classes { several: true },
            (MethodName::Classify, LossName::Regression) => Judge::Numbers,
            (MethodName::Classify, _) => Judge::Classes { several: false },
            (MethodName::Kto, _) => Judge::Labels,
            (MethodName::Steerlm2, _) => Judge::Responses,
            (MethodName::Reward, LossName::Regression) => Judge::Ratings,
            (MethodName::Reward, LossName::Process) => Judge::Steps,
            _ => Judge::Pairs,
        };
        Answers {
            judge,
            prompts: self.method == MethodName::Orpo,
            bare: matches!(self.method, MethodName::Orpo | MethodName::Simpo | MethodName::Cpo),
            whole: self.method == MethodName::Reward,
            rewards: self.method == MethodName::Rpo,
            block: self.mismatched_rows,
            responses: if self.method == MethodName::Steerlm2 { self.responses } else { 0 },
            ratings: self.attributes.clone(),
            negatives: self.negatives,
            alone: self.method == MethodName::Rerank
                && matches!(self.loss, LossName::Auto | LossName::Pointwise),
            labels: self.labels.clone(),
            prefixes: [self.query_prompt.clone(), self.document_prompt.clone()],
        }
    }
}

impl Recipe {
    /// Virtual tokens before each document: an adapter's, or the first token of an encoder's text.
    pub fn leads(&self) -> usize {
        self.adapter.leads() + usize::from(self.objective.method == MethodName::Mlm)
    }

    /// True if a document without a loss fills up each micro-batch.
    pub fn fills(&self) -> bool {
        self.objective.seq2seq().is_some() || self.objective.method == MethodName::Retro
    }

    /// Maximum number of documents in a micro-batch of a stage; the one that fills it up counts.
    pub fn docs(&self, index: usize) -> usize {
        let stage = &self.stage[index];
        stage.max_docs * stage.samples_per_micro_batch.max(1) + usize::from(self.fills())
    }

    /// Special tokens of a tokenizer that the run trains, besides the end of texts: for an encoder-decoder the padding, with which
    /// targets begin, and the 100 sentinels of T5.
    pub fn special_tokens(&self) -> Vec<String> {
        let sentinels = (0..100).map(|number| format!("<extra_id_{number}>"));
        let all = std::iter::once("<pad>".into()).chain(sentinels);
        all.filter(|_| self.objective.method.has_source()).collect()
    }

    /// The resolved source of the reference's log-probabilities: never `auto`, and `none` if none are needed.
    pub fn reference(&self) -> ReferenceName {
        let table = &self.objective;
        match table.reference {
            _ if !table.refers() || self.rl.is_on() => ReferenceName::None,
            ReferenceName::Auto if table.sync_ref_model => ReferenceName::Copy,
            ReferenceName::Auto if self.no_adapter_off().is_none() => ReferenceName::AdapterOff,
            ReferenceName::Auto => ReferenceName::Column,
            given => given,
        }
    }

    /// The reason why the policy without its adapter differs from the run's initial model, if it does.
    pub(crate) fn no_adapter_off(&self) -> Option<&'static str> {
        match self.adapter.method {
            AdapterName::None => Some("the run trains no adapter (adapter.method)"),
            AdapterName::Pissa => Some("PiSSA changes the base that it is added to"),
            _ if !self.model.trained.is_empty() => Some("more than the adapter is trained (model.trained)"),
            _ if self.precision.gemm != GemmName::Bf16 => {
                Some("it has low-precision products (precision.gemm)")
            }
            _ => None,
        }
    }

    /// Update of the reference, if it moves.
    pub fn sync(&self) -> Option<Sync> {
        let table = &self.objective;
        let alpha = table.ref_model_mixup_alpha.unwrap_or(0.6) as f32;
        let steps = table.ref_model_sync_steps.unwrap_or(512) as u64;
        table.sync_ref_model.then_some(Sync { alpha, steps })
    }

    /// Settings for turning rows into documents such that those that belong together fit into a sample: of the longest
    /// stage, whose documents shorter stages cut, or of every stage if none may be cut.
    pub fn teaching(&self) -> LessonConversion {
        let (answers, teaching) = (self.objective.answers(), self.data.teaching());
        let room = |stage: &Stage| stage.seq_tokens.saturating_sub(self.adapter.leads());
        let cuts = |stage: &&Stage| stage.packing != Packing::Cut;
        let whole = answers.whole || teaching.truncation == Truncation::Error;
        let shortest = self.stage.iter().filter(cuts).map(room).min().filter(|_| whole);
        let room = shortest.or(self.stage.iter().map(room).max()).unwrap_or(0);
        let most = if self.objective.method.encodes() { self.data.max_text_tokens } else { usize::MAX };
        LessonConversion { max_tokens: (room / answers.group()).min(most), answers, ..teaching }
    }
}
