"""Questions about a run, asked during it or later, and their answers: plain messages.

A row's bits do not depend on the other rows of its step, so any token of a run can be computed
again and gives the very same numbers. A question names token ids; the engine finds their keys and
values in the cache, computes the rows in question again through a plan that keeps more, and answers
with arrays. The plans that write text are untouched.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.grammar import Grammar
from gpu.interventions.messages import InterventionSpan
from gpu.sampling_params import SamplingParams

ArrayType = Literal["f32", "u32"]
Pooling = Literal["last", "mean"]
RoundedStorage = Literal["q8", "q4"]
MAX_TOP = 100
MAX_ANSWER_BYTES = 64 << 20
"""Largest answer about the attention of a text."""
MAX_COMPARED = 32
"""Most tokens of one `Neighbours`."""
MAX_ENCODED = 64
"""Most texts of one `Encode`."""
MAX_REPEAT = 100
MAX_BEAM_WIDTH = 16
MAX_BEAM_DEPTH = 128
MAX_LENGTH_PENALTY = 10
NUMPY_TYPES: dict[ArrayType, type[np.generic]] = {"f32": np.float32, "u32": np.uint32}


class _Question(
    msgspec.Struct,
    frozen=True,
    tag_field="kind",
    forbid_unknown_fields=True,
    kw_only=True,
    rename={"spans": "reached"},
):
    """A question. `ids`: the tokens so far, prompt first. `spans`: the interventions under which
    they were computed and are computed again, in the order of the tokens; (): none. `cache_salt`:
    that of the run, see `gpu.request.Request`."""

    cache_salt: str = ""


class AttentionFrom(_Question, frozen=True, tag="attention_from"):
    """Attention from the token at `position` to itself and all tokens before it.

    weights  f32 (n_layers, n_heads, position + 1): softmax weights, each row sums to 1
    """

    ids: list[int]
    position: int
    spans: tuple[InterventionSpan, ...] = ()


class AttentionTo(_Question, frozen=True, tag="attention_to"):
    """Attention to the token at `position` from itself and all tokens after it.

    weights  f32 (len(ids) − position, n_layers, n_heads)
    """

    ids: list[int]
    position: int
    spans: tuple[InterventionSpan, ...] = ()


class LogitLens(_Question, frozen=True, tag="logit_lens"):
    """Prediction after every layer at `position`: the output head applied to the residual stream
    there (nostalgebraist 2020, "interpreting GPT: the logit lens").

    `chosen` is the token whose rank is followed. Stages: the embedding, then after each layer.

    ids            u32 (n_layers + 1, top): most likely first
    probabilities  f32 (n_layers + 1, top)
    entropy        f32 (n_layers + 1,): bits
    rank           u32 (n_layers + 1,): tokens more likely than `chosen`
    probability    f32 (n_layers + 1,): of `chosen`
    """

    ids: list[int]
    position: int
    chosen: int
    top: int = 5
    spans: tuple[InterventionSpan, ...] = ()


class ForwardPass(_Question, frozen=True, tag="forward"):
    """Activations of the token at `position` in layer `layer`, in the order in which the pass
    computes them, with the scores of `head` over the tokens up to it. All are f32 but the ids.

    embedding            (hidden_size,): the residual stream before layer 0
    resid_pre, resid_mid, resid_post
                         (hidden_size,): before the layer, after its attention, after its MLP
    final, final_norm    (hidden_size,): after the last layer, and what the output head reads
    attn_norm, mlp_norm  (hidden_size,): normed input of attention and of the MLP
    q, rot_q             (n_heads, head_dim): queries as projected, and as compared with keys
    k, v                 (n_kv_heads, head_dim): keys and values as projected
    keys, values         (n_keys, head_dim): those in the cache that `head` reads, the last the
                         token's own
    dots, scores, weights  (n_keys,): q · k, scaled and capped, and its softmax
    attn_out             (n_heads, head_dim): Σ weight · value
    head_out             (hidden_size,): what the output projection makes of `head`
    head_norms, head_cosines  (n_heads,): length of that part of each head, and cosine of its angle
                         to what attention added
    gate, act, up, ffn_hidden  (intermediate_size,): of the MLP; act is act(gate), and ffn_hidden
                         act · up, or act(up) without a gate
    near_ids             u32 (6, top): tokens that final norm and output head would give of each of
                         `VECTORS` alone, most likely first
    near_logits, near_probabilities  (6, top)
    info                 "layer", "head", "kv_head", "first_key" (position of the first of `keys`),
                         "scale", "softcap" (null: none), "activation", "rope" (the layer has
                         rotary positions), "learned_positions" (vectors that are added to the
                         embeddings), "embedding_scale", "parallel" (the MLP reads the stream
                         before the layer), "post_norms" (updates are normed)

    Arrays of what the layer does not have are left out: norms, the gate, or all four of the MLP
    with experts.
    """

    ids: list[int]
    position: int
    layer: int
    head: int = 0
    top: int = 5
    spans: tuple[InterventionSpan, ...] = ()


VECTORS = ("resid_pre", "attn_update", "resid_mid", "mlp_update", "resid_post", "final")
"""Vectors of `ForwardPass` that are compared with the vocabulary."""


class Waterfall(_Question, frozen=True, tag="waterfall"):
    """Stages in which settings turn the logits at `position` into a distribution. The draw is that
    of token `index` of a run. `grammar`: that of the run; `n_read` of it counts back from
    `position`. JSON is brought to its end by `max_tokens`, as in a run of so many tokens. `also`:
    tokens to list in addition to the `top` most likely. See `gpu.inspection.waterfall` for the
    arrays."""

    ids: list[int]
    position: int
    params: SamplingParams
    index: int
    top: int = 40
    spans: tuple[InterventionSpan, ...] = ()
    grammar: Grammar | None = None
    also: list[int] = []


class Knockout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Masks attention to the tokens at positions `first` … `end` − 1 in the layers `first_layer` …
    `end_layer` − 1: their scores are −∞ before the softmax (Geva et al. 2023, "Dissecting Recall of
    Factual Associations in Auto-Regressive Language Models"). `head`: only in this head; None: in
    all."""

    first: int
    end: int
    first_layer: int
    end_layer: int
    head: int | None = None


class Losses(_Question, frozen=True, tag="losses"):
    """Loss of each token, given those before it (teacher forcing).

    `first`: only the tokens after ids[first] count; n is the number of ids from there on.
    `rope` False: queries and keys are not rotated by their positions, so that the model sees which
    tokens there are, and hardly in which order.
    `knockout`: what the tokens from ids[first] on do not attend to.

    logprob        f32 (n − 1,): natural log of the probability of ids[i + 1] after ids[: i + 1]
    rank           u32 (n − 1,): tokens more likely than it
    entropy        f32 (n − 1,): of the distribution, in bits
    top_ids        u32 (n − 1, top): the most likely tokens in its place
    top_logprobs   f32 (n − 1, top)
    """

    ids: list[int]
    top: int = 5
    first: int = 0
    rope: bool = True
    knockout: Knockout | None = None
    spans: tuple[InterventionSpan, ...] = ()


class Divergence(_Question, frozen=True, tag="divergence"):
    """Change of predictions and attention when attention reads other keys and values.

    `keys`, `values`: storage (`gpu.kv.formats`) to which they are rounded before a cache of floats
    stores them; None: not rounded. `window`: most keys that a token sees, in every layer; 0: all;
    None: the model's own windows. `first`: only the tokens from ids[first] on are compared, n of
    them. Arrays whose first dimension is 2 have the model as it is first, then the changed one.

    kl        f32 (n,): KL(model ‖ changed) of the distributions after each of them, in nats
    top_ids   u32 (2, n): the most likely token there
    moved     f32 (n,): share of its attention that each of them moved to other keys: half of the
              sum of the absolute differences, mean over layers and heads
    received  f32 (2, len(ids)): attention that each of ids got from the n tokens together, mean
              over layers and heads
    blocks    u32 (2, n): KV blocks that a text up to each of them holds, in all groups of layers
    """

    ids: list[int]
    first: int = 0
    keys: RoundedStorage | None = None
    values: RoundedStorage | None = None
    window: int | None = None
    spans: tuple[InterventionSpan, ...] = ()


class InterventionEffect(_Question, frozen=True, tag="intervention_effect"):
    """How far interventions move the predictions of a text: after each of ids[first:], the
    distribution of the next token under `spans` compared with that under `base`.

    kl        f32 (n,): Kullback-Leibler divergence KL(base ‖ spans) in nats
    same_top  u32 (n,): 1 where both have the same most likely token
    logprobs  f32 (2, n − 1): natural log of the probability of each id that follows in the text,
              under `base` and under `spans`
    """

    ids: list[int]
    first: int = 0
    spans: tuple[InterventionSpan, ...] = ()
    base: tuple[InterventionSpan, ...] = ()


class Beam(_Question, frozen=True, tag="beam"):
    """Most likely continuations, found by a beam search of `width` (`gpu.inspection.beam`).

    At most `width` are found, best first, of `depth` tokens or fewer that ended the text. They are
    compared by log-probability over length to the power of `length_penalty`.

    ids       u32 (n, depth): 0 after the end
    logprobs  f32 (n, depth): natural log of the probability of each token after those before it;
              0 after the end
    lengths   u32 (n,): tokens, with the one that ends the text
    ended     u32 (n,): 1 if it ended the text
    """

    ids: list[int]
    width: int = 4
    depth: int = 8
    length_penalty: float = 0.0
    spans: tuple[InterventionSpan, ...] = ()


class Routing(_Question, frozen=True, tag="routing"):
    """Experts that each token from `first` on was routed to, in a model that has experts.

    chosen  u32 (len(ids) − first, n_expert_layers, experts_per_token): largest gate first
    gates   f32 (same shape): factors of the experts' outputs
    norms   f32 (same shape): lengths of these outputs, before the gate
    info    "layers": the layers that have experts; "n_experts": experts per layer
    """

    ids: list[int]
    first: int = 0
    spans: tuple[InterventionSpan, ...] = ()


class Embedding(_Question, frozen=True, tag="embedding"):
    """Vector of a text: its last hidden states, after the final norm, pooled.

    `pooling`: "last", the state of the last token, the only one that has seen the whole text; or
    "mean", the mean over all tokens.

    vector  f32 (hidden_size,): not normalised
    """

    ids: list[int]
    pooling: Pooling = "last"
    spans: tuple[InterventionSpan, ...] = ()


class Neighbours(_Question, frozen=True, tag="neighbours"):
    """Tokens whose vectors in the embedding matrix W_E are nearest, by their cosine, to those of at
    most `MAX_COMPARED` tokens. Each is its own nearest.

    ids      u32 (len(ids), top): nearest first
    cosines  f32 (len(ids), top)
    """

    ids: list[int]
    top: int = 6


class Encode(_Question, frozen=True, tag="encode"):
    """Vectors of texts by the embedding model beside the loaded one: at most `MAX_ENCODED` lists of
    its token ids, each with the special tokens at both ends and of `EmbeddingInfo.max_tokens` ids
    or fewer.

    vectors  f32 (len(texts), hidden_size): pooled, and of length 1 if that model normalises
    """

    texts: list[list[int]]


class EncoderAttention(_Question, frozen=True, tag="encoder_attention"):
    """Attention in the embedding model beside the loaded one, from each token of a text to each: at
    most 64 of its token ids, with the special tokens at both ends.

    weights  f32 (n_layers, n_heads, n, n): softmax weights, each row sums to 1
    """

    ids: list[int]


class Seq2Seq(_Question, frozen=True, tag="seq2seq"):
    """Text that the encoder-decoder beside the loaded one writes for a text of its token ids, with
    the special tokens at the end: greedily, until an end token or `max_tokens`; m tokens.

    The decoder reads its start token and then what it wrote. Row t of its attention is that of the
    token it reads at position t, with which it wrote written[t].

    written        u32 (m,): the ids, an end token among them
    probabilities  f32 (m,): of each, after those before it
    encoder        f32 (n_layers, n_heads, n, n): of each token of the text to each
    decoder        f32 (n_decoder_layers, n_heads, m, m): of each token that the decoder reads to
                   each; 0 after its own
    cross          f32 (n_decoder_layers, n_heads, m, n): of each token that it reads to the text
    step_ms        f32 (m,): time of each token; info["encode_ms"]: of the text
    info           "ended": the last token ends the text
    """

    ids: list[int]
    max_tokens: int = 64


class StepPlan(_Question, frozen=True, tag="plan"):
    """Dispatches of a step of `n_rows` tokens after `context` others. No arrays.

    info  the plan, as `gpu.plans.plan_report.PlanReport` says; {} for an engine without one
    """

    n_rows: int = 1
    context: int = 1


class Profile(_Question, frozen=True, tag="profile"):
    """GPU time of every dispatch of a step of `n_rows` tokens after `context` others.

    `repeat` is from 1 to `MAX_REPEAT`.

    ms  f32 (n_dispatches,): GPU time of each dispatch of the plan, median over `repeat` steps; no
        array where the device has no clock
    info["dispatches"] describes them, see `gpu.plans.plan_report`
    """

    n_rows: int = 1
    context: int = 1
    repeat: int = 5


class CacheBlocks(_Question, frozen=True, tag="cache"):
    """Contents of every block of the KV cache, one entry per block (`gpu.kv.state`).

    owners, n_found, used  u32 (n_blocks,)
    first                  f32 (n_blocks,): −1 where the block holds no text's tokens
    group                  f32 (n_blocks,): index into `EngineLimits.kv_groups`, −1 for no group's;
                           only if there are groups
    runs, n_run_blocks     u32 (n_runs,): runs that have blocks (`gpu.events.Accepted.run`), and how
                           many each
    run_blocks             u32 (sum of n_run_blocks,): these blocks, in the order of each text
    info                   the counts of `gpu.kv.state.KvState`
    """


class StepPart(IntEnum):
    """Part of a run in a step: rows of its prompt, rows of new tokens (drafts included), or none
    because it waits for a slot or was preempted and waits to resume."""

    PREFILL = 0
    DECODE = 1
    WAITING = 2
    PREEMPTED = 3


class RecentSteps(_Question, frozen=True, tag="steps"):
    """The latest steps whose number is greater than `after`. The engine records them only for some
    seconds after such a question, and keeps the last `gpu.engine.step_log.MAX_STEPS`.

    numbers  u32 (n,): number of each step, one more each
    ms       f32 (n,): time that it took
    n_parts  u32 (n,): how many of `parts` are the step's
    parts    u32 (sum of n_parts, 4): run (`gpu.events.Accepted.run`), `StepPart`, rows, and how
             many of the rows were accepted drafts
    """

    after: int = 0


class DevicePeaks(_Question, frozen=True, tag="peaks"):
    """Peak rates of the device's memory, cache, bus and arithmetic. The first such question
    measures them, which stops all runs for about a second. No arrays.

    info  the fields of `gpu.webgpu.peaks.Peaks`; none of them for an engine without a GPU
    """


class WeightsDigest(_Question, frozen=True, tag="digest"):
    """SHA-256 of all weights as they are on the device, adapters included: a digest of the digests
    of their tensors, in the order in which those were loaded. They are read back one by one,
    between the steps of runs. No arrays.

    info  "sha256" in hexadecimal, "n_tensors" and "n_bytes"; {} for an engine without a GPU
    """


AboutText = (
    AttentionFrom
    | AttentionTo
    | LogitLens
    | ForwardPass
    | Waterfall
    | Losses
    | Divergence
    | InterventionEffect
    | Beam
    | Routing
    | Embedding
)
"""Questions about a text, tokens of which are computed again to answer them."""

Question = (
    AboutText
    | Neighbours
    | Encode
    | EncoderAttention
    | Seq2Seq
    | StepPlan
    | Profile
    | CacheBlocks
    | RecentSteps
    | DevicePeaks
    | WeightsDigest
)


class Array(msgspec.Struct, frozen=True):
    """A dense array, little-endian, last dimension fastest."""

    name: str
    dtype: ArrayType
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, name: str, values: npt.NDArray[Any]) -> Array:
        """`values` as 32-bit numbers: whole ones as u32, others as f32."""
        dtype: ArrayType = "u32" if values.dtype.kind in "iu" else "f32"
        kept = np.ascontiguousarray(values, dtype=np.dtype(NUMPY_TYPES[dtype]).newbyteorder("<"))
        return cls(name, dtype, kept.shape, kept.tobytes())

    def numpy(self) -> npt.NDArray[Any]:
        kind = np.dtype(NUMPY_TYPES[self.dtype]).newbyteorder("<")
        return np.frombuffer(self.data, kind).reshape(self.shape)


class Answer(msgspec.Struct, frozen=True):
    """`info`: what is not an array, as JSON values. `reused` of it: tokens found in the cache."""

    info: dict[str, Any]
    arrays: tuple[Array, ...]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return next(a for a in self.arrays if a.name == name).numpy()
