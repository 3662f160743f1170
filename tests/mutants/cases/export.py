"""Faults in exports: what is written, in which folder, and what the page in it may do."""

from tests.mutants.mutant import Mutant

EXPORT = "app/site/export.py"
EXPORT_TEST = "tests/app/site/test_export.py"
PAGE_TEST = "tests/app/site/test_page.py"
RECORDING_TEST = "tests/gpu/export/test_recording.py"
PROTOCOL_TEST = "tests/app/ws/test_protocol_schema.py"

MUTANTS = (
    Mutant(
        "export-overwrites",
        "an export replaces any folder",
        EXPORT,
        "if not out.exists() or (out.is_dir() and (not any(out.iterdir()) or _is_export(out))):",
        "if True:",
        (EXPORT_TEST,),
    ),
    Mutant(
        "export-resumes-blindly",
        "an export goes on with the pieces of another model",
        EXPORT,
        "if not known.is_file() or known.read_bytes() != inputs:",
        "if False:",
        (EXPORT_TEST,),
    ),
    Mutant(
        "export-repeats",
        "an interrupted export writes bytes again that it has",
        "gpu/export/weight_pieces.py",
        "known = min(len(flat), max(0, self._writer.resumed_at - self._at))",
        "known = 0",
        (EXPORT_TEST,),
    ),
    Mutant(
        "recipe-transposed",
        "a recipe takes rows of a tensor whose columns are the outputs",
        "gpu/checkpoint/weights.py",
        "rows, picked_rows, transposed)",
        "rows, picked_rows)",
        (RECORDING_TEST,),
    ),
    Mutant(
        "plan-views",
        "views of a plan forget where in their buffer they begin",
        "gpu/export/plan_builder.py",
        "key = (buffer, tensor.offset, tensor.n_bytes)",
        "key = (buffer, 0, tensor.n_bytes)",
        ("tests/gpu/export/test_export.py",),
    ),
    Mutant(
        "export-foreign-lora",
        "a page that runs the model itself gets adapters that the server has not loaded",
        "app/local/exports.py",
        "loaded = (lora.name for lora in hello.model.loras)",
        "loaded = tuple(self._folders)",
        ("tests/app/local/test_exports.py",),
        "storage_type",
    ),
    Mutant(
        "static-policy",
        "the page in an export may run any script",
        "app/http/security.py",
        'if not each.startswith("frame-ancestors")',
        'if not each.startswith(("frame-ancestors", "default-src", "script-src"))',
        (PAGE_TEST,),
    ),
    Mutant(
        "local-any-key",
        "a page is given the export of another model than the one that it asked for",
        "app/local/exports.py",
        "state = self._states.get(dtype) if key == self._key else None",
        "state = self._states.get(dtype)",
        ("tests/app/local/test_exports.py",),
    ),
    Mutant(
        "hub-alternating",
        "the browser stacks rows that alternate",
        "static/js/local/hub/recipe.js",
        "const member = members[(row - first) % members.length];",
        "const member = members[0];",
        ("e2e/local/test_hub_weights.py",),
    ),
    Mutant(
        "kept-unchecked",
        "the browser uses what was damaged on its disk",
        "static/js/local/gpu/weight-cache.js",
        "if (data && (await digest(data)) === found.headers.get(SHA256)) return data;",
        "if (data) return data;",
        ("e2e/local/test_hub.py",),
    ),
    Mutant(
        "hub-any-host",
        "the page may not connect to the hub that the server names",
        "app/http/security.py",
        "*sockets, *self._settings.hub_url",
        "*sockets",
        ("tests/app/local/test_hub_plans.py",),
    ),
    Mutant(
        "schema-required",
        "an engine in another language may leave out fields of its messages",
        "app/ws/protocol_schema.py",
        'definition["required"] = [name for name in properties if name in always]',
        "pass",
        (PROTOCOL_TEST,),
    ),
)
