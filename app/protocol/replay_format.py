"""Format of replay files, versions 1 to 3, as types and as the JSON schema that the page checks
files with. docs/replay.md describes it for people."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.config import KvDtype
from app.protocol.messages import Generate, Hello, Message
from app.protocol.tools import MAX_TOOLS, CalledFunction, Function, Tool, ToolCall
from gpu import (
    FACTORS,
    MAX_BIAS,
    MAX_GRAMMAR_CHARS,
    MAX_LOGIT_BIASES,
    MAX_PATCHES,
    MAX_STEERS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    STRENGTHS,
    Grammar,
    ScheduledUpdate,
)
from gpu import SAMPLING_SETTINGS as SETTINGS
from gpu.events import Accepted, CandidateText, Done, Prefill, Preview, Queued, Token, Updated

Schema = dict[str, Any]

MAX_ID = 2**53 - 1
"""Greatest id of an upstream without a tokenizer (app/upstream/tokenizer.py); models have
smaller ones."""
MAX_TOKENS = 2**24
MAX_TOKEN_CHARS = 4096
MAX_EVENTS = 2**20
MAX_TURNS = 10_000
MAX_CANDIDATES = 1000
MAX_DRAFTS = 64
MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_EXPERTS = 1024
MAX_LORAS = 64
MAX_FILES = 16
MAX_NAME_CHARS = 255

Milliseconds = Annotated[float, Meta(ge=0)]
Mode = Literal["chat", "completion"]

# ---- the file --------------------------------------------------------------------------------


class PutToken(msgspec.Struct):
    """Token that a person put into a text. `logprob` is null where it was not a number."""

    id: int
    text: str
    eos: bool
    logprob: float | None
    rank: int | None
    candidates: tuple[CandidateText, ...] | None


class ReplacedToken(msgspec.Struct):
    """Token that the first of `Branch.put` replaced."""

    id: int
    text: str
    logprob: float | None
    eos: bool | UnsetType = UNSET


class OriginalRequest(msgspec.Struct):
    """Prompt of the answer that a branch differs from."""

    messages: Annotated[tuple[Message, ...], Meta(max_length=MAX_TURNS)] | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    continue_final: bool | UnsetType = UNSET


class Branch(msgspec.Struct):
    """Difference from answer number `of`: at token `at`, `put` replaces its tokens."""

    of: int
    at: int
    put: Annotated[tuple[PutToken, ...], Meta(min_length=1, max_length=10_000)]
    was: ReplacedToken
    asked: OriginalRequest


class TimedEvent(msgspec.Struct):
    """Event of a run. `at`: ms after the server took the request; `came`, `drawn`: ms after the
    page sent it."""

    at: Milliseconds
    event: Accepted | Queued | Prefill | Preview | Token | Updated | Done
    came: float | UnsetType = UNSET
    drawn: float | UnsetType = UNSET


class Segment(msgspec.Struct):
    """One generation of an answer: its request, and its events or its text alone. `model`: name of
    the model that wrote it, if that is not the file's. `edited`: a person wrote its text, as an
    answer to the request."""

    request: Generate
    prepared: Milliseconds | UnsetType = UNSET
    branch: Branch | UnsetType = UNSET
    model: str | UnsetType = UNSET
    events: (
        Annotated[tuple[TimedEvent, ...], Meta(min_length=1, max_length=MAX_EVENTS)] | UnsetType
    ) = UNSET
    text: str | UnsetType = UNSET
    edited: bool | UnsetType = UNSET


class Answer(msgspec.Struct):
    segments: Annotated[tuple[Segment, ...], Meta(min_length=1, max_length=MAX_TURNS)]


class AttachedFile(msgspec.Struct):
    """File in a person's turn: its text, as it was put into the prompt, has `chars` characters."""

    name: Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
    chars: int


class UserTurn(msgspec.Struct, tag_field="role", tag="user"):
    """Message of a person. `text` begins with the texts of `files`, in their order."""

    text: str
    mode: Mode
    files: Annotated[tuple[AttachedFile, ...], Meta(max_length=MAX_FILES)] | UnsetType = UNSET


class EditedText(msgspec.Struct):
    """Text that a person put in place of that of version number `version`."""

    version: int
    text: str


class Summary(msgspec.Struct):
    """Says that a turn sums up the first `covers` messages of the person and their answers."""

    covers: int
    edited: EditedText | UnsetType = UNSET


class ToolResult(msgspec.Struct):
    """Call of a tool, and what it returned in `ms`; `failed`: an error, in words."""

    id: str
    name: str
    arguments: str
    content: str
    ms: float
    failed: bool


class ToolUse(msgspec.Struct):
    """Calls in the shown answer of a turn, with their results, and the text outside of them."""

    content: str
    results: Annotated[tuple[ToolResult, ...], Meta(min_length=1, max_length=MAX_TOOLS)]


class ModelTurn(msgspec.Struct, tag_field="role", tag="model"):
    """Turn of the model. `summary`: it is not an answer but stands for the oldest turns.
    `tool_use`: it called tools, and the next turn goes on with their results."""

    mode: Mode
    given: str
    shown: int
    answers: Annotated[tuple[Answer, ...], Meta(min_length=1, max_length=MAX_TURNS)]
    summary: Summary | UnsetType = UNSET
    tool_use: ToolUse | UnsetType = UNSET


class BranchOrigin(msgspec.Struct):
    """Conversation that another one is a branch of: its turns before the person's message number
    `message` are those of `id`, and that message too if the answer number `answer` was edited."""

    id: Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
    title: Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
    message: int
    answer: int | UnsetType = UNSET


class Replay(msgspec.Struct):
    """A conversation. `title`: the name a person gave it; `system`: its system prompt now."""

    format: Literal["tokenglass replay"]
    version: Literal[1, 2, 3]
    saved: Annotated[
        str,
        Meta(
            pattern=r"^\d{4}-\d\d-\d\dT[\d:.]{8,16}Z$",
            description="a date and time as 2026-01-31T12:00:00Z",
        ),
    ]
    hello: Hello
    turns: Annotated[tuple[UserTurn | ModelTurn, ...], Meta(min_length=1, max_length=MAX_TURNS)]
    title: Annotated[str, Meta(max_length=MAX_NAME_CHARS)] | UnsetType = UNSET
    system: str | UnsetType = UNSET
    branched_from: BranchOrigin | UnsetType = UNSET


# ---- what the messages' types do not say ----------------------------------------------------

SEED = {"type": "string", "pattern": r"^\d{1,20}$", "description": "a text of 1 to 20 digits"}
"""Seeds are strings in files: they have 64 bits, and the numbers of many JSON readers 53."""

ABSENT_FROM_OLD_FILES = {
    "Hello": ("type", "version", "upstream", "note", "recommended", "embedding", "encoder_decoder"),
    "DeviceInfo": ("clock_ms",),
    "PageModelInfo": ("eos_ids", "kv_dtype", "kv_formats"),
    "LayerStats": ("attention_cosine", "mlp_cosine"),
    "TokenStats": ("timed_at",),
    "Accepted": ("texts", "dropped", "run"),
    "Prefill": ("experts",),
    "Token": ("experts", "draft"),
    "ExpertUse": ("layers",),
    "Timings": (
        "draft_n", "draft_n_accepted", "draft_n_by_position", "draft_n_accepted_by_position",
        "draft_speedup", "cache_moved_n", "draft_ms", "paced_ms",
    ),
}  # fmt: skip
"""Fields that later pages added to files of a version."""

SENT_BY_PAGE = (
    Generate,
    Message,
    Tool,
    Function,
    ToolCall,
    CalledFunction,
    Grammar,
    ScheduledUpdate,
)
"""Types of what the page sends, which leaves out fields that have their default."""

SETTINGS_OF_VERSION_1 = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens",
)  # fmt: skip
"""Settings that every file has; later ones take their default where they are missing."""

NOT_A_NUMBER = {
    "TokenStats": ("embedding",),
    "LayerStats": (
        "residual", "attention", "mlp", "attention_cosine", "mlp_cosine", "entropy",
    ),
    "ExpertChoice": ("gates",),
    "Token": ("logprob",),
}  # fmt: skip
"""Measurements that may be not a number, which is null in JSON."""

NOT_NEGATIVE = frozenset(
    {"ms", "interval", "gpu", "encode", "wait", "read", "paced", "pace"}
    | {f"{phase}_per_second" for phase in ("prompt", "predicted")}
)
"""Numbers that are never negative; times, whose names end in _ms, are not either."""

BOUNDS: dict[str, tuple[float, float]] = {
    "id": (0, MAX_ID),
    "ids": (0, MAX_ID),
    "eos_ids": (0, MAX_ID),
    "n_layers": (0, MAX_LAYERS),
    "n_heads": (0, MAX_HEADS),
    "n_kv_heads": (0, MAX_HEADS),
    "n_experts": (1, MAX_EXPERTS),
    "head_dim": (0, 2**16),
    "hidden_size": (0, 2**24),
    "vocab_size": (0, MAX_ID),
    "context": (1, MAX_TOKENS),
    "PageLimits.kv_blocks": (0, 2**31),
    "block_tokens": (1, MAX_TOKENS),
    "in_flight": (0, 1000),
    "n_rows": (1, MAX_TOKENS),
    "layer": (0, MAX_LAYERS - 1),
    "head": (0, MAX_HEADS - 1),
    "expert": (0, MAX_EXPERTS - 1),
    "experts": (0, MAX_EXPERTS - 1),
    "LayerExpertUse.found": (0, MAX_EXPERTS - 1),
    "LayerExpertUse.brought": (0, MAX_EXPERTS - 1),
    "held": (0, MAX_EXPERTS - 1),
    "TokenStats.position": (0, MAX_TOKENS),
    "Patch.position": (0, MAX_TOKENS),
    "Patch.token": (0, MAX_TOKENS),
    "timed_at": (0, MAX_TOKENS),
    "factor": FACTORS,
    "covers": (1, MAX_TURNS),
    "Steer.strength": STRENGTHS,
    "LoraStrength.strength": FACTORS,
    "TokenBias.bias": (-MAX_BIAS, MAX_BIAS),
}
"""Smallest and largest value of a number, or of those in a list, by its name or its type's and its
name. Integers without bounds are counts: the page takes those from 0 to 2⁵³ − 1."""

LENGTHS: dict[str, tuple[int, int]] = {
    "Accepted.prompt": (1, MAX_TOKENS),
    "Accepted.dropped": (0, MAX_TURNS),
    "layers": (1, MAX_LAYERS),
    "ExpertUse.layers": (0, MAX_LAYERS),
    "found": (0, MAX_EXPERTS),
    "brought": (0, MAX_EXPERTS),
    "held": (0, MAX_EXPERTS),
    "entropy": (1, MAX_HEADS),
    "ExpertChoice.experts": (1, MAX_EXPERTS),
    "gates": (1, MAX_EXPERTS),
    "routes": (0, MAX_LAYERS),
    "candidates": (0, MAX_CANDIDATES),
    "heads": (0, MAX_LAYERS * MAX_HEADS),
    "Interventions.experts": (0, MAX_LAYERS * MAX_EXPERTS),
    "steer": (0, MAX_STEERS),
    "patch": (0, MAX_PATCHES),
    "loras": (0, MAX_LORAS),
    "stop": (0, MAX_STOP_STRINGS),
    "logit_bias": (0, MAX_LOGIT_BIASES),
    "discarded": (0, MAX_DRAFTS),
    "draft_n_by_position": (0, MAX_DRAFTS),
    "draft_n_accepted_by_position": (0, MAX_DRAFTS),
}
"""Shortest and longest length of a list, by its name or its type's and its name. The page takes
lists without bounds, and texts, up to a length of 2²⁴."""

CHARS = {
    "stop": MAX_STOP_CHARS,
    "TokenText.text": MAX_TOKEN_CHARS,
    "CandidateText.text": MAX_TOKEN_CHARS,
    "Draft.text": MAX_TOKEN_CHARS,
    "PutToken.text": MAX_TOKEN_CHARS,
    "ReplacedToken.text": MAX_TOKEN_CHARS,
    "Grammar.text": MAX_GRAMMAR_CHARS,
}
"""Longest string, by its name or its type's and its name."""

# ---- the schema ------------------------------------------------------------------------------


@cache
def replay_schema() -> Schema:
    """Return the JSON schema of a replay file, which static/js/replay/validate.js checks with.

    It has the keywords that msgspec emits. The page refuses fields that no type has, and fills in
    the few properties that have a `default`.
    """
    schema = msgspec.json.schema(Replay)
    definitions: dict[str, Schema] = schema["$defs"]
    owners = {each.__name__: each for each in object_types(Replay)}
    for name, definition in definitions.items():
        _set_presence(definition, owners[name])
        for field, value in definition["properties"].items():
            for each in _leaves(value):
                _set_bounds(each, name, field)
            definition["properties"][field] = with_null(value, name, field)
        for text in ("title", "description", "additionalProperties"):
            definition.pop(text, None)
    _use_file_settings(definitions)
    _use_saved_request(definitions)
    formats = definitions["PageModelInfo"]["properties"]["kv_formats"]
    del formats["additionalProperties"]
    formats.update(
        properties={name: {"type": "integer"} for name in get_args(KvDtype)}, required=[]
    )
    return schema


def object_types(root: Any) -> set[Any]:
    """Return all structs and dataclasses that a value of type `root` may hold."""
    found: set[Any] = set()
    waiting: list[Any] = [msgspec.inspect.type_info(root)]
    while waiting:
        match waiting.pop():
            case (
                msgspec.inspect.StructType(cls=cls, fields=fields)
                | msgspec.inspect.DataclassType(cls=cls, fields=fields)
            ) if cls not in found:
                found.add(cls)
                waiting += [field.type for field in fields]
            case msgspec.inspect.UnionType(types=types):
                waiting += types
            case (
                msgspec.inspect.VarTupleType(item_type=item)
                | msgspec.inspect.ListType(item_type=item)
            ):
                waiting.append(item)
            case msgspec.inspect.Metadata(type=inner):
                waiting.append(inner)
    return found


def _set_presence(definition: Schema, owner: Any) -> None:
    """Write which fields an object must have.

    A message has all of its fields. Only types that omit defaults, and what the page sends, leave
    out those that have their default.
    """
    properties: dict[str, Schema] = definition["properties"]
    config = getattr(owner, "__struct_config__", None)  # dataclasses have none
    omits = (config is not None and config.omit_defaults) or owner in SENT_BY_PAGE
    for name, value in properties.items():
        has_default = "default" in value
        default = value.pop("default", None)
        if has_default and not omits:
            definition["required"].append(name)
        elif has_default and default is None:  # left out rather than null
            (only,) = (each for each in value.pop("anyOf") if each != {"type": "null"})
            value.update(only)
    for name in ABSENT_FROM_OLD_FILES.get(owner.__name__, ()):
        definition["required"].remove(name)


def _leaves(value: Schema) -> Iterator[Schema]:
    """Yield the schemas of a property's numbers, strings and lists."""
    for inner in value.get("anyOf", [value]):
        yield inner
        items = inner.get("items")
        if items:
            yield from _leaves(items)


def _set_bounds(value: Schema, type: str, field: str) -> None:
    def bound(table: dict[str, Any]) -> Any:
        return table.get(f"{type}.{field}", table.get(field))

    match value.get("type"):
        case "integer" | "number" if limits := bound(BOUNDS):
            value.update(minimum=limits[0], maximum=limits[1])
        case "number" if field.endswith("_ms") or field in NOT_NEGATIVE:
            value.update(minimum=0)
        case "string" if field == "cut":
            cuts = [each.name for each in SETTINGS if each.declared.stage == "filter"]
            value.clear()
            value.update(enum=["", *cuts])
        case "string" if limit := bound(CHARS):
            value.update(maxLength=limit)
        case "array" if "prefixItems" in value:  # all of one type
            value.update(items=value.pop("prefixItems")[0])
        case "array" if limits := bound(LENGTHS):
            value.update(minItems=limits[0], maxItems=limits[1])


def with_null(value: Schema, type: str, field: str) -> Schema:
    if field not in NOT_A_NUMBER.get(type, ()):
        return value
    null = {"type": "null"}
    if value["type"] == "array":
        return {**value, "items": {"anyOf": [value["items"], null]}}
    return {"anyOf": [value, null]}


def _use_file_settings(definitions: dict[str, Schema]) -> None:
    """Replace `SamplingParams` by the settings as files have them."""
    whole = definitions["SamplingParams"]
    properties: dict[str, Schema] = whole["properties"]
    numbers: dict[str, Schema] = {}
    for each in SETTINGS:
        minimum, maximum = each.declared.range
        kind = "integer" if each.is_integer else "number"
        numbers[each.name] = {"type": kind, "minimum": minimum, "maximum": maximum}
    properties.update(numbers)
    properties["seed"] = {"anyOf": [numbers["seed"], {"type": "null"}]}
    live = {each.name: numbers[each.name] for each in SETTINGS if each.declared.live}
    filled = {
        each.name: {**numbers[each.name], "default": each.default}
        for each in SETTINGS
        if each.declared.live and each.name not in SETTINGS_OF_VERSION_1
    }
    whole["required"] = [*SETTINGS_OF_VERSION_1, "seed"]
    definitions["FileSettings"] = {
        "type": "object",
        "properties": {**properties, **filled, "seed": SEED},
        "required": [*SETTINGS_OF_VERSION_1, "seed"],
    }
    of_file = {"$ref": "#/$defs/FileSettings"}
    for name in ("Generate", "Accepted", "Updated"):
        definitions[name]["properties"]["params"] = of_file
    definitions["ScheduledUpdate"]["properties"]["params"] = {
        "type": "object",
        "properties": live,
        "required": [],
    }


def _use_saved_request(definitions: dict[str, Schema]) -> None:
    """A file's request is `Generate` without `type` and `id`."""
    request = definitions["Generate"]
    for name in ("type", "id"):
        del request["properties"][name]
    request["required"] = ["params", "capture"]
