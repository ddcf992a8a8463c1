//! Attention and its gradient as graphs of operations, in the form that cuDNN from 9.11 on recognises as its fused
//! kernels. (`reference/gpu.md` of the project's notes: one spelling for all versions.)
//!
//! Tensors in memory are rows of tokens with adjacent heads; cuDNN is given (sequences, heads, tokens, columns) with
//! the corresponding strides. Keys and values are given transposed if a product needs them so.
//!
//! Tensors in memory between two kernels are described as in cuDNN's own frontend (cudnn-frontend,
//! `scaled_dot_product_flash_attention.h`), as engines silently rely on that: for one sequence head after head, without
//! gaps; for packed ones like the tensor that they become, with that tensor's list.

use cudarc::cudnn::sys::{
    cudnnDataType_t as Data, cudnnPointwiseMode_t as Mode, cudnnReduceTensorOp_t as Reduce,
};

use super::case::{Case, uid};
use super::graph::{Four, Graph, Node, Overrides, Scalar, packed};
use crate::Result;
use crate::blas::Element;

/// Lengths and starts of packed sequences; all absent for a single sequence.
#[derive(Default)]
struct Packing {
    q_len: Option<Node>,
    k_len: Option<Node>,
    /// Starts of the sequences, by tensor.
    starts: Vec<(i64, Node)>,
}

impl Packing {
    fn start(&self, number: i64) -> Option<&Node> {
        self.starts.iter().find(|(of, _)| *of == number).map(|(_, node)| node)
    }
}

fn data(element: Element) -> Data {
    match element {
        Element::F32 => Data::CUDNN_DATA_FLOAT,
        Element::Bf16 => Data::CUDNN_DATA_BFLOAT16,
        Element::F16 => Data::CUDNN_DATA_HALF,
        Element::E4M3 => Data::CUDNN_DATA_FP8_E4M3,
        Element::E5M2 => Data::CUDNN_DATA_FP8_E5M2,
    }
}

impl Case {
    fn packing(&self, tensors: &[i64]) -> Result<Packing> {
        if !self.packed {
            return Ok(Packing::default());
        }
        let list = |number, data, count| Graph::real(number, data, [count, 1, 1, 1], [1; 4], None);
        let start =
            |of: &i64| Ok((*of, list(uid::start_of(*of), Data::CUDNN_DATA_INT64, self.sequences + 1)?));
        Ok(Packing {
            q_len: Some(list(uid::Q_LEN, Data::CUDNN_DATA_INT32, self.sequences)?),
            k_len: Some(list(uid::K_LEN, Data::CUDNN_DATA_INT32, self.sequences)?),
            starts: tensors.iter().map(start).collect::<Result<_>>()?,
        })
    }

    /// A tensor in memory as rows of tokens.
    fn rows(&self, packing: &Packing, number: i64) -> Result<Node> {
        let (heads, tokens, d) = self.extents(number);
        let stride = self.strides.of(number);
        let (dim, strides) = ([self.sequences, heads, tokens, d], [tokens * stride, d, stride, 1]);
        Graph::real(number, data(self.element), dim, strides, packing.start(number))
    }

    /// The same, columns before tokens.
    fn columns(&self, packing: &Packing, number: i64) -> Result<Node> {
        let (heads, tokens, d) = self.extents(number);
        let stride = self.strides.of(number);
        let (dim, strides) = ([self.sequences, heads, d, tokens], [tokens * stride, d, 1, stride]);
        Graph::real(number, data(self.element), dim, strides, packing.start(number))
    }

    /// Heads, tokens and columns of a tensor.
    fn extents(&self, number: i64) -> (i64, i64, i64) {
        let of_keys = [uid::K, uid::V, uid::DK, uid::DV].contains(&number);
        let (heads, tokens) =
            if of_keys { (self.kv_heads, self.k_tokens) } else { (self.heads, self.q_tokens) };
        (heads, tokens, self.head_dim)
    }

    /// An f32 for each query row of each head: for packed sequences in rows of tokens, like the logarithms; otherwise
    /// head after head, the only order that every engine reads (those for chips before Hopper ignore strides here until
    /// 9.26).
    fn row_values(&self, packing: &Packing, number: i64) -> Result<Node> {
        let dim = [self.sequences, self.heads, self.q_tokens, 1];
        let stride = self.strides.of(uid::LSE);
        let strides = if self.packed { [self.q_tokens * stride, 1, stride, 1] } else { packed(dim) };
        Graph::real(number, Data::CUDNN_DATA_FLOAT, dim, strides, packing.start(uid::LSE))
    }

    fn scores(&self) -> Four {
        [self.sequences, self.heads, self.q_tokens, self.k_tokens]
    }

    /// Masks rows and columns beyond a sequence's length.
    fn pad(&self, graph: &mut Graph, packing: &Packing, x: Node) -> Result<Node> {
        let (Some(q_len), Some(k_len)) = (&packing.q_len, &packing.k_len) else { return Ok(x) };
        let row = graph.index(&x, 2, Data::CUDNN_DATA_INT32)?;
        let col = graph.index(&x, 3, Data::CUDNN_DATA_INT32)?;
        let rows = graph.test(Mode::CUDNN_POINTWISE_CMP_LT, &row, q_len)?;
        let cols = graph.test(Mode::CUDNN_POINTWISE_CMP_LT, &col, k_len)?;
        let both = graph.test(Mode::CUDNN_POINTWISE_LOGICAL_AND, &rows, &cols)?;
        graph.mask(&x, &both)
    }

    /// The causal mask, then the window, a bound on the left: each as in the frontend where sequences begin together,
    /// including the second without the first.
    fn band(&self, graph: &mut Graph, mut x: Node) -> Result<Node> {
        if self.causal {
            let row = graph.index(&x, 2, Data::CUDNN_DATA_FLOAT)?;
            let col = graph.index(&x, 3, Data::CUDNN_DATA_FLOAT)?;
            let keep = graph.test(Mode::CUDNN_POINTWISE_CMP_GE, &row, &col)?;
            x = graph.mask(&x, &keep)?;
        }
        if self.window {
            let row = graph.index(&x, 2, Data::CUDNN_DATA_FLOAT)?;
            let col = graph.index(&x, 3, Data::CUDNN_DATA_FLOAT)?;
            let reach = graph.scalar(Scalar::Window)?;
            let last = graph.wide(x.dim)?;
            graph.apply(Mode::CUDNN_POINTWISE_ADD, &col, Some(&reach), &last)?;
            let keep = graph.test(Mode::CUDNN_POINTWISE_CMP_GT, &last, &row)?;
            x = graph.mask(&x, &keep)?;
        }
        Ok(x)
    }

    /// `S = scale Q K^T`, masked; `O = softmax(S) V`; also the logarithm of each row's sum.
    ///
    /// # Errors
    /// If cuDNN refuses a descriptor.
    pub fn forward(&self) -> Result<Graph> {
        let mut graph = Graph::default();
        let packing = self.packing(&[uid::Q, uid::K, uid::V, uid::OUT, uid::LSE])?;
        let (q_len, k_len) = (packing.q_len.as_ref(), packing.k_len.as_ref());
        let (q, keys) = (self.rows(&packing, uid::Q)?, self.columns(&packing, uid::K)?);
        let (values, out) = (self.rows(&packing, uid::V)?, self.rows(&packing, uid::OUT)?);
        let lse = self.row_values(&packing, uid::LSE)?;
        let s = graph.wide(self.scores())?;
        graph.product(&q, &keys, &s, [q_len, k_len, None])?;
        let scale = graph.scalar(Scalar::Scale)?;
        let s = graph.map(Mode::CUDNN_POINTWISE_MUL, &s, Some(&scale))?;
        let s = self.pad(&mut graph, &packing, s)?;
        let s = self.band(&mut graph, s)?;
        let row = [self.sequences, self.heads, self.q_tokens, 1];
        let most = graph.wide(row)?;
        graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_MAX, &s, &most)?;
        let e = graph.map(Mode::CUDNN_POINTWISE_SUB, &s, Some(&most))?;
        let e = graph.map(Mode::CUDNN_POINTWISE_EXP, &e, None)?;
        let sum = graph.wide(row)?;
        graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, &e, &sum)?;
        let log = graph.map(Mode::CUDNN_POINTWISE_LOG, &sum, None)?;
        graph.apply(Mode::CUDNN_POINTWISE_ADD, &most, Some(&log), &lse)?;
        let p = graph.between(data(self.element), self.scores())?;
        graph.apply(Mode::CUDNN_POINTWISE_DIV, &e, Some(&sum), &p)?;
        graph.product(&p, &values, &out, [q_len, None, k_len])?;
        Ok(graph)
    }

    /// The gradients, from O, its gradient and the rows' logarithms; if the latter cover more keys, the shares of these
    /// keys.
    ///
    /// # Errors
    /// If cuDNN refuses a descriptor.
    pub fn backward(&self) -> Result<Graph> {
        let mut graph = Graph::default();
        let packing = self.packing(&(uid::Q..=uid::DV).collect::<Vec<_>>())?;
        let (q_len, k_len) = (packing.q_len.as_ref(), packing.k_len.as_ref());
        let (q, keys, values) =
            (self.rows(&packing, uid::Q)?, self.columns(&packing, uid::K)?, self.columns(&packing, uid::V)?);
        let (out, dout) = (self.rows(&packing, uid::OUT)?, self.rows(&packing, uid::DOUT)?);
        let lse = self.row_values(&packing, uid::LSE)?;
        let sums = self.row_values(&packing, uid::SUMS)?;
        // dO . O for each row.
        let x = graph.map(Mode::CUDNN_POINTWISE_MUL, &dout, Some(&out))?;
        let r = graph.wide([self.sequences, self.heads, self.q_tokens, 1])?;
        graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, &x, &r)?;
        let one = graph.scalar(Scalar::Fixed(1.0))?;
        graph.apply(Mode::CUDNN_POINTWISE_MUL, &r, Some(&one), &sums)?;
        // Recomputes P.
        let s = graph.wide(self.scores())?;
        graph.product(&q, &keys, &s, [q_len, k_len, None])?;
        let scale = graph.scalar(Scalar::Scale)?;
        let s = graph.map(Mode::CUDNN_POINTWISE_MUL, &s, Some(&scale))?;
        let s = self.pad(&mut graph, &packing, s)?;
        let s = graph.map(Mode::CUDNN_POINTWISE_SUB, &s, Some(&lse))?;
        let s = self.band(&mut graph, s)?;
        let p = graph.map(Mode::CUDNN_POINTWISE_EXP, &s, None)?;
        // dV = P^T dO.
        let turned = self.turn(&mut graph, &p)?;
        self.of_keys(&mut graph, &packing, [&turned, &dout], [uid::DV, uid::DV_FULL])?;
        // dS = P (dO V^T - sums) scale.
        let dp = graph.wide(self.scores())?;
        graph.product(&dout, &values, &dp, [q_len, k_len, None])?;
        let ds = graph.map(Mode::CUDNN_POINTWISE_SUB, &dp, Some(&sums))?;
        let ds = graph.map(Mode::CUDNN_POINTWISE_MUL, &ds, Some(&p))?;
        let ds = graph.map(Mode::CUDNN_POINTWISE_MUL, &ds, Some(&scale))?;
        // dK = dS^T Q.
        let turned = self.turn(&mut graph, &ds)?;
        self.of_keys(&mut graph, &packing, [&turned, &q], [uid::DK, uid::DK_FULL])?;
        self.of_queries(&mut graph, &packing, &ds, &keys)?;
        Ok(graph)
    }

    /// Transposed scores, in the type that products read.
    fn turn(&self, graph: &mut Graph, x: &Node) -> Result<Node> {
        let Case { sequences, heads, q_tokens, k_tokens, .. } = *self;
        let dim = [sequences, heads, k_tokens, q_tokens];
        let stride = [heads * q_tokens * k_tokens, q_tokens * k_tokens, 1, k_tokens];
        graph.reshape(x, data(self.element), dim, stride, None)
    }

    /// A gradient of keys or values: one product per query head, summed over heads that share a key head.
    fn of_keys(
        &self,
        graph: &mut Graph,
        packing: &Packing,
        [a, b]: [&Node; 2],
        numbers: [i64; 2],
    ) -> Result<()> {
        let [number, full] = numbers;
        let overrides: Overrides<'_> = [packing.k_len.as_ref(), None, packing.q_len.as_ref()];
        let out = self.rows(packing, number)?;
        if self.heads == self.kv_heads {
            return graph.product(a, b, &out, overrides);
        }
        let dim = [self.sequences, self.heads, self.k_tokens, self.head_dim];
        let whole = if self.packed {
            // With packed sequences the engine needs memory for it. It uses the list of the result, multiplied by the
            // number of heads that share a key head.
            let stride = self.group() * self.strides.of(number);
            let strides = [self.k_tokens * stride, self.head_dim, stride, 1];
            Graph::real(full, data(self.element), dim, strides, packing.start(number))?
        } else {
            graph.between(data(self.element), dim)?
        };
        graph.product(a, b, &whole, overrides)?;
        graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, &whole, &out)
    }

    /// dQ = dS K, accumulated in f32 memory and rounded once.
    fn of_queries(&self, graph: &mut Graph, packing: &Packing, ds: &Node, keys: &Node) -> Result<()> {
        let Case { sequences, heads, kv_heads, q_tokens, k_tokens, head_dim, .. } = *self;
        let stride = self.strides.of(uid::K);
        let (dim, strides) =
            ([sequences, kv_heads, k_tokens, head_dim], [k_tokens * stride, head_dim, stride, 1]);
        let k = graph.reshape(keys, Data::CUDNN_DATA_FLOAT, dim, strides, packing.start(uid::K))?;
        let dim = [sequences, heads, q_tokens, head_dim];
        let strides = if self.packed {
            let stride = self.strides.of(uid::DQ);
            [q_tokens * stride, head_dim, stride, 1]
        } else {
            packed(dim)
        };
        let start = packing.start(uid::DQ);
        let wide = Graph::real(uid::DQ_WIDE, Data::CUDNN_DATA_FLOAT, dim, strides, start)?;
        graph.product(ds, &k, &wide, [packing.q_len.as_ref(), None, packing.k_len.as_ref()])?;
        let dq = self.rows(packing, uid::DQ)?;
        graph.apply(Mode::CUDNN_POINTWISE_IDENTITY, &wide, None, &dq)
    }
}
