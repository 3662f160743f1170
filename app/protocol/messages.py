"""Messages between the page and the server: the one schema.

One JSON object per WebSocket text message, `type` first. Messages of a generation carry the page's
`id` for it and a `seq` that counts from 1, so that a page that lost its connection resumes with
`after` and neither loses nor repeats a token. `gpu.events` describes the events. A request with one
answer carries a number of the page's choice, `request`. The answer to `inspect` is a binary frame
(`app.ws.frames`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from app.protocol.tools import MAX_TOOLS, Tool, ToolCall, ToolNeed
from gpu import (
    NO_INTERVENTIONS,
    SAMPLING_SETTINGS,
    DeviceInfo,
    EmbeddingInfo,
    EncoderDecoderInfo,
    EngineError,
    EngineInfo,
    EngineLimits,
    Grammar,
    Interventions,
    InterventionSpan,
    MemoryInfo,
    ModelInfo,
    PaceChange,
    SamplingParams,
    ScheduledUpdate,
    Segmentation,
)
from gpu.events import Accepted, Done, Prefill, Preview, Queued, Token, Updated
from gpu.inspection.requests import Question

VERSION = 1
MESSAGE_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
UPDATE_SECONDS = 0.02
"""Updates of one page act at most this often."""
MAX_QUESTIONS = 8
"""Questions of one page that are asked, or answered and not yet sent. It bounds what one page can
make the engine do."""


def message_bytes(context: int) -> int:
    """Return the size limit of a message from the page: a question lists up to `context` ids of at
    most eight bytes each, and a prompt takes no more."""
    return min(max(MESSAGE_BYTES, 8 * context + MESSAGE_BYTES // 4), MAX_MESSAGE_BYTES)


# ---- from the page ---------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message of a conversation, as in OpenAI's API. `tool_calls`, of the assistant: calls that it
    wrote beside `content`. Of a tool: `tool_call_id`, of the call that it answers, and `name`, by
    default that of the called function."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


Truncation = Literal["disabled", "auto", "slide"]
Tools = Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)]


class Generate(
    msgspec.Struct,
    frozen=True,
    tag="generate",
    forbid_unknown_fields=True,
    rename={"interventions": "reach", "spans": "reached"},
):
    """Start a generation. Exactly one of `prompt` (text), `messages` (chat) or `ids`.

    `id` is chosen by the page, unique for it (1 to 64 characters of [A-Za-z0-9_-]).
    `continue_final`: the last message is the assistant's, and the model continues it.
    `truncation`: "auto" leaves out the oldest turns of messages that are too long for the context
    (`app.prompt.truncation`); "disabled" refuses them. `accepted` lists what was `dropped`. With
    "slide", for any kind of prompt, the oldest tokens leave the context when it is full; tokens say
    how many have (`slid`).
    `changes`: updates at token indexes that are known beforehand, as in a replay; each is
    acknowledged by `updated` when it acts.
    `written`: number of the last `ids` that the page has as text already, generated before or put
    there by a person; `accepted` has the text of each. If the last one ends the text, the
    generation is over at once.
    `n_read`: number of the last `ids` that are of the answer, which is read for calls of `tools`,
    where those are more than `written`: the rest was continued before.
    `interventions`: interventions from the first token on (`gpu.interventions.messages`).
    `spans`: interventions under which all of `ids` but the last were computed, if they continue a
    text; `interventions` then acts from the last on.
    `grammar`: what the text must follow (`gpu.grammar`).
    `tools`: functions that the model may call in its answer, for the chat template of `messages`;
    with `ids`, which contain it already, they say which names are those of functions. `done` lists
    the calls. `tool_choice`: as in OpenAI's API; a call that it requires follows the function's
    schema.
    `cache_reuse`: as in `gpu.request`; absent: as the server was started.
    `pace`: tokens a second; 0: paused before the first; None: full speed. While it is
    paused, `preview` events say what the next token will be drawn from.
    """

    id: str
    prompt: str | None = None
    messages: list[Message] | None = None
    ids: list[int] | None = None
    continue_final: bool = False
    truncation: Truncation = "disabled"
    params: SamplingParams = SamplingParams()
    capture: bool = True
    changes: tuple[ScheduledUpdate, ...] = ()
    written: int = 0
    n_read: int = 0
    interventions: Interventions = NO_INTERVENTIONS
    spans: tuple[InterventionSpan, ...] = ()
    grammar: Grammar | None = None
    cache_reuse: int | None = None
    pace: float | None = None
    tools: Tools | None = None
    tool_choice: ToolNeed | None = None


if TYPE_CHECKING:
    SamplingUpdate = Any
else:
    SamplingUpdate = msgspec.defstruct(
        "SamplingUpdate",
        [(each.name, each.type | None, None) for each in SAMPLING_SETTINGS if each.declared.live],
        namespace={"__doc__": "New values of live sampling settings; None: unchanged."},
        frozen=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
    )


class Update(
    msgspec.Struct,
    frozen=True,
    tag="update",
    forbid_unknown_fields=True,
    rename={"interventions": "reach"},
):
    """Change a running generation; acknowledged by `updated` with the first token it acts on.

    `interventions` replaces all interventions, so {} removes them; None: unchanged. It cannot have
    a new patch, because the patched token is already computed.
    `pace`: as in `Generate`; absent: unchanged.
    `steps`: tokens that a paused generation writes, by the settings as they are then.
    """

    id: str
    params: SamplingUpdate = SamplingUpdate()
    capture: bool | None = None
    interventions: Interventions | None = None
    pace: float | msgspec.UnsetType | None = msgspec.UNSET
    steps: int = 0

    @property
    def pace_change(self) -> PaceChange | None:
        """Return the change of the pace, if there is one."""
        change = PaceChange(self.pace, self.steps)
        return None if change == PaceChange() else change


class Stop(msgspec.Struct, frozen=True, tag="stop", forbid_unknown_fields=True):
    """End a generation and keep its text."""

    id: str


class Resume(msgspec.Struct, frozen=True, tag="resume", forbid_unknown_fields=True):
    """Send every message of generation `id` with `seq` > `after` again, then go on live."""

    id: str
    after: int = 0


class Count(msgspec.Struct, frozen=True, tag="count", forbid_unknown_fields=True):
    """Count the tokens of a prompt; answered by `counted` with the same `request`."""

    request: int
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: Tools | None = None


class Inspect(msgspec.Struct, frozen=True, tag="inspect", forbid_unknown_fields=True):
    """Ask about a run; answered by a binary frame with the same `request`, or an error.

    `engine`: the number of the engine to ask, from 1; 0: the server chooses one.
    """

    request: int
    question: Question
    engine: int = 0


class Tokenize(msgspec.Struct, frozen=True, tag="tokenize", forbid_unknown_fields=True):
    """Split a text into tokens; answered by `tokenized` with the same `request`.

    Exactly one of `prompt` and `messages` (as `generate` would read them, with `tools`) and `text`
    (plain: no token is added, and names of special tokens are text).
    """

    request: int
    prompt: str | None = None
    messages: list[Message] | None = None
    text: str | None = None
    continue_final: bool = False
    tools: Tools | None = None


class Segment(msgspec.Struct, frozen=True, tag="segment", forbid_unknown_fields=True):
    """Show how the words of a plain text become tokens, step by step; answered by `segmented` with
    the same `request`. `text`: at most `gpu.text.tokenizer.MAX_SEGMENTED_CHARS` characters."""

    request: int
    text: str


FromPage = Generate | Update | Stop | Resume | Count | Inspect | Tokenize | Segment

# ---- to the page -----------------------------------------------------------------------------


class PageModelInfo(ModelInfo, frozen=True, kw_only=True):
    """The engine's `ModelInfo`. `chat`: the model has a chat template."""

    chat: bool


class PageLimits(EngineLimits, frozen=True, kw_only=True):
    """The engine's limits. `message_bytes`: the largest message of the page."""

    message_bytes: int


class Lack(msgspec.Struct, frozen=True):
    """Something that the page cannot show. `name` of the instrument or the part of the page."""

    name: str
    why: str


class Upstream(msgspec.Struct, frozen=True):
    """Server that writes the texts in place of an engine here. `kind`: what it is, such as vLLM."""

    url: str
    kind: str
    lacks: tuple[Lack, ...]


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of every connection once the engine is ready, and again after a restart: the
    parts of `gpu.EngineInfo`. With an `upstream`, what it does not expose is 0 or empty. `note`:
    a sentence about the model for the page to show, such as why it is not the default one.
    `recommended`: the model's makers recommend `defaults`. `embedding`,
    `encoder_decoder`: the models with encoders beside it, if there are any."""

    version: int
    model: PageModelInfo
    device: DeviceInfo
    limits: PageLimits
    memory: MemoryInfo
    defaults: SamplingParams
    dispatches_per_token: int
    upstream: Upstream | None = None
    note: str = ""
    recommended: bool = True
    embedding: EmbeddingInfo | None = None
    encoder_decoder: EncoderDecoderInfo | None = None

    @property
    def api_defaults(self) -> SamplingParams:
        """Settings that a request of `/v1` leaves out: where the model's makers recommend none,
        those of OpenAI, as in vLLM."""
        if self.recommended:
            return self.defaults
        return SamplingParams(repetition_penalty=self.defaults.repetition_penalty)

    @classmethod
    def of(cls, info: EngineInfo, chat: bool, note: str = "") -> Hello:
        """Return the message for an engine. `chat`: its model has a chat template."""
        limits = msgspec.structs.asdict(info.limits)
        return cls(
            VERSION,
            PageModelInfo(**msgspec.structs.asdict(info.model), chat=chat),
            info.device,
            PageLimits(**limits, message_bytes=message_bytes(info.limits.context)),
            info.memory,
            info.defaults,
            info.dispatches_per_token,
            note=note,
            recommended=info.recommended,
            embedding=info.embedding,
            encoder_decoder=info.encoder_decoder,
        )


class Status(msgspec.Struct, frozen=True, tag="status"):
    """State of the engine. `progress` is in [0, 1] while loading; `message` is for people.
    `retry_seconds`: seconds until an engine that keeps stopping is started again."""

    state: Literal["loading", "ready", "restarting", "failed"]
    message: str
    progress: float | None = None
    retry_seconds: int | None = None


class Generation(msgspec.Struct, frozen=True, tag="event", omit_defaults=True):
    """An event of generation `id`. `at`: when it came from the engine, in milliseconds since the
    server took the request; `prepared`, of the first event: when the prompt had become tokens."""

    id: str
    seq: int
    event: Accepted | Queued | Prefill | Preview | Token | Updated | Done
    at: float
    prepared: float | None = None


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    request: int
    tokens: int


class Piece(msgspec.Struct, frozen=True):
    """A token of a text. `text` is for people and may hold U+FFFD for part of a character; `bytes`
    are the bytes it adds to the text, in hexadecimal, none if it is special."""

    id: int
    text: str
    bytes: str
    special: bool


class PromptPiece(Piece, frozen=True):
    """A token of a prompt. `message` and `role`: index and role of the message that it holds a
    character of; None and "" for tokens of the chat template or without messages."""

    role: str = ""
    message: int | None = None


class Tokenization(msgspec.Struct, frozen=True):
    """Tokens of a plain text by one tokenizer. `name`: name of the tokenizer or of its model, ""
    while that is loading. `tokens_per_word` is None for a text without words."""

    name: str
    n_tokens: int
    tokens_per_word: float | None
    tokens: list[Piece]


class Tokenized(msgspec.Struct, frozen=True, tag="tokenized"):
    """Answer to `tokenize`.

    rendered  the prompt or text; for messages, the output of the chat template
    tokens    tokens of `rendered`, as the engine gets them
    unplaced  indexes of messages that the template rewrites or leaves out, so that their tokens
              are not known

    The rest is about the plain text without a template: the prompt, the text, or the contents of
    the messages with a line break between them. Words are separated by white space.

    plain     its tokens by the model's tokenizer
    compare   its tokens by the tokenizer chosen for comparison
    """

    request: int
    rendered: str
    tokens: list[PromptPiece]
    unplaced: list[int]
    n_chars: int
    n_bytes: int
    n_words: int
    plain: Tokenization
    compare: Tokenization


class Segmented(Segmentation, frozen=True, tag="segmented", kw_only=True):
    """Answer to `segment`. `pieces`: the tokens that the steps name, each once."""

    request: int
    pieces: list[Piece]


class Error(msgspec.Struct, frozen=True, tag="error"):
    """An error. `message` is for people and says what to do. `id`: the generation, `param`: the
    offending field, each "" if none; `request`: number of the request, None if there was none."""

    code: str
    message: str
    id: str = ""
    param: str = ""
    request: int | None = None

    @classmethod
    def of(cls, error: EngineError, id: str = "", request: int | None = None) -> Error:
        return cls(error.code, str(error), id, getattr(error, "param", ""), request)


ToPage = Hello | Status | Generation | Counted | Tokenized | Segmented | Error
