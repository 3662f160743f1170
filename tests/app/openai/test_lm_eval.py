"""lm-evaluation-harness against `/v1/completions`, on a task of ten lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.app.openai.conftest import MODEL

REASON = "lm_eval is not installed: pip install 'lm_eval[api]'"
lm_eval = pytest.importorskip("lm_eval", reason=REASON)
tasks = pytest.importorskip("lm_eval.tasks", reason=REASON)

pytestmark = pytest.mark.slow

ENDS = ["forest", "garden", "house", "river", "tree", "box", "cat", "sun", "park", "bed"]
TASK = """\
task: ten_lines
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""


def lines() -> list[dict[str, Any]]:
    """Return questions whose right answer is a sentence of the model's stories."""
    return [
        {
            "text": f"Once upon a time, a little fox lived near the {end}. One day,",
            "choices": ["he saw a big bird.", "seven of tax law but."],
            "label": 0,
        }
        for end in ENDS
    ]


@pytest.mark.parametrize("batch_size", [1, 8])
def test_multiple_choice(client: openai.OpenAI, url: str, tmp_path: Path, batch_size: int) -> None:
    data = tmp_path / "lines.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines()))
    (tmp_path / "ten_lines.yaml").write_text(TASK.replace("FILE", str(data)))
    arguments = {
        "model": MODEL,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "remote",
        "max_length": 1024,
        "batch_size": batch_size,
    }
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=arguments,
        tasks=["ten_lines"],
        task_manager=tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    samples = found["samples"]["ten_lines"]
    assert found["results"]["ten_lines"]["acc,none"] == 1.0
    for sample, line in zip(samples, lines(), strict=True):
        for (value, _), choice in zip(sample["filtered_resps"], line["choices"], strict=True):
            assert value == pytest.approx(own_logprob(client, line["text"], choice), abs=1e-3)


def own_logprob(client: openai.OpenAI, text: str, choice: str) -> float:
    """Return the log-probability of a choice after a text, from the tokens that begin in it."""
    whole = f"{text} {choice}"
    answer = client.completions.create(
        model=MODEL, prompt=whole, max_tokens=0, echo=True, logprobs=1
    )
    lists = answer.choices[0].logprobs
    assert lists is not None
    places = zip(lists.text_offset or [], lists.token_logprobs or [], strict=True)
    return sum(value for at, value in places if at >= len(text))
