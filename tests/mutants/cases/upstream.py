"""Faults in front of an upstream server: where requests go, and what its answers become."""

from tests.mutants.mutant import Mutant

RUN = "app/upstream/run.py"
BODY = "app/upstream/request_body.py"
TRANSPORT = "app/upstream/transport.py"
RUNS_TEST = "tests/app/upstream/test_upstream_runs.py"
SITE_TEST = "tests/app/upstream/test_upstream_site.py"

MUTANTS = (
    Mutant(
        "upstream-late-change",
        "a token that was drawn before a change of the settings is shown as one after it",
        RUN,
        "            if self._restart:\n                raise Restarted\n            now",
        "            now",
        (RUNS_TEST,),
    ),
    Mutant(
        "upstream-same-numbers",
        "a stream that goes on draws with the random numbers of the text's beginning",
        BODY,
        "params.seed + params.first_index + n_written",
        "params.seed + params.first_index",
        (RUNS_TEST,),
    ),
    Mutant(
        "upstream-endless-event",
        "an upstream may send an event without an end",
        TRANSPORT,
        "if len(line) > MAX_EVENT_BYTES or n_bytes > MAX_STREAM_BYTES:",
        "if False:",
        (RUNS_TEST,),
    ),
    Mutant(
        "upstream-broken-stream",
        "a stream that breaks off passes for the end of the text",
        TRANSPORT,
        'raise UnavailableError(f"the stream of the upstream at {self._address} broke off")',
        "return",
        (RUNS_TEST,),
    ),
    Mutant(
        "upstream-recommended",
        "neutral settings are left out, so that the upstream takes those of its model's makers",
        BODY,
        "            body[theirs] = getattr(params, name)",
        "            body |= {theirs: value} if (value := getattr(params, name)) else {}",
        (SITE_TEST,),
    ),
)
