"""Faults in the engine in the browser: its text, and how it answers the page."""

from tests.mutants.mutant import Mutant

LOCAL = "static/js/local"
TEXT = "e2e/local/test_text.py"
SESSION = "e2e/local/test_session.py"
INTERVENTIONS = "e2e/local/test_interventions.py"
LORAS = "e2e/local/test_loras.py"
MOVES = "e2e/local/test_moves.py"
REPORT = "e2e/local/test_plan_report.py"

MUTANTS = (
    Mutant(
        "browser-specials",
        "in the browser the name of a special token in a message is that token",
        f"{LOCAL}/text/added-tokens.js",
        "if (!specials && this.specials.has(token.content)) continue;",
        "if (specials === null) continue;",
        (TEXT,),
        "tokenizer_is and tale",
    ),
    Mutant(
        "browser-stop",
        "of two stop strings in the browser that end together the shorter one is removed",
        f"{LOCAL}/text/stop-strings.js",
        "end === first.end && start < first.start",
        "end === first.end && start > first.start",
        (TEXT,),
        "stop_strings",
    ),
    Mutant(
        "browser-queue",
        "in the browser a third run begins while two write",
        f"{LOCAL}/run-queue.js",
        "if (!this.waiting.length && this.nWriting < this.active) run.start();",
        "if (!this.waiting.length && this.nWriting <= this.active) run.start();",
        (SESSION,),
        "more_runs",
    ),
    Mutant(
        "browser-resume",
        "in the browser a page that missed messages is not sent the first of them",
        f"{LOCAL}/generation-log.js",
        "this.messages.slice(after)",
        "this.messages.slice(after + 1)",
        (SESSION,),
        "all_messages",
    ),
    Mutant(
        "browser-intervention-slot",
        "in the browser an intervention acts on the texts of the first slot",
        f"{LOCAL}/gpu/intervention-tables.js",
        "(layer * stride + slot * width) * 4",
        "layer * stride * 4",
        (INTERVENTIONS,),
        "tables",
    ),
    Mutant(
        "browser-intervention-prefix",
        "in the browser a text goes on from keys that were computed under other interventions",
        f"{LOCAL}/gpu/cached-text.js",
        "return Math.min(n, ...parted);",
        "return n;",
        (INTERVENTIONS,),
        "writes_the_servers and all",
    ),
    Mutant(
        "browser-lora-prefix",
        "in the browser a text goes on from keys of another strength of an adapter",
        f"{LOCAL}/interventions/active.js",
        "[this.baseDigest, this.loraDigest]",
        "[this.baseDigest]",
        (LORAS,),
        "no_prefix",
    ),
    Mutant(
        "browser-lora-slot",
        "in the browser the strengths of a run act on the one beside it",
        f"{LOCAL}/gpu/intervention-tables.js",
        "slot * row.byteLength",
        "0",
        (INTERVENTIONS,),
        "tables",
    ),
    Mutant(
        "browser-blocks",
        "in the browser a run keeps a KV block of the text that was in its slot before",
        f"{LOCAL}/gpu/slots.js",
        "splice(this.blocksOf(n))",
        "splice(this.blocksOf(n) + 1)",
        ("e2e/local/test_engine_state.py",),
        "two_runs",
    ),
    Mutant(
        "browser-clock",
        "the page takes GPU times that the browser rounds for exact ones",
        f"{LOCAL}/gpu/pass-clock.js",
        "step >= FINEST_ROUNDING ? step / NS_PER_MS : 0",
        "0",
        ("e2e/local/test_pass_clock.py",),
        "rounding",
    ),
    Mutant(
        "browser-place-forgotten",
        "a tab that is loaded again goes to a model in the browser whose files are gone",
        "static/js/net/remembered-place.js",
        "if (found && found.bytes >= found.total)",
        "if (place)",
        (MOVES,),
        "reload",
    ),
    Mutant(
        "browser-manifest-lost",
        "a model in the browser is lost with the server's export, although its files are kept",
        f"{LOCAL}/gpu/export-files.js",
        "if (!data) throw error;",
        "throw error;",
        (MOVES,),
        "reload",
    ),
    Mutant(
        "browser-staged-blocks",
        "in the browser quantised keys and values are staged by blocks of the cache",
        f"{LOCAL}/gpu/step-buffer.js",
        "layout.staged_kv ? i :",
        "layout.staged_kv && !row.slot ? i :",
        ("e2e/local/test_step_bytes.py",),
    ),
    Mutant(
        "browser-cost",
        "in the browser the cost of a chunk counts the keys in the window of its last row only",
        f"{LOCAL}/gpu/step-cost.js",
        "Math.min(all, rows + window - 1)",
        "Math.min(all, window)",
        (REPORT,),
        "listed",
    ),
    Mutant(
        "export-cost",
        "costs in plan files count cached keys once for each row that sees them",
        "gpu/export/cost_terms.py",
        'Terms({("cached", (window,)): 1})',
        'Terms({("seen", (window,)): 1})',
        ("tests/gpu/export/test_cost_terms.py",),
    ),
)
