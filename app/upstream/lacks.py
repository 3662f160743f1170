"""Sentences that the page shows instead of what an upstream server does not expose."""

from __future__ import annotations

from app.protocol.messages import Lack

ATTENTION = "what its attention heads attend to"
LAYERS = "what happens inside its layers"
WHY_NOT = {
    "layers": LAYERS,
    "attention": ATTENTION,
    "forward": "the vectors inside its layers",
    "lens": "what it would have predicted after each layer",
    "filters": "the logits of its whole vocabulary, or what its sampler removed",
    "reach": "a way to change its heads and layers while it writes",
    "loss": "the loss of a text's tokens",
    "cache": "where keys and values lie in its KV cache",
    "schedule": "what each of its steps computed",
    "weights": "its weights",
    "plan": "which dispatches it runs",
    "lab": "how long each of its steps takes",
    "draw": "how many tokens its sampler kept, or the number it drew",
    "memory": "how much memory it uses",
    "preview": "what the next token would be drawn from before it has written it",
}
"""What an upstream does not say, by the name of the instrument or the part of the page that would
show it."""

INSTRUMENT_OF_QUESTION = {
    "neighbours": "weights",
    "attention_from": "attention",
    "attention_to": "attention",
    "logit_lens": "lens",
    "waterfall": "filters",
    "losses": "loss",
    "divergence": "lab",
    "intervention_effect": "reach",
    "steps": "schedule",
    "profile": "plan",
    "peaks": "plan",
    "digest": "weights",
}


def lacks_of(exact_tokens: bool) -> tuple[Lack, ...]:
    """Return what the page cannot show. `exact_tokens`: the upstream's tokenizer is here."""
    lacks = [Lack(name, _sentence(what)) for name, what in WHY_NOT.items()]
    if not exact_tokens:
        lacks.append(
            Lack(
                "tokens",
                "The upstream server does not expose how it splits a prompt into tokens. Words are "
                "shown instead, with ids of this server; start it with --tokenizer for the real "
                "ones.",
            )
        )
    return tuple(lacks)


def why_not(question: str) -> str:
    """Return why a kind of question cannot be answered."""
    what = WHY_NOT.get(INSTRUMENT_OF_QUESTION.get(question, question))
    return _sentence(what or "what is needed for this")


def _sentence(what: str) -> str:
    return f"The upstream server does not expose {what}."
