"""Faults in several engines behind one: routing, and texts that outlive their engine."""

from tests.mutants.mutant import Mutant

RUN = "app/replicas/run.py"
ENGINE = "app/replicas/engine.py"
ROUTER = "app/replicas/router.py"
SEQUENCE = "gpu/engine/sequence.py"
REPLICATED_TEST = "tests/app/replicas/test_replicated_engine.py"
ROUTER_TEST = "tests/app/replicas/test_router.py"
RESUMED_TEST = "tests/gpu/engine/test_resumed_elsewhere.py"

MUTANTS = (
    Mutant(
        "failed-engine",
        "a text whose engine fails without a crash does not go on elsewhere",
        "app/engine/main.py",
        'event.reason == "error" and engine.failure is not None',
        "False",
        ("tests/app/engine/test_supervisor.py",),
        "test_an_engine_that_fails_by_itself",
    ),
    Mutant(
        "resumed-updates",
        "a text that goes on elsewhere forgets the updates that acted on it",
        SEQUENCE,
        "        self._restore_updates()\n",
        "",
        (RESUMED_TEST,),
    ),
    Mutant(
        "resumed-characters",
        "a text that goes on elsewhere does not decode what was written before",
        "gpu/engine/run_events.py",
        "            self._decode.push(id)\n",
        "            pass\n",
        (RESUMED_TEST,),
    ),
    Mutant(
        "resumed-twice-told",
        "an update is told again after a text has moved",
        RUN,
        "if event in self._updated:",
        "if False:",
        (REPLICATED_TEST,),
    ),
    Mutant(
        "resumed-without-end",
        "a request that kills engines goes on killing them",
        RUN,
        "if self._n_lost < MAX_ENGINES:",
        "if True:",
        (REPLICATED_TEST,),
    ),
    Mutant(
        "resumed-after-eos",
        "a text whose end was not told is written on",
        RUN,
        "elif self._eos:",
        "elif False:",
        (REPLICATED_TEST,),
    ),
    Mutant(
        "router-busy",
        "a request waits for the engine that has its prefix, while another is idle",
        ROUTER,
        "            if load.has_slot:",
        "            if True:",
        (ROUTER_TEST,),
    ),
    Mutant(
        "router-forgets",
        "an engine that started again counts as having its old cache",
        ENGINE,
        "                    self._router.forget(number)",
        "                    pass",
        (REPLICATED_TEST,),
    ),
    Mutant(
        "run-moved",
        "a page is not told that its run has moved to another engine",
        RUN,
        "self._on_event(Queued(event.position, number, event.run))",
        "pass",
        (REPLICATED_TEST,),
        "as_if_nothing_had_happened",
    ),
    Mutant(
        "engine-asked",
        "the engine that a question names is not the one that is asked",
        "app/ws/questions.py",
        "self._engine.replica(message.engine) if message.engine else self._engine",
        "self._engine",
        ("e2e/look/test_schedule.py",),
        "every_engine_tells",
    ),
)
