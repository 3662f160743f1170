"""`python -m tests.mutants`: check that every mutant is noticed. Exit status 1: some are not."""

from __future__ import annotations

import argparse
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

from tests.mutants.cases import ROOMS
from tests.mutants.checkout import copied_checkout
from tests.mutants.mutant import Mutant, StaleMutant
from tests.mutants.report import read_report, report
from tests.mutants.running import LIMIT_SECONDS, Jury, UnsoundRun, Verdict


class Results:
    """Verdicts so far, written to the report after each of them."""

    def __init__(self, path: Path | None, *, fresh: bool) -> None:
        self.verdicts = read_report(path) if path and not fresh else {}
        self._path = path
        self._lock = threading.Lock()

    def add(self, mutant: Mutant, verdict: Verdict) -> None:
        with self._lock:
            self.verdicts[mutant.key] = verdict
            self.write()

    def write(self) -> None:
        if self._path:
            self._path.write_text(report(ROOMS, self.verdicts), "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants that have no result yet; print and report all."""
    options = _parser().parse_args(arguments)
    chosen = _chosen(options.only)
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:32} {mutant.file}: {mutant.breaks}")
        return 0
    results = Results(options.report, fresh=options.fresh)
    results.write()
    todo = [m for m in chosen if m.key not in results.verdicts or options.only]
    print(f"{len(chosen)} mutants, {len(todo)} of them without a result", flush=True)
    faults = _run(todo, results, options.jobs, options.limit)
    lost = [m for m in chosen if m.key in results.verdicts and results.verdicts[m.key].survived]
    for mutant in lost:
        print(f"SURVIVED {mutant.name}: {mutant.breaks} ({mutant.file})")
    minutes = sum(results.verdicts[m.key].seconds for m in chosen if m.key in results.verdicts) / 60
    noticed = len(chosen) - len(lost) - len(faults)
    print(f"{noticed} noticed, {len(lost)} survived; {minutes:.0f} minutes of testing")
    for fault in faults:
        print(f"NOT JUDGED {fault}")
    return 1 if lost or faults else 0


def _run(todo: list[Mutant], results: Results, jobs: int, limit: float) -> list[str]:
    """Judge the mutants, `jobs` at a time; return the errors of those without a verdict."""
    faults: list[str] = []
    with ExitStack() as stack:
        juries: queue.Queue[Jury] = queue.Queue()
        for _ in range(min(jobs, len(todo))):
            juries.put(Jury(stack.enter_context(copied_checkout()), limit))

        def judge(mutant: Mutant) -> Verdict:
            jury = juries.get()
            try:
                return jury.judge(mutant)
            finally:
                juries.put(jury)

        with ThreadPoolExecutor(max(1, jobs)) as pool:
            running = {pool.submit(judge, mutant): mutant for mutant in todo}
            for n, done in enumerate(as_completed(running), 1):
                mutant = running[done]
                try:
                    verdict = done.result()
                except (UnsoundRun, StaleMutant) as fault:
                    faults.append(str(fault))
                    print(f"[{n}/{len(todo)}] {mutant.name}: {fault}", flush=True)
                    continue
                results.add(mutant, verdict)
                print(
                    f"[{n}/{len(todo)}] {mutant.name}: {verdict.noticed_by} "
                    f"({verdict.seconds:.0f} s)",
                    flush=True,
                )
    return faults


def _chosen(names: list[str]) -> list[Mutant]:
    mutants = [mutant for room in ROOMS.values() for mutant in room]
    if missing := set(names) - {mutant.name for mutant in mutants}:
        raise SystemExit(f"no mutant is called {', '.join(sorted(missing))}; --list shows them")
    return [mutant for mutant in mutants if not names or mutant.name in names]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--report", type=Path, metavar="FILE", help="keep results here")
    parser.add_argument("--fresh", action="store_true", help="forget the results of the report")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at a time")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
