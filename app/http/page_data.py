"""JSON that the server writes into the page, in script elements that hold data and run nothing."""

from __future__ import annotations

import json
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from app.config import Settings
from app.protocol.messages import MAX_MESSAGE_BYTES, MAX_QUESTIONS, MESSAGE_BYTES, UPDATE_SECONDS
from app.protocol.replay_format import MAX_FILES, MAX_NAME_CHARS, replay_schema
from gpu import (
    FACTORS,
    GREEDY_BELOW,
    LEAST_PACE,
    MAX_BIAS,
    MAX_INTERVENTION_CHARS,
    MAX_INTERVENTION_TOKENS,
    MAX_LOGIT_BIASES,
    MAX_PATCHES,
    MAX_STEERS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MOST_PACE,
    MOST_PACED_STEPS,
    SAMPLING_SETTINGS,
    STRENGTHS,
    SamplingSetting,
)
from gpu.inspection.requests import (
    MAX_ANSWER_BYTES,
    MAX_BEAM_DEPTH,
    MAX_BEAM_WIDTH,
    MAX_LENGTH_PENALTY,
    MAX_REPEAT,
    MAX_TOP,
)


def page_data() -> dict[str, Markup]:
    """Return the data of templates/index.html by the id of its script element."""
    data = {
        "sampling-data": sampling_data(),
        "limits-data": limits_data(),
        "replay-schema": replay_schema(),
    }
    # The template filter `tojson` would sort the fields, whose order errors and saved files have.
    return {
        id: htmlsafe_json_dumps(value, json.dumps, separators=(",", ":"))
        for id, value in data.items()
    }


def sampling_data() -> dict[str, Any]:
    """Return the sampling settings for static/js/settings/sampling-settings.js, and for the engine
    in the browser (static/js/local/request-checks.js) what it also needs to check a request.

    The seed is left out of `settings`, because its range is not exact in JavaScript's numbers, and
    `first_index` because people never set it.
    """
    listed = {setting.name: setting for setting in SAMPLING_SETTINGS}
    seed = listed.pop("seed")
    first_index = listed.pop("first_index")
    return {
        "settings": [_setting_data(setting) for setting in listed.values()],
        "meanings": {each.name: each.declared.meaning for each in SAMPLING_SETTINGS},
        "max_seed": str(seed.declared.range[1]),
        "max_first_index": first_index.declared.range[1],
        "max_stop_strings": MAX_STOP_STRINGS,
        "max_stop_chars": MAX_STOP_CHARS,
        "max_logit_biases": MAX_LOGIT_BIASES,
        "max_bias": MAX_BIAS,
        "greedy_below": GREEDY_BELOW,
    }


def limits_data() -> dict[str, Any]:
    """Return the limits on requests, for the controls of the page and the engine in the browser."""
    return {
        "interventions": {
            "factor": FACTORS,
            "strength": STRENGTHS,
            "steers": MAX_STEERS,
            "patches": MAX_PATCHES,
            "text_tokens": MAX_INTERVENTION_TOKENS,
            "text_chars": MAX_INTERVENTION_CHARS,
        },
        "files": {"most": MAX_FILES, "name_chars": MAX_NAME_CHARS},
        "pace": {"rate": (LEAST_PACE, MOST_PACE), "steps": MOST_PACED_STEPS},
        "questions": {
            "at_once": MAX_QUESTIONS,
            "top": MAX_TOP,
            "answer_bytes": MAX_ANSWER_BYTES,
            "repeat": MAX_REPEAT,
            "beam_width": MAX_BEAM_WIDTH,
            "beam_depth": MAX_BEAM_DEPTH,
            "length_penalty": MAX_LENGTH_PENALTY,
        },
        "session": {
            "queue": Settings().queue,
            "update_seconds": UPDATE_SECONDS,
            "message_bytes": MESSAGE_BYTES,
            "max_message_bytes": MAX_MESSAGE_BYTES,
        },
    }


def _setting_data(setting: SamplingSetting) -> dict[str, Any]:
    declared = setting.declared
    minimum, maximum = declared.range
    slider, off = declared.slider, declared.off
    return {
        "name": setting.name,
        "label": declared.label,
        "help": declared.help,
        "integer": setting.is_integer,
        "min": minimum,
        "max": maximum,
        "initial": setting.default,
        "live": declared.live,
        "stage": declared.stage,
        "neutral": declared.neutral,
        "off": None if off is None else {"value": off[0], "words": off[1]},
        "slider": None
        if slider is None
        else {"min": slider.minimum, "max": slider.maximum, "step": slider.step},
    }
