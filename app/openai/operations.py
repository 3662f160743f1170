"""The routes of the HTTP API as `/openapi.json` describes them, with the schemas of their answers.

A schema names the fields that an answer always has; answers may have more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.openai.embeddings import EmbeddingRequest
from app.openai.responses_request import ResponsesRequest
from app.openai.schema import ChatRequest, CompletionRequest
from app.openai.text_routes import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from app.openai.watermark import WatermarkRequest
from app.protocol.messages import SamplingUpdate

Schema = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """A route.

    answer      schema of the answer with status 200; None for text that is not JSON
    body        struct that decodes the request's body; None if it has none
    streams     the answer may be server-sent events instead
    errors      statuses of its errors, apart from 401 and 403
    """

    method: str
    path: str
    summary: str
    answer: Schema | None
    body: type[msgspec.Struct] | None = None
    streams: bool = False
    errors: tuple[int, ...] = ()


def _object(**properties: Schema) -> Schema:
    """Return the schema of an object that has at least these fields."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


STRING: Schema = {"type": "string"}
STRING_OR_NULL: Schema = {"type": ["string", "null"]}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}

ERROR = _object(
    error=_object(message=STRING, type=STRING, param=STRING_OR_NULL, code=STRING_OR_NULL)
)
USAGE = _object(
    prompt_tokens=INTEGER,
    completion_tokens=INTEGER,
    total_tokens=INTEGER,
    prompt_tokens_details=_object(cached_tokens=INTEGER, moved_tokens=INTEGER),
)
TIMINGS = _object(
    cache_n=INTEGER,
    cache_moved_n=INTEGER,
    prompt_n=INTEGER,
    prompt_ms=NUMBER,
    prompt_per_second=NUMBER,
    predicted_n=INTEGER,
    predicted_ms=NUMBER,
    predicted_per_second=NUMBER,
    queue_ms=NUMBER,
    ttft_ms=NUMBER,
    tpot_ms=NUMBER,
)
MODEL = _object(id=STRING, object={"const": "model"}, created=INTEGER, owned_by=STRING)
TOOL_CALL = _object(
    id=STRING, type={"const": "function"}, function=_object(name=STRING, arguments=STRING)
)
MESSAGE = _object(role={"const": "assistant"}, content=STRING_OR_NULL, refusal={"type": "null"})
MESSAGE["properties"]["tool_calls"] = _list(TOOL_CALL)


def _answer(kind: str, reasons: Sequence[str], **choice: Schema) -> Schema:
    """Return the schema of a completion whose choices have these fields and end for `reasons`."""
    entry = _object(
        index=INTEGER,
        **choice,
        logprobs={"type": ["object", "null"]},
        finish_reason={"enum": list(reasons)},
    )
    return _object(
        id=STRING,
        object={"const": kind},
        created=INTEGER,
        model=STRING,
        choices=_list(entry),
        usage=USAGE,
        timings=TIMINGS,
        seed=INTEGER,
    )


ENDS = ("stop", "length")
VECTOR = _object(
    object={"const": "embedding"},
    index=INTEGER,
    embedding={"anyOf": [_list(NUMBER), STRING]},
)

MESSAGE_ITEM = _object(
    id=STRING,
    type={"const": "message"},
    role={"const": "assistant"},
    status={"enum": ["completed", "incomplete"]},
    content=_list(_object(type={"const": "output_text"}, text=STRING)),
)
RESPONSE = _object(
    id=STRING,
    object={"const": "response"},
    created_at=INTEGER,
    status={"enum": ["completed", "incomplete"]},
    model=STRING,
    output=_list(MESSAGE_ITEM),
    store={"const": False},
    usage=_object(
        input_tokens=INTEGER,
        input_tokens_details=_object(cached_tokens=INTEGER),
        output_tokens=INTEGER,
        output_tokens_details=_object(reasoning_tokens=INTEGER),
        total_tokens=INTEGER,
    ),
    timings=TIMINGS,
    seed=INTEGER,
)

RUN_ERRORS = (400, 404, 413, 429, 503)
TEXT_ERRORS = (400, 413, 429, 503)

OPERATIONS = (
    Operation("get", "/health", "Whether the engine is ready", _object(status=STRING)),
    Operation("get", "/metrics", "Figures for Prometheus", None),
    Operation("get", "/openapi.json", "This document", OBJECT),
    Operation(
        "get",
        "/v1/models",
        "The loaded model and its adapters",
        _object(object={"const": "list"}, data=_list(MODEL)),
        errors=(503,),
    ),
    Operation(
        "get", "/v1/models/{name}", "The loaded model, or one adapter", MODEL, errors=(404, 503)
    ),
    Operation(
        "post",
        "/v1/completions",
        "Continue a prompt",
        _answer("text_completion", ENDS, text=STRING),
        body=CompletionRequest,
        streams=True,
        errors=RUN_ERRORS,
    ),
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a conversation",
        _answer("chat.completion", (*ENDS, "tool_calls"), message=MESSAGE),
        body=ChatRequest,
        streams=True,
        errors=RUN_ERRORS,
    ),
    Operation(
        "post",
        "/v1/responses",
        "Answer a text or a conversation, without stored state",
        RESPONSE,
        body=ResponsesRequest,
        streams=True,
        errors=RUN_ERRORS,
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "Vectors of texts",
        _object(
            object={"const": "list"},
            data=_list(VECTOR),
            model=STRING,
            usage=_object(prompt_tokens=INTEGER, total_tokens=INTEGER),
        ),
        body=EmbeddingRequest,
        errors=RUN_ERRORS,
    ),
    Operation(
        "post",
        "/v1/generations/{id}/params",
        "Change the sampling settings of an answer while it is written",
        _object(id=STRING, choices=_list(_object(index=INTEGER, first_token=INTEGER))),
        body=SamplingUpdate,
        errors=(400, 404, 413, 503),
    ),
    Operation(
        "post",
        "/tokenize",
        "Token ids of a text or a conversation",
        _object(
            tokens=_list({"anyOf": [INTEGER, _object(id=INTEGER)]}),
            count=INTEGER,
            max_model_len=INTEGER,
        ),
        body=TokenizeRequest,
        errors=TEXT_ERRORS,
    ),
    Operation(
        "post",
        "/detokenize",
        "The text of token ids",
        _object(content=STRING, prompt=STRING),
        body=DetokenizeRequest,
        errors=TEXT_ERRORS,
    ),
    Operation(
        "post",
        "/watermark",
        "Whether a text has a watermark",
        _object(
            num_tokens_scored=INTEGER,
            num_green_tokens=INTEGER,
            green_fraction=NUMBER,
            z_score=NUMBER,
            p_value=NUMBER,
            prediction=BOOLEAN,
            confidence=NUMBER,
            tokens=_list(_object(id=INTEGER, piece=STRING)),
        ),
        body=WatermarkRequest,
        errors=TEXT_ERRORS,
    ),
    Operation(
        "get",
        "/tokenizer_info",
        "Names of the special tokens, and the chat template",
        _object(
            bos_token=STRING_OR_NULL,
            eos_token=STRING_OR_NULL,
            chat_template=STRING_OR_NULL,
            vocab_size=INTEGER,
        ),
        errors=(503,),
    ),
    Operation(
        "post",
        "/apply-template",
        "The prompt that the chat template makes of messages",
        _object(prompt=STRING),
        body=ApplyTemplateRequest,
        errors=TEXT_ERRORS,
    ),
)
