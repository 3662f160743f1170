"""Faults in what holds back other people's templates and tokenizers, questions beside runs, and in
what keeps clients apart in the prefix cache."""

from tests.mutants.mutant import Mutant

SANDBOX = "app/prompt/sandbox.py"
PROCESS = "app/processes/limited_process.py"
CHILD = "app/processes/limited_child.py"
BUDGET = "gpu/engine/question_budget.py"
TASKS = "gpu/engine/background_tasks.py"
CHAT_TEST = "tests/app/prompt/test_chat_template.py"
HOSTILE_TEST = "tests/app/prompt/test_hostile_templates.py"
TOKENIZER_TEST = "tests/app/prompt/test_limited_tokenizer.py"
BUDGET_TEST = "tests/gpu/engine/test_question_budget.py"
TASKS_TEST = "tests/gpu/engine/test_background_tasks.py"
SALTS_TEST = "tests/app/http/test_cache_salts.py"
REUSE_TEST = "tests/gpu/engine/test_cache_reuse.py"

MUTANTS = (
    Mutant(
        "template-sandbox",
        "a chat template reaches the insides of Python",
        SANDBOX,
        "class Environment(ImmutableSandboxedEnvironment):",
        "class Environment(jinja2.Environment):",
        (CHAT_TEST,),
        "sees_nothing",
    ),
    Mutant(
        "template-namespace",
        "a chat template's namespace may have names that begin with an underscore",
        SANDBOX,
        'if isinstance(name, str) and name.startswith("_"):',
        "if False:",
        (CHAT_TEST, HOSTILE_TEST),
        "misbehaves or sees_nothing",
    ),
    Mutant(
        "template-time",
        "the server waits forever for a process that is late",
        PROCESS,
        "            if call == self._n_calls:\n",
        "            if False:\n",
        ("tests/app/processes/test_limited_process.py",),
        "late",
    ),
    Mutant(
        "template-memory",
        "a template or a tokenizer may take all memory",
        CHILD,
        'for name, value in (("DATA", memory_bytes), ("FSIZE", 0), ("CORE", 0)):',
        'for name, value in (("FSIZE", 0), ("CORE", 0)):',
        ("tests/app/processes/test_limited_process.py",),
        "memory",
    ),
    Mutant(
        "template-reply",
        "a template may send back any number of bytes",
        PROCESS,
        "if n_bytes > self._limits.reply_bytes:",
        "if False:",
        (TOKENIZER_TEST,),
        "test_a_reply_that_is_too_large",
    ),
    Mutant(
        "template-files",
        "the process of a template can open files",
        CHILD,
        'for name in ("NOFILE", "NPROC"):',
        'for name in ("NPROC",):',
        (TOKENIZER_TEST, HOSTILE_TEST),
        "neither_files",
    ),
    Mutant(
        "template-secrets",
        "the process of a template has the server's environment",
        PROCESS,
        "env=kept | ONE_THREAD,",
        "env=dict(os.environ) | ONE_THREAD,",
        (TOKENIZER_TEST, HOSTILE_TEST),
        "neither_files",
    ),
    Mutant(
        "questions-budget",
        "questions take the device as long as they like while others write",
        BUDGET,
        "return not self.writing or self._debt <= 0",
        "return True",
        (BUDGET_TEST,),
    ),
    Mutant(
        "questions-rows",
        "a chunk of a question takes longer than a token",
        BUDGET,
        "n = self._costs.rows_within(kind, PIECE_TOKENS * median(self._steps), most)",
        "n = most",
        (BUDGET_TEST,),
    ),
    Mutant(
        "questions-turns",
        "one page's questions are all answered before another's first",
        TASKS,
        "                self._line.append((asker, tasks))\n\n    def cancel",
        "                self._line.appendleft((asker, tasks))\n\n    def cancel",
        (TASKS_TEST,),
    ),
    Mutant(
        "questions-bound",
        "any number of questions may wait",
        TASKS,
        "if len(self) >= (MAX_ASKERS if tasks is None else MAX_QUESTIONS):",
        "if False:",
        (TASKS_TEST,),
    ),
    Mutant(
        "salt-prefix",
        "texts of different clients share the blocks of a common prefix",
        "gpu/kv/prefix_cache.py",
        "[_hash(salt.encode(), SALTED) if salt else EMPTY_HASH]",
        "[EMPTY_HASH]",
        (SALTS_TEST,),
        "not_those_of_others",
    ),
    Mutant(
        "salt-chunks",
        "a chunk of another client's text is moved into a prompt",
        "gpu/kv/cache_reuse.py",
        "len(plain_ids) == BLOCK_TOKENS and cached.salt == salt:",
        "len(plain_ids) == BLOCK_TOKENS:",
        (SALTS_TEST,),
        "no_chunk",
    ),
    Mutant(
        "salt-questions",
        "a question finds what another client's run computed",
        "gpu/engine/recompute.py",
        "BlockHashes(schedule.digest_at, schedule.cache_salt)",
        "BlockHashes(schedule.digest_at)",
        (REUSE_TEST,),
        "its_own_salt",
    ),
    Mutant(
        "salt-client",
        "all clients have the same salt",
        "app/http/cache_salts.py",
        "blake2b(client.encode(), key",
        "blake2b(b'', key",
        (SALTS_TEST,),
        "not_those_of_others",
    ),
)
