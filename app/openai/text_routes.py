"""`/tokenize`, `/detokenize`, `/tokenizer_info` and `/apply-template`: what the model makes of a
text, without a run.

Names of fields are those of llama-server and of vLLM, so clients of either can use them. An answer
has the fields of both.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from flask import Flask, Response, jsonify

from app.engine_client import EngineClient, Tokenizer
from app.openai.body import decode_body
from app.openai.inputs import check_ids
from app.openai.long_requests import turn_to_read
from app.openai.messages import ChatMessage, check_template_fields, turns_of
from app.prompt.prompts import message_ids, render_prompt
from app.prompt.tools import offered_tools
from app.protocol.tools import Tool
from gpu import InvalidRequest

MAX_IDS = 1 << 20
TokenId = Annotated[int, msgspec.Meta(ge=0)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(max_length=MAX_IDS)]


class TokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of `content` (llama-server), `prompt` and `messages` (vLLM).

    add_special, add_special_tokens  begin with the model's first token, if it has one; off for
                                     `content`, on for `prompt`, as in those servers
    parse_special                    names of special tokens in the text are special tokens
    tools                            of `messages`, for the chat template
    with_pieces                      every token is an object with its id and its piece
    return_token_strs                the pieces, as a list of their own
    """

    content: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    model: str | None = None
    add_special: bool = False
    add_special_tokens: bool = True
    parse_special: bool = True
    with_pieces: bool = False
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """Return the token ids. Raises InvalidRequest."""
        given = [part for part in (self.content, self.prompt, self.messages) if part is not None]
        if len(given) != 1:
            raise InvalidRequest("expected exactly one of content, prompt and messages", "content")
        if self.tools and self.messages is None:
            raise InvalidRequest(
                "tools belong to messages; leave them out, or send messages", "tools"
            )
        if self.messages is not None:
            check_template_fields(self.add_generation_prompt, self.continue_final_message)
            return message_ids(
                tokenizer,
                turns_of(self.messages),
                self.continue_final_message,
                offered_tools(self.tools or (), None),
            )
        if self.content is not None:
            return tokenizer.encode(self.content, self.add_special, self.parse_special)
        return tokenizer.encode(self.prompt or "", self.add_special_tokens, self.parse_special)


class DetokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: TokenIds
    model: str | None = None


class ApplyTemplateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: list[ChatMessage]
    tools: list[Tool] | None = None
    model: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


def register(app: Flask, engine: EngineClient) -> None:
    """Add the routes. They answer while the engine is ready, as the texts of a model that is being
    changed may be split otherwise."""

    @app.post("/tokenize")
    def tokenize() -> Response:
        hello = engine.require_ready()
        with turn_to_read(engine):
            answer = _tokenized(engine.tokenizer, decode_body(TokenizeRequest))
            answer["max_model_len"] = hello.limits.context
            return Response(msgspec.json.encode(answer), mimetype="application/json")

    @app.post("/detokenize")
    def detokenize() -> Response:
        hello = engine.require_ready()
        with turn_to_read(engine):
            tokens = decode_body(DetokenizeRequest).tokens
            check_ids(tokens, hello.model.vocab_size)
            text = engine.tokenizer.decode(tokens)
            return jsonify(content=text, prompt=text)

    @app.get("/tokenizer_info")
    def tokenizer_info() -> Response:
        """The part of vLLM's answer that clients need to count tokens and to render messages."""
        hello, tokenizer = engine.require_ready(), engine.tokenizer
        return jsonify(
            {"bos_token": None, "eos_token": None}
            | tokenizer.special_tokens
            | {
                "chat_template": tokenizer.chat_template,
                "vocab_size": hello.model.vocab_size,
            }
        )

    @app.post("/apply-template")
    def apply_template() -> Response:
        engine.require_ready()
        body = decode_body(ApplyTemplateRequest)
        check_template_fields(body.add_generation_prompt, body.continue_final_message)
        with turn_to_read(engine):
            rendered = render_prompt(
                engine.tokenizer,
                turns_of(body.messages),
                body.continue_final_message,
                offered_tools(body.tools or (), None),
            )
        return jsonify(prompt="".join(part.text for part in rendered.parts))


def _tokenized(tokenizer: Tokenizer, body: TokenizeRequest) -> dict[str, Any]:
    ids = body.ids(tokenizer)
    tokens: list[Any] = ids
    if body.with_pieces:
        tokens = [{"id": id, "piece": _piece(tokenizer, id)} for id in ids]
    answer: dict[str, Any] = {"tokens": tokens, "count": len(ids)}
    if body.return_token_strs:
        answer["token_strs"] = [tokenizer.piece(id) for id in ids]
    return answer


def _piece(tokenizer: Tokenizer, id: int) -> str | list[int]:
    """Return the text of a token, or its bytes if they are part of a character."""
    data = tokenizer.token_bytes(id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
