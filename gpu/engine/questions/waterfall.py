"""Waterfall: what each setting of the sampler does to the logits after a token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from gpu.engine.questions.model import AnswerSteps, QuestionedModel, check_top
from gpu.engine.validation import check_biased_ids
from gpu.errors import InvalidRequest
from gpu.inspection.requests import MAX_TOP, Waterfall
from gpu.inspection.waterfall import waterfall
from gpu.interventions.active import InterventionSchedule
from gpu.reference.sampler import Greenlist
from gpu.reference.watermark import selfhash_greenlist
from gpu.sampling_params import SamplingParams
from gpu.step import Floats, Sample
from gpu.watermark.greenlist import Greenlists, WatermarkConfig

AllowedTokens = npt.NDArray[np.bool_] | None
"""Tokens (vocab_size,) that a grammar allows; None: all."""


def checked_sample(question: Waterfall, model: QuestionedModel) -> Sample:
    """Return the draw that `question` is about. Raises InvalidRequest if there is none."""
    model.check_place(question.ids, question.position)
    model.check_ids(question.also, "also")
    check_top(question.top)
    if len(question.also) > MAX_TOP:
        raise InvalidRequest(
            f"also has {len(question.also)} ids, but at most {MAX_TOP} are accepted", "also"
        )
    params = question.params.validate()
    check_biased_ids(params, model.runner.config.vocab_size)
    if params.seed is None:
        raise InvalidRequest("seed should be that of the run; without it there is no draw", "seed")
    most = 2**32 - 1 - params.first_index
    if not 0 <= question.index <= most:
        raise InvalidRequest(f"index should be from 0 to {most}, but is {question.index}", "index")
    return Sample.of(params, row=0, slot=0, index=question.index)


def _greenlist(vocab_size: int, params: SamplingParams, ids: list[int]) -> Greenlist | None:
    """Return the greenlist of the token after `ids`; None without a watermark."""
    config, greenlists = WatermarkConfig.of(params), Greenlists(vocab_size)
    if config is None or config.seeding_scheme == "lefthash":
        return greenlists.green(config, ids)
    return partial(selfhash_greenlist, selfhash=greenlists.selfhash(config, ids))


@dataclass(slots=True)
class Waterfalls:
    """Answers waterfalls. The last logits are kept, because a moving slider asks again."""

    model: QuestionedModel
    latest: tuple[object, Floats] | None = None  # key, logits after its last token

    def answer(
        self,
        question: Waterfall,
        sample: Sample,
        allowed: AllowedTokens,
        schedule: InterventionSchedule,
    ) -> AnswerSteps:
        ids = question.ids[: question.position + 1]
        asked = (ids, schedule.digests(len(ids)), schedule.cache_salt)
        if self.latest is None or self.latest[0] != asked:
            logits = yield from self.model.recomputer.logits(ids, len(ids) - 1, schedule)
            self.latest = (asked, logits)
        green = _greenlist(self.model.runner.config.vocab_size, question.params, ids)
        return waterfall(
            self.latest[1][0], ids, sample, question.top, allowed, question.also, green
        )
