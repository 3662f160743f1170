"""Values that fit a JSON schema, and values that nearly do, by hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.gpu.ops.mutations import trees

Schema = dict[str, Any]
TEXTS = (
    "",
    "Once",
    "Once upon a time",
    "é🦊",
    "\0",
    "<s>",
    "</s>",
    "fake-story",
    '{"a": 1}',
    "a*b",
)
SMALL, LARGE = 20, 2**63 - 1
MOST_OPTIONAL = 3
"""Most optional fields in a generated object: with all of them, no request would be served."""


class Document:
    """Schemas, and the references among them. Its name is short: hypothesis keeps those of what it
    draws from."""

    def __init__(self, root: Schema, *, of: Schema | None = None) -> None:
        """`of`: the schema of the values, if it is not the root's own."""
        self._root = root
        self._of = root if of is None else of

    def near(self) -> st.SearchStrategy[Any]:
        """Return values that fit, and such with up to three parts replaced, removed or added."""
        return _near(self)

    def fitting(self) -> st.SearchStrategy[Any]:
        """Return values that fit."""
        return fit(self._of, self._root)


@st.composite
def _near(draw: st.DrawFn, document: Document) -> Any:
    value = draw(document.fitting())
    return draw(trees(value)) if draw(st.booleans()) else value


def fit(schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    """Return values that fit `schema`."""
    if "$ref" in schema:
        return st.deferred(lambda: fit(_named(schema["$ref"], root), root))
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        limits: Schema = {name: schema[name] for name in ("minimum", "maximum") if name in schema}
        return st.one_of([fit({**limits, **one}, root) for one in schema["anyOf"]])
    match schema.get("type"):
        case "object":
            return _objects(schema, root)
        case "array":
            least = schema.get("minItems", 0)
            return st.lists(fit(schema.get("items", {}), root), min_size=least, max_size=least + 2)
        case "string":
            fits = [text for text in TEXTS if len(text) >= schema.get("minLength", 0)]
            return st.sampled_from(fits)
        case "integer":
            return _integers(schema)
        case "number":
            least, most = schema.get("minimum"), schema.get("maximum")
            return st.floats(least, most, allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return st.none() | st.booleans() | st.sampled_from(TEXTS)  # anything


def _named(reference: str, root: Schema) -> Schema:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return dict(found)


def _integers(schema: Schema) -> st.SearchStrategy[int]:
    least, most = schema.get("minimum", -LARGE), schema.get("maximum", LARGE)
    return st.integers(max(least, -1), min(most, SMALL)) | st.integers(least, most)


@st.composite
def _objects(draw: st.DrawFn, schema: Schema, root: Schema) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    optional = sorted(set(properties) - set(required))
    chosen = (
        st.lists(st.sampled_from(optional), max_size=MOST_OPTIONAL) if optional else st.just([])
    )
    made = {name: draw(fit(properties[name], root)) for name in [*required, *draw(chosen)]}
    if isinstance(more := schema.get("additionalProperties"), dict):
        made |= draw(st.dictionaries(st.sampled_from(TEXTS), fit(more, root), max_size=2))
    return made
