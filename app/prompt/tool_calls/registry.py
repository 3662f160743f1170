"""Choice of the tool-call format of a chat template, from the template's text; there is no option
like vLLM's `--tool-call-parser`. A template without tools gets them in the system message."""

from __future__ import annotations

import re

from app.prompt.tool_calls.granite import Granite
from app.prompt.tool_calls.hermes import Hermes
from app.prompt.tool_calls.llama import Llama
from app.prompt.tool_calls.mistral import Mistral
from app.prompt.tool_calls.system_message import SystemMessage
from app.prompt.tool_calls.tool_format import ToolFormat
from gpu import InvalidRequest

FORMATS: tuple[ToolFormat, ...] = (Mistral(), Granite(), Hermes(), Llama())
SYSTEM_MESSAGE = SystemMessage()
MENTIONS_TOOLS = re.compile(r"\btools\b")


def tool_format(template: str) -> ToolFormat:
    """Return the form in which models with this chat template call tools.

    Raises InvalidRequest if the template has tools in a form that is none of those known.
    """
    if not MENTIONS_TOOLS.search(template):
        return SYSTEM_MESSAGE
    for form in FORMATS:
        if form.writes_like(template):
            return form
    known = ", ".join(form.name for form in FORMATS)
    raise InvalidRequest(
        "this model's chat template writes tool calls in a form that is not known here; known: "
        f"{known}. Load another model, or leave tools out",
        "tools",
    )
