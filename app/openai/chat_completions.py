"""`POST /v1/chat/completions`: answers to conversations, with tools and structured outputs."""

from __future__ import annotations

from functools import partial

from flask import Response

from app.engine_client import EngineClient, Tokenizer
from app.http.client_limits import submitter
from app.openai.body import decode_body
from app.openai.completion_format import chat_format
from app.openai.completions import answer_request
from app.openai.generations import Generations
from app.openai.logprobs import ChatLogprobs
from app.openai.long_requests import turn_to_read
from app.openai.schema import ChatRequest, check_logprobs
from app.openai.structured_outputs import Constraint
from app.prompt.conversation import Tool
from app.prompt.prompts import message_ids
from app.prompt.tool_calls.writer import ToolCallWriter
from app.prompt.tools import call_grammar, call_writer, required_tools
from app.prompt.truncation import Room, read_conversation


def complete_chat(engine: EngineClient, generations: Generations) -> Response:
    """Answer `POST /v1/chat/completions`. Raises InvalidRequest."""
    hello, submit = engine.require_ready(), submitter(engine)
    body = decode_body(ChatRequest)
    interventions = body.interventions(hello.model)
    params = body.params(hello.api_defaults, hello.limits.context)
    check_logprobs(body.n_top, params, "top_logprobs")
    tools = body.offered_tools()
    encode = partial(
        message_ids, engine.tokenizer, continue_final=body.continue_final_message, tools=tools
    )
    room = Room(hello.limits.context, params.max_tokens)
    with turn_to_read(engine):
        prompt = read_conversation(body.turns(), encode, room, body.truncation)
    logprobs = None
    if body.n_top is not None:
        logprobs = [ChatLogprobs(engine.tokenizer, params, body.n_top)] * body.n_runs
    writers = _tool_call_writers(engine.tokenizer, tools, body) if tools else None
    name = body.model or hello.model.name
    response = chat_format(
        name, logprobs, writers, len(prompt.dropped), body.n_runs, token_ids=body.return_token_ids
    )
    constraint = body.constraint() or _required_calls(engine.tokenizer, tools, body)
    request = body.run(prompt.ids, params, interventions, body.truncation)
    return answer_request(engine, submit, generations, [request], response, body, constraint)


def _required_calls(
    tokenizer: Tokenizer, tools: list[Tool], body: ChatRequest
) -> Constraint | None:
    """Return the grammar of the calls that the model must write; None if it need not call."""
    required = required_tools(tools, body.tool_choice)
    if not required:
        return None
    parallel = body.parallel_tool_calls is not False and body.tool_choice == "required"
    return Constraint(call_grammar(tokenizer, required, parallel), "tool_choice")


def _tool_call_writers(
    tokenizer: Tokenizer, tools: list[Tool], body: ChatRequest
) -> list[ToolCallWriter]:
    """Return a writer for each choice."""
    parallel = body.parallel_tool_calls is not False
    return [call_writer(tokenizer, tools, parallel) for _ in range(body.n_runs)]
