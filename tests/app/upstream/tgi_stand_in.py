"""A server that answers as Text Generation Inference does, by its docs/openapi.json (3.3.6) and
what its router refuses beyond that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.app.upstream.stand_in import WORDS, Handler, StandIn

EOS = "</s>"
INFO = {
    "model_id": "acme/storyteller",
    "max_concurrent_requests": 128,
    "max_best_of": 2,
    "max_stop_sequences": 4,
    "max_input_tokens": 300,
    "max_total_tokens": 400,
    "validation_workers": 2,
    "max_client_batch_size": 4,
    "router": "text-generation-router",
    "version": "3.3.6",
}
Check = Callable[[Any], bool]


def is_number(low: float, high: float = 1e9) -> Check:
    """Above `low`, and below `high`."""
    return lambda value: type(value) in (int, float) and low < value < high


def is_count(low: int, high: int = 2**63) -> Check:
    """From `low` on, and below `high`."""
    return lambda value: type(value) is int and low <= value < high


def is_bool(value: Any) -> bool:
    return type(value) is bool


def is_stop(value: Any) -> bool:
    is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return is_list and len(value) <= INFO["max_stop_sequences"]


def is_grammar(value: Any) -> bool:
    match value:
        case {"type": "json", "value": {"properties": _}}:
            return True
        case {"type": "json_schema", "value": {"schema": {"properties": _}}}:
            return True
        case {"type": "regex", "value": str()}:
            return True
    return False


PARAMETERS: dict[str, Check] = {
    "temperature": is_number(0),
    "top_k": is_count(1, 2**31),
    "top_p": is_number(0, 1),
    "typical_p": is_number(0, 1),
    "repetition_penalty": is_number(0),
    "frequency_penalty": is_number(-2, 2),
    "seed": is_count(1),
    "stop": is_stop,
    "max_new_tokens": is_count(1, 2**31),
    "top_n_tokens": is_count(1, 6),
    "watermark": is_bool,
    "details": is_bool,
    "do_sample": is_bool,
    "grammar": is_grammar,
}
CHAT: dict[str, Check] = {
    "model": lambda value: value == "tgi",  # anything else is the name of an adapter
    "messages": lambda value: isinstance(value, list) and bool(value),
    "stream": is_bool,
    "stream_options": lambda value: value == {"include_usage": True},
    "temperature": is_number(-1e-9),
    "top_p": is_number(0, 1),
    "frequency_penalty": is_number(-2, 2),
    "seed": is_count(1),
    "stop": is_stop,
    "max_tokens": is_count(1, 2**31),
    "logprobs": is_bool,
    "top_logprobs": is_count(0, 6),
    "response_format": is_grammar,
}
"""It takes a presence_penalty, too, and adds 2 to it for its repetition penalty: nobody should send
one."""


class TgiStandIn(StandIn):
    """`words`: the text that it writes. `tail`: events in place of the end."""

    def __init__(self, info: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.info = INFO if info is None else info
        self.models = {"data": [{"id": INFO["model_id"], "owned_by": INFO["model_id"]}]}
        self.words: Sequence[str] = WORDS
        self.tail: list[Any] | None = None
        self.answer_get = self._get
        self.answer = self._post

    def _get(self, handler: Handler) -> None:
        answers = {"/info": self.info, "/v1/models": self.models}
        found = answers.get(handler.path)
        handler.json(404, {"error": "not found"}) if not found else handler.json(200, found)

    def _post(self, handler: Handler) -> None:
        if handler.path == "/generate_stream":
            self._generate(handler, handler.body["inputs"], handler.body["parameters"])
        elif handler.path == "/v1/chat/completions":
            self._chat(handler, handler.body)
        else:
            handler.json(404, {"error": "not found"})

    # ---- /generate_stream --------------------------------------------------------------------

    def _generate(self, handler: Handler, inputs: str, parameters: dict[str, Any]) -> None:
        handler.begin_stream()
        if wrong := wrong_field(parameters, PARAMETERS) or ("" if inputs else "inputs"):
            handler.send_event(error(f"Input validation error: `{wrong}`", "validation"))
            return
        asks = parameters.get("details", False)
        n_top = parameters.get("top_n_tokens", 0)
        texts, reason = self._written(parameters.get("max_new_tokens"), parameters.get("stop"))
        for i, text in enumerate(texts):
            event: dict[str, Any] = {
                "index": i + 1,
                "token": native_token(text, -2.5),
                "generated_text": None,
                "details": None,
            }
            if n_top:
                best = native_token(" the", -0.1), native_token(text, -2.5), native_token("x", None)
                event["top_tokens"] = best[:n_top]
            if i == len(texts) - 1:
                if self.tail is not None:
                    break
                details = {"finish_reason": reason, "generated_tokens": i + 1, "input_length": 7}
                whole = "".join(one for one in texts if one != EOS)
                event |= {"generated_text": whole, "details": details if asks else None}
            handler.send_event(event)
        for each in self.tail or ():
            handler.send_event(each)

    def _written(self, limit: int | None, stop: list[str] | None) -> tuple[list[str], str]:
        """Return the tokens and why they end. A stop string is left in the text, and seen only at
        the end of a token."""
        texts: list[str] = []
        for word in (*self.words, EOS):
            texts.append(word)
            if word == EOS:
                return texts, "eos_token"
            if any("".join(texts).endswith(each) for each in stop or ()):
                return texts, "stop_sequence"
            if len(texts) == limit:
                break
        return texts, "length"

    # ---- /v1/chat/completions ----------------------------------------------------------------

    def _chat(self, handler: Handler, body: dict[str, Any]) -> None:
        handler.begin_stream()
        if wrong := wrong_field(body, CHAT):
            message = {"message": f"Input validation error: `{wrong}`", "http_status_code": 422}
            handler.send_event({"error": message})
            return
        texts, reason = self._written(body.get("max_tokens"), body.get("stop"))
        for i, text in enumerate(texts):
            told = {"token": text, "logprob": -2.5}
            top = [{"token": " the", "logprob": -0.1}, told][: body.get("top_logprobs", 0)]
            is_last = i == len(texts) - 1
            finish = "stop" if reason == "eos_token" else reason
            choice = {
                "index": 0,
                "delta": {"role": "assistant", "content": "" if text == EOS else text},
                "logprobs": {"content": [told | {"top_logprobs": top}]},
                "finish_reason": finish if is_last else None,
            }
            handler.send_event({"choices": [choice], "usage": None})
        usage = {"prompt_tokens": 7, "completion_tokens": len(texts), "total_tokens": 0}
        handler.send_event({"choices": [], "usage": usage})
        handler.send_event(b"[DONE]")


def native_token(text: str, logprob: float | None) -> dict[str, Any]:
    id = sum(text.encode())
    return {"id": id, "text": text, "logprob": logprob, "special": text == EOS}


def error(message: str, kind: str) -> dict[str, str]:
    """Return an error as streams and answers have it."""
    return {"error": message, "error_type": kind}


def wrong_field(given: dict[str, Any], checks: dict[str, Check]) -> str | None:
    """Return the first field that is unknown or has a value that is refused."""
    fields = given.items()
    return next((k for k, v in fields if k not in checks or not checks[k](v)), None)
