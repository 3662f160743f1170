"""Write the model card, the training record and the loss curve from the measurements.

    python -m tests.tale.card --run FOLDER...  # after training: card, record and curve
    python -m tests.tale.card                  # after an evaluation: the card only

Every figure in the card comes from `evaluation.json`, `training.json` or `config.json`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from app.tale import model_dir
from tests.tale.picture import loss_curve

TEMPLATE = Path(__file__).parent / "data" / "card.md"


def read_logs(runs: list[Path]) -> list[dict[str, float]]:
    """Return the reports of consecutive runs, with steps, tokens and seconds added up."""
    reports: list[dict[str, float]] = []
    for run in runs:
        before = reports[-1] if reports else {}
        for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines():
            report: dict[str, float] = json.loads(line)
            for counter in ("step", "tokens", "seconds"):
                report[counter] += before.get(counter, 0)
            reports.append(report)
    return reports


def training_record(runs: list[Path]) -> dict[str, Any]:
    """Return the content of training.json for these runs."""
    log = read_logs(runs)
    last = log[-1]
    return {
        "steps": last["step"],
        "tokens": last["tokens"],
        "minutes": round(last["seconds"] / 60, 1),
        "tokens_per_second": round(last["tokens"] / last["seconds"]),
        "final_train_loss": last["train_loss"],
        "final_held_out_loss": last["held_out_loss"],
        "curve": [[round(r["tokens"] / 1e6, 3), r["train_loss"], r["held_out_loss"]] for r in log],
    }


def read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


def render(folder: Path) -> str:
    """Return the model card of the model in `folder`."""
    evaluation, training = read(folder, "evaluation.json"), read(folder, "training.json")
    config = read(folder, "config.json")
    stories, asked = evaluation["stories"], evaluation["questions"]
    chats, variety = evaluation["chats"], evaluation["variety"]
    return TEMPLATE.read_text(encoding="utf-8").format(
        config=config,
        evaluation=evaluation,
        training=training,
        stories=stories,
        asked=asked,
        chats=chats,
        variety=variety,
        unseen=evaluation["unseen_words"],
        text=evaluation["held_out_text"],
        megabytes=evaluation["weights_bytes"] / 1e6,
        millions=evaluation["parameters"] / 1e6,
        tokens=training["tokens"] / 1e6,
        story_samples="\n\n".join(_story(s) for s in stories["samples"]),
        answer_samples="\n\n".join(_answer(s) for s in asked["samples"]),
    )


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines())


def _story(sample: dict[str, str]) -> str:
    return f"**{sample['request']}**\n\n{_quote(sample['story'])}"


def _answer(sample: dict[str, str]) -> str:
    return f"**{sample['question']}**\n\n{_quote(sample['answer'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", type=Path, nargs="+", help="folders of the training runs, in order"
    )
    options = parser.parse_args()
    folder = model_dir()
    if options.run is not None:
        record = training_record(options.run)
        text = json.dumps(record, indent=1) + "\n"
        (folder / "training.json").write_text(text, encoding="utf-8")
        curve = record["curve"]
        picture = loss_curve([(x, y) for x, y, _ in curve], [(x, y) for x, _, y in curve])
        (folder / "loss.svg").write_text(picture, encoding="utf-8")
    if (folder / "evaluation.json").exists():
        (folder / "README.md").write_text(render(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
