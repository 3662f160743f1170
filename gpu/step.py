"""One step of the model as data: its rows, its samples, its results.

A row is one token of one sequence, `(slot, position, token)`. Prefill chunks and decode tokens
of different sequences are rows of the same step. The scheduler makes steps, a runner (WGSL or
torch) carries them out; neither knows the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.errors import InvalidRequest
from gpu.sampling_params import DISTRIBUTION, FILTERS, SamplingParams, SeedingScheme, TokenBias

FROM_GPU = -1
"""Token of a row whose id is the one that its slot sampled last; the host may not know it yet."""

MAX_TIMES_WRITTEN = 2**16 - 1
"""Penalties count a token up to this: the device has 16 bits for each of the vocabulary."""

MAX_ROWS = 512
"""Most rows of a step on any device; `DevicePolicy.max_rows` says how many this one takes."""

N_CANDIDATES = 20
"""Most likely tokens that a step reports for each sampled row."""

N_RANKED = 40
"""Most likely tokens among which the seeding scheme selfhash looks for green ones, as many as in
transformers."""

CUTS = ("", *(setting.name for setting in FILTERS))
"""Filter that removed a candidate, in the order in which they act; "" if it was kept."""

Floats = npt.NDArray[np.float32]
Times = npt.NDArray[np.float64]
"""Milliseconds of a clock that runs on from step to step: float32 would lose precision."""


@dataclass(frozen=True, slots=True)
class Row:
    """One token of one sequence. `token` is an id or `FROM_GPU`."""

    slot: int
    position: int
    token: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Draw of the token that follows `rows[row]`.

    row         index into the rows of the step
    slot        slot of the sequence
    seed        seed of the random generator, 64 bits
    index       tokens that the run sampled before. It is the counter of the random generator, so
                the draw depends on (seed, index) alone. The last `index` tokens of the context are
                those that the run wrote.
    n_drafts    rows up to `row` that are drafts; penalties count their tokens as written
    verifies    the token is only compared with a draft, or follows one: the slot's last token, its
                seen tokens and its counts stay as they are
    watermark_bias  added to the logits of the tokens that `Runner.set_greenlist` gave the slot,
                after the filters; 0: none
    n_hashed    tokens that decide whether a token is green, itself one of them, with the seeding
                scheme selfhash: those of `Runner.set_selfhash`; 0: lefthash
    n_allowed   size of the set that `Runner.set_grammar_bitmask` gave the slot, to which the draw
                is limited; 0: no limit

    The other fields are settings (`gpu.sampling_params.DISTRIBUTION` and `logit_bias`); their
    defaults change nothing.
    """

    row: int
    slot: int
    seed: int
    index: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    watermark_bias: float = 0.0
    logit_bias: tuple[TokenBias, ...] = ()
    n_drafts: int = 0
    verifies: bool = False
    n_allowed: int = 0
    n_hashed: int = 0

    @classmethod
    def of(cls, params: SamplingParams, *, row: int, slot: int, index: int) -> Sample:
        """Return the draw of token `index` of a run with these settings, which include a seed."""
        assert params.seed is not None
        settings: dict[str, Any] = {name: getattr(params, name) for name in DISTRIBUTION}
        if params.is_greedy:
            settings["temperature"] = 0.0
        return cls(
            row=row,
            slot=slot,
            seed=params.seed,
            index=params.first_index + index,
            logit_bias=params.logit_bias,
            n_hashed=params.selfhash_width if params.watermark_bias else 0,
            **settings,
        )


@dataclass(frozen=True, slots=True)
class Selfhash:
    """Numbers by which selfhash decides whether a token is green after a text.

    n_green   size of a greenlist; 0: the text is too short, and no token is green
    hashes    uint32 (vocab_size,): hash of each token
    products  uint64 (n_hashed,): the key, then the key times the hash of each token before, modulo
              2⁶⁴
    """

    n_green: int
    hashes: npt.NDArray[np.uint32]
    products: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class KvVariant:
    """Change of what attention reads of the KV cache, for comparisons.

    keys, values  storage (`gpu.kv.formats`) that new keys and values are rounded to before they are
                  stored as floats; None: they are not rounded
    window        most keys that a row reads, in every layer; 0: all; None: the model's own windows
    """

    keys: str | None = None
    values: str | None = None
    window: int | None = None

    @property
    def rounds(self) -> bool:
        return self.keys is not None or self.values is not None

    def window_of(self, own: int | None) -> int | None:
        """Return the window of a layer whose own is `own`; None: no limit."""
        return own if self.window is None else self.window or None


@dataclass(frozen=True, slots=True)
class Step:
    """Rows to run and tokens to sample. `interventions`, `loras`, `masked`: apply those that
    `Runner.set_interventions` set for the slots of the rows, the last of them the masked keys.
    `kv`: change of what attention reads, in a step that answers a question."""

    rows: tuple[Row, ...]
    samples: tuple[Sample, ...] = ()
    capture: bool = False
    interventions: bool = False
    loras: bool = False
    kv: KvVariant | None = None
    masked: bool = False

    @property
    def watermark(self) -> SeedingScheme | None:
        """Return the seeding scheme that the samples need: selfhash serves lefthash, too; None
        without a watermark."""
        if any(sample.n_hashed for sample in self.samples):
            return "selfhash"
        return "lefthash" if any(sample.watermark_bias for sample in self.samples) else None

    def drafts_before(self, sample: Sample) -> list[int]:
        """Return the drafts that count as seen and written for `sample`."""
        first = sample.row + 1 - sample.n_drafts
        return [row.token for row in self.rows[first : sample.row + 1]]

    @property
    def context(self) -> int:
        """Tokens of the longest sequence, up to its last row here."""
        return max((row.position for row in self.rows), default=0) + 1


class Candidate(NamedTuple):
    """One of the most likely tokens. `before`: probability after penalty and temperature, before
    the filters; `after`: after the filters (0 if it was cut); `cut`: an entry of `CUTS`."""

    id: int
    before: float
    after: float
    cut: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """The choice for one `Sample`, and how it came about.

    logprob      natural log of the model's own probability (raw logits, temperature 1)
    probability  of the choice after all filters
    rank         how many tokens have a larger scaled logit (0: the most likely); with a watermark,
                 how many survivors after its bias
    n_kept       how many tokens survived the filters
    draw         the uniform number in [0, 1) that picked the token; 0 when greedy
    mass         probability (before the filters) that was kept, and that each filter cut: an entry
                 for each of `CUTS`; sums to 1
    candidates   the `N_CANDIDATES` most likely, most likely first
    allowed      the model's own probability of all allowed tokens together (see `Sample.n_allowed`,
                 of which everything but `logprob` is about); 1 if all are allowed
    green        probability of the green tokens in the draw before the bias of a watermark was
                 added; 0 without one
    """

    id: int
    logprob: float
    probability: float
    rank: int
    n_kept: int
    draw: float
    mass: tuple[float, ...]
    candidates: tuple[Candidate, ...]
    allowed: float = 1.0
    green: float = 0.0


@dataclass(frozen=True, slots=True)
class Captured:
    """Activation statistics of a step with `capture`.

    embedding  (n_rows,)                    norm of the embedding
    residual   (n_rows, n_layers)           norm of the residual stream after the layer
    attention  (n_rows, n_layers)           norm of what attention added to it
    mlp        (n_rows, n_layers)           norm of what the MLP added to it
    attention_cosine, mlp_cosine            cosine of the angle between each of the two and the
               (n_rows, n_layers)           stream that it was added to; 0 where one has no length
    entropy    (n_rows, n_layers, n_heads)  entropy of each head's attention, in bits
    chosen, gates                           the experts that the row was routed to and what their
               (n_rows, n_expert_layers,    outputs were multiplied by, of each layer that has
               experts_per_token)           experts, `expert_layers`, largest gate first; None
                                            where none has
    layer_ms   (n_layers, 2)                GPU time of attention and MLP of each layer for the
                                            whole step; None without in-pass timestamps
    embed_ms, head_ms                       GPU time before the layers and after them
    """

    embedding: Floats
    residual: Floats
    attention: Floats
    mlp: Floats
    attention_cosine: Floats
    mlp_cosine: Floats
    entropy: Floats
    chosen: npt.NDArray[np.uint32] | None = None
    gates: Floats | None = None
    expert_layers: tuple[int, ...] = ()
    layer_ms: Floats | None = None
    embed_ms: float | None = None
    head_ms: float | None = None


@dataclass(frozen=True, slots=True)
class InspectionRequest:
    """Intermediate values that `Runner.inspect` returns of a step.

    keys         (first, n): attention weights of every row to the keys at positions first …
                 first + n − 1
    states       the residual stream of every row
    lens         the logits that every state of the stream would give, of the row of
                 step.samples[0]
    routes       the experts that every row was routed to, in a model that has experts
    last_hidden  the last hidden state of every row: what the output head reads
    layer        (layer, head): activations of a step of one row in one layer, with the keys and
                 values that the head reads
    """

    keys: tuple[int, int] | None = None
    lens: bool = False
    states: bool = False
    routes: bool = False
    last_hidden: bool = False
    layer: tuple[int, int] | None = None

    def validate(self, step: Step, context: int) -> None:
        """Raise InvalidRequest if the step cannot give what is requested."""
        if self.keys is not None:
            first, n = self.keys
            if first < 0 or n < 1 or first + n > context:
                raise InvalidRequest(
                    f"attention weights of {n} keys from position {first} on were asked for; ask "
                    f"for one key or more of the positions 0 to {context - 1}",
                    "keys",
                )
        if self.lens and not step.samples:
            raise InvalidRequest("a lens needs a sample in the step, to name its row", "lens")
        if self.layer is not None and len(step.rows) != 1:
            raise InvalidRequest(
                f"the activations of a layer are those of one row, but {len(step.rows)} came",
                "layer",
            )


@dataclass(frozen=True, slots=True)
class ExpertChoices:
    """Experts chosen for each row in each layer that has experts, largest gate first. All arrays
    are (n_rows, n_expert_layers, experts_per_token).

    chosen  uint32: numbers of the experts
    gates   factors of their outputs
    norms   lengths of their outputs, before the gate
    """

    chosen: npt.NDArray[np.uint32]
    gates: Floats
    norms: Floats


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """Activations of one token in one layer, float32; None for what the layer does not have.

    resid_pre, resid_mid, resid_post  (hidden_size,): the residual stream before the layer, after
                attention and after the MLP, before the next layer's input is steered or patched
    attn_norm, mlp_norm  (hidden_size,): normed input of attention and MLP
    q, k, v     (n_heads, head_dim) and twice (n_kv_heads, head_dim): projections, before the norm
                of queries and keys and before RoPE
    rot_q       (n_heads, head_dim): queries that are compared with the keys
    keys, values  (n_keys, head_dim): of the cache, up to the token's own, of the key/value head
                that the head reads; `first_key` is the position of the first that it sees
    attn_out    (n_heads, head_dim): Σ weight · value of each head
    head_out    (n_heads, hidden_size): what the output projection makes of each head, without bias,
                adapters and the norm after it
    has_post_norms  what attention and MLP give is normed before it is added to the stream
    gate, up    (intermediate_size,): of the MLP, before the activation function; no gate without
                one, neither with experts
    ffn_hidden  (intermediate_size,): act(gate) · up; None with experts
    """

    resid_pre: Floats
    resid_mid: Floats
    resid_post: Floats
    attn_norm: Floats | None
    mlp_norm: Floats | None
    q: Floats
    k: Floats
    v: Floats
    rot_q: Floats
    keys: Floats
    values: Floats
    first_key: int
    attn_out: Floats
    head_out: Floats
    has_post_norms: bool
    gate: Floats | None
    up: Floats | None
    ffn_hidden: Floats | None


@dataclass(frozen=True, slots=True)
class InspectionResult:
    """Answer to an `InspectionRequest`, float32; None for what was not requested.

    attention  (n_rows, n_layers, n_heads, n_keys)      softmax weights; 0 for keys after the row
    lens       (n_layers + 1, vocab_size)               final norm and output head applied to the
                                                        residual stream before layer 0, … after the
                                                        last; the last row is the model's own logits
    states     (n_rows, n_layers + 1, hidden_size)      that residual stream
    routes     see `ExpertChoices`
    last_hidden
               (n_rows, hidden_size)                    final norm of the residual stream after the
                                                        last layer
    layer      see `LayerActivations`
    """

    attention: Floats | None = None
    lens: Floats | None = None
    states: Floats | None = None
    routes: ExpertChoices | None = None
    last_hidden: Floats | None = None
    layer: LayerActivations | None = None


@dataclass(frozen=True, slots=True)
class LayerExpertUse:
    """Use of the experts of one layer by the rows of a step: those `found` on the device, those
    `brought` there from host memory (`n_bytes` together, in `ms` milliseconds until the device had
    them), and all that are `held` there after the step, the least recently used first."""

    layer: int
    found: tuple[int, ...]
    brought: tuple[int, ...]
    held: tuple[int, ...]
    n_bytes: int
    ms: float


@dataclass(frozen=True, slots=True)
class ExpertUse:
    """Use of experts by the rows of a step, each expert counted once per layer: those `found` on
    the device, and those `brought` there from host memory, `n_bytes` together. `layers`: the same
    for each layer; () for a step without capture, which does not wait for the copies."""

    found: int = 0
    brought: int = 0
    n_bytes: int = 0
    layers: tuple[LayerExpertUse, ...] = ()

    def plus(self, other: ExpertUse) -> ExpertUse:
        return ExpertUse(
            self.found + other.found,
            self.brought + other.brought,
            self.n_bytes + other.n_bytes,
            self.layers + other.layers,
        )

    def from_layer(self, first: int) -> ExpertUse:
        """Return the same with layers that are numbered from `first` on: those of a stage."""
        layers = (replace(layer, layer=first + layer.layer) for layer in self.layers)
        return replace(self, layers=tuple(layers))


@dataclass(frozen=True, slots=True)
class NonFinite:
    """The first op of a step with a result that is not finite.

    layer      its layer; None outside of the layers
    op         its label there, e.g. attn.qkv
    position   of the first row that has such a number
    n_wrong    numbers of the result that are not finite, of `n_numbers`
    """

    layer: int | None
    op: str
    kernel: str
    position: int
    n_wrong: int
    n_numbers: int

    def __str__(self) -> str:
        layer = "" if self.layer is None else f"layer {self.layer}, "
        return (
            f"{layer}{self.op} (kernel {self.kernel}), position {self.position}: "
            f"{self.n_wrong:,} of {self.n_numbers:,} numbers"
        )


class Span(NamedTuple):
    """Milliseconds at which work began and ended, by the host's clock (`time.perf_counter`)."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results and times of a step.

    gpu_ms        GPU time of the whole step; None without timestamps
    gpu_began_ms  begin of the step by the device's clock; None without timestamps
    encode_ms     host time for encoding, `finish_ms` of it in the native call that ends it
    wait_ms       host time blocked in the submission (`submit_ms`; some drivers run the work there;
                  not that of a thread of its own) and in waiting for the result
    read_ms       host time for fetching the result
    experts       None unless experts are offloaded
    stage_spans   times in which each stage of a model had the step, by the clock of its machine; ()
                  of a whole model
    sent          float32 (n_rows, width): the residual stream after the layers of a stage of a
                  model, for the next stage; None of a whole model and of the last stage
    """

    samples: tuple[Sampled, ...]
    captured: Captured | None = None
    gpu_ms: float | None = None
    gpu_began_ms: float | None = None
    encode_ms: float = 0.0
    wait_ms: float = 0.0
    read_ms: float = 0.0
    finish_ms: float = 0.0
    submit_ms: float = 0.0
    experts: ExpertUse | None = None
    stage_spans: tuple[Span, ...] = ()
    sent: Floats | None = None
