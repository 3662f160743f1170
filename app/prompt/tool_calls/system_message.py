"""Models whose chat template has no tools: the system message describes them, in the words and the
form of Hermes (Qwen 2.5's template has the same). Results of calls go into a message of the user,
as there, because such templates know no role for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app.prompt.conversation import Tool, Turn
from app.prompt.tool_calls.hermes import Hermes

DESCRIPTION = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class SystemMessage(Hermes):
    name = "Hermes in the system message"

    def writes_like(self, template: str) -> bool:
        """Return False: it is for the templates that mention no tools at all."""
        return False

    def conversation(
        self, turns: Sequence[Turn], tools: Sequence[Tool], template: str
    ) -> list[Turn]:
        """Return the turns with the descriptions of `tools`, calls and results in contents. Results
        of one message's calls are one message."""
        written: list[Turn] = []
        follows_result = False
        for turn in turns:
            is_result = turn["role"] == "tool"
            if is_result and follows_result:
                content = f"{written[-1]['content']}\n{_result(turn)}"
                written[-1] = {"role": "user", "content": content}
            elif is_result:
                written.append({"role": "user", "content": _result(turn)})
            else:
                written.append(_with_calls(turn))
            follows_result = is_result
        return _described(written, tools) if tools else written


def _result(turn: Turn) -> str:
    return f"<tool_response>\n{turn['content']}\n</tool_response>"


def _with_calls(turn: Turn) -> Turn:
    """Return a turn with its calls in the content, as the model writes them."""
    calls = [_call(call["function"]) for call in turn.get("tool_calls", ())]
    content = "\n".join([*([turn["content"]] if turn["content"] or not calls else []), *calls])
    return {"role": turn["role"], "content": content}


def _call(function: dict[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _described(turns: list[Turn], tools: Sequence[Tool]) -> list[Turn]:
    """Return the turns with the descriptions of `tools` at the end of the system message."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    description = DESCRIPTION.format(tools=lines)
    if turns and turns[0]["role"] == "system":
        content = f"{turns[0]['content']}\n\n{description}"
        return [{"role": "system", "content": content}, *turns[1:]]
    return [{"role": "system", "content": description}, *turns]
