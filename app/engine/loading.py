"""Loading the engine with the settings of the command line. Needs no Flask, so that command-line
tools and the engine's process can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from app import tale
from app.config import Settings
from app.engine_client import Progress
from app.load_options import load_options
from app.models.drafts import Draft, compatible_draft
from app.models.encoders import EncoderFolders
from app.models.hub_digests import checked_beside
from app.models.known import card_settings
from app.models.loras import compatible_loras
from app.models.memory import dtype_of_files
from app.models.model_source import ModelSource
from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import AUTO_DTYPE, DtypeChoice, Engine, ModelError, StageHosts, Tokenizer, import_backend


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Place of one engine of a server.

    number       from 0
    gpu          number of the GPU that a cluster gave it, unless the settings name one
    stage_hosts  processes for the stages of its model; None: they run in the engine's
    """

    number: int = 0
    gpu: str | None = None
    stage_hosts: StageHosts | None = None

    def settings(self, settings: Settings) -> Settings:
        """Return the settings of this engine, of those of the server."""
        own = settings.for_replica(self.number)
        return own if own.adapter is not None else replace(own, adapter=self.gpu)


ONLY_ENGINE = ReplicaPlace()


def import_engine(backend: str) -> None:
    """Do the imports of `load_engine`; those of this module come with it."""
    import_backend(backend)


def load_engine(
    settings: Settings,
    source: ModelSource,
    progress: Progress,
    *,
    loras: Mapping[str, Path] | None = None,
    draft: Draft | None = None,
    encoders: EncoderFolders | None = None,
    warm_up: bool = False,
    place: ReplicaPlace = ONLY_ENGINE,
) -> Engine:
    """Load the model of `source`. Raises ModelError, also for files of the hub's cache that are
    damaged, and DeviceError.

    loras     folders of adapters by name; those that do not fit the model are left out
    draft     draft model; left out if it does not fit the model
    encoders  models with encoders beside it
    warm_up   compile the kernels of the first requests while the engine is idle
    """
    path, encoders = source.path, encoders or EncoderFolders()
    tokenizer: LimitedTokenizer | Tokenizer | None = source.tokenizer
    draft_path = None
    if draft is not None:
        tokenizer = tokenizer or Tokenizer.load(path)  # the bundled model's, which is trusted
        draft_path = compatible_draft(draft, path, tokenizer)
    options = replace(
        load_options(
            place.settings(settings), compatible_loras(path, loras or {}), _dtype(settings, source)
        ),
        draft=draft_path,
        draft_dtype=draft.dtype.dtype if draft is not None else None,
        embedding_model=encoders.embedding,
        encoder_decoder_model=encoders.encoder_decoder,
        warm_up=warm_up,
    )
    folders = (path, draft_path, encoders.embedding, encoders.encoder_decoder)
    models = [folder for folder in folders if folder is not None]
    engine: Engine | None = None
    try:
        with checked_beside(models, progress):
            engine = Engine.load(
                path,
                options,
                name=source.name or tale.name_of(path),
                tokenizer=tokenizer,
                card=card_settings(source.name or path.name),
                progress=progress,
                stage_hosts=place.stage_hosts,
            )
    except ModelError:
        if engine is not None:  # it is loaded, but from damaged files
            engine.close()
        raise
    return engine


def _dtype(settings: Settings, source: ModelSource) -> DtypeChoice:
    if settings.dtype != AUTO_DTYPE:
        return DtypeChoice(settings.dtype)
    return source.dtype or dtype_of_files(source.path)
