"""Record the run that the page plays where no model can run: SmolLM2 on a real server.

python -m e2e.record_run static/replays/smollm2.json.gz
"""

from __future__ import annotations

import sys
from pathlib import Path

from e2e.playground import Playground
from e2e.screenshots import DESKTOP, MODEL, WARM_MS, chromium
from tests.real_weights import real_weights
from tests.serving import serving

PROMPTS = (
    ("What is the capital of France? Answer in one sentence.", 24),
    ("Tell me a story about a fox who finds a lantern.", 48),
)
"""What is asked, and the most tokens of each answer."""
SEED = 7
MAX_BYTES = 250_000


def main(path: Path) -> None:
    with chromium() as browser, serving("--model", real_weights(MODEL)) as url:
        page = browser.new_page(viewport=DESKTOP)
        play = Playground(page, url=url).open()
        page.wait_for_timeout(WARM_MS)
        play.write("Hello", n=2)  # so that the times are those of a server that has answered before
        play.start_new()
        for prompt, n_tokens in PROMPTS:
            play.set(seed=SEED, max_tokens=n_tokens)
            play.ask(prompt)
            play.wait_done()
        page.get_by_role("button", name="Replay: save or open").click()
        with page.expect_download() as download:
            page.locator("#save-packed").click()
        download.value.save_as(path)
    n_bytes = path.stat().st_size
    print(f"{path}  {n_bytes / 1000:.0f} KB")
    if n_bytes > MAX_BYTES:
        raise SystemExit(f"expected at most {MAX_BYTES / 1000:g} KB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
