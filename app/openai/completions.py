"""`POST /v1/completions`: continuations of one prompt or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from flask import Response, jsonify

from app.engine_client import EngineClient, Tokenizer
from app.http.client_limits import place, salted, submitter
from app.http.disconnect import client_gone
from app.http.questions import ask_in_turn
from app.openai.body import decode_body
from app.openai.choices import Submit
from app.openai.completion_answers import stream, whole, whole_answer
from app.openai.completion_format import CompletionFormat, Echo, WholeChoice, completion_format
from app.openai.generations import Generations
from app.openai.inputs import Input, expect_fits, input_ids, inputs_of
from app.openai.logprobs import TextLogprobs, prompt_logprobs
from app.openai.long_requests import turn_to_read
from app.openai.schema import ChatRequest, CompletionRequest, check_changed, check_logprobs
from app.openai.serving import AnswerOptions, serve
from app.openai.structured_outputs import Constraint
from app.protocol.messages import Hello
from gpu import Interventions, InterventionSpan, Request
from gpu.events import Done, Timings
from gpu.inspection.requests import Losses

NOTHING_RUN = Timings(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Prompt:
    """Prompt of a request, as it was given and as token ids."""

    given: Input
    ids: list[int]

    def text(self, tokenizer: Tokenizer) -> str:
        return self.given if isinstance(self.given, str) else tokenizer.decode(self.ids)

    def offsets(self, tokenizer: Tokenizer) -> list[int]:
        """Return where in the text each token begins."""
        if isinstance(self.given, str):
            return [begin for begin, _ in tokenizer.encode_with_offsets(self.given)[1]]
        offsets, at = [], -tokenizer.n_stripped_spaces
        for id in self.ids:
            offsets.append(max(0, at))
            at += sum(byte & 0xC0 != 0x80 for byte in tokenizer.token_bytes(id))  # UTF-8 characters
        return offsets


def complete(engine: EngineClient, generations: Generations) -> Response:
    """Answer the request of this route."""
    hello, tokenizer, submit = engine.require_ready(), engine.tokenizer, submitter(engine)
    body = decode_body(CompletionRequest)
    interventions = body.interventions(hello.model)
    params = body.params(hello.api_defaults, hello.limits.context)
    check_logprobs(body.n_top, params, "logprobs")
    with turn_to_read(engine):
        prompts = _prompts(tokenizer, hello, body)
    engine.expect_tokenizer(tokenizer)
    echoes = _echoes(engine, prompts, body, interventions)
    logprobs = None
    if body.n_top is not None:
        begins = [len(echo.text) for echo in echoes] or [0] * len(prompts)
        logprobs = [
            TextLogprobs(tokenizer, params, body.n_top, begin)
            for begin in begins
            for _ in range(body.n_runs)
        ]
    response = completion_format(
        body.model or hello.model.name,
        echoes,
        logprobs,
        n_runs=body.n_runs,
        token_ids=body.return_token_ids,
    )
    if not body.writes:
        return _without_runs(prompts, response, body, params.seed or 0)
    requests = [body.run(one.ids, params, interventions, body.truncation) for one in prompts]
    return answer_request(engine, submit, generations, requests, response, body, body.constraint())


def answer_request(
    engine: EngineClient,
    submit: Submit,
    generations: Generations,
    requests: Sequence[Request],
    response: CompletionFormat,
    body: CompletionRequest | ChatRequest,
    constraint: Constraint | None,
) -> Response:
    """Run the requests, one for each prompt, and answer with the whole texts or with a stream."""
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    answering = AnswerOptions(
        response.id,
        partial(whole, response=response, n=body.n or 1),
        partial(stream, response=response, with_usage=with_usage) if body.stream else None,
        body.n_runs,
        partial(check_changed, body.n_top, requests[0].params),
        constraint,
    )
    return serve(engine, submit, generations, requests, answering)


def _prompts(tokenizer: Tokenizer, hello: Hello, body: CompletionRequest) -> list[Prompt]:
    """Return the prompts. Raises `InvalidRequest`, and `InputTooLongError` for one that nothing
    else would check."""
    inputs, prompts = inputs_of(body.prompt, "prompt"), []
    for i, given in enumerate(inputs):
        param = "prompt" if len(inputs) == 1 else f"prompt[{i}]"
        prompt = Prompt(given, input_ids(tokenizer, hello.model.vocab_size, given, param))
        if body.scores_prompt or not body.writes:
            expect_fits(prompt.ids, hello.limits.context, param)
        prompts.append(prompt)
    return prompts


def _echoes(
    engine: EngineClient,
    prompts: Sequence[Prompt],
    body: CompletionRequest,
    interventions: Interventions,
) -> list[Echo]:
    """Return the prompts as the answer repeats them; [] if it does not. Log-probabilities are
    computed between the steps of what is being written."""
    if not body.echo:
        return []
    tokenizer = engine.tokenizer
    texts = [prompt.text(tokenizer) for prompt in prompts]
    if body.logprobs is None:
        return [Echo(text) for text in texts]
    spans = (InterventionSpan(0, interventions),) if interventions.loras else ()
    salt = body.cache_salt or ""
    asked = [
        Losses(one.ids, max(1, body.logprobs), spans=spans, cache_salt=salt) for one in prompts
    ]
    with place(engine):
        questions = [salted(one) for one in asked if len(one.ids) > 1]
        answers = iter(list(ask_in_turn(engine, questions, client_gone())))
    echoes = []
    for prompt, text in zip(prompts, texts, strict=True):
        losses = next(answers) if len(prompt.ids) > 1 else None
        offsets = prompt.offsets(tokenizer)
        logprobs = prompt_logprobs(tokenizer, prompt.ids, offsets, losses, body.logprobs)
        echoes.append(Echo(text, logprobs))
    return echoes


def _without_runs(
    prompts: Sequence[Prompt], response: CompletionFormat, body: CompletionRequest, seed: int
) -> Response:
    """Answer a request for no tokens."""
    written = [
        WholeChoice(i, [], Done("length", len(prompts[i // body.n_runs].ids), 0, NOTHING_RUN))
        for i in range(len(prompts) * body.n_runs)
    ]
    return jsonify(whole_answer(written, response, body.n or 1, lambda i: seed))
