"""Search of the Hugging Face hub for models that the engine reads."""

from __future__ import annotations

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from app.models.hub import is_hub_id
from app.models.hub_errors import TRANSPORT_ERROR, HubError
from gpu import MODEL_TYPES

N_SEARCHED, N_SHOWN = 60, 12
MAX_CHARS = 200
TAGS = {*MODEL_TYPES, *(name.removesuffix("_text") for name in MODEL_TYPES)}


def search_models(text: str) -> list[str]:
    """Return names of models that match `text`, the most downloaded first. Raises HubError."""
    try:
        found = huggingface_hub.HfApi().list_models(
            search=text[:MAX_CHARS], sort="downloads", limit=N_SEARCHED, expand=["tags", "gated"]
        )
        return [model.id for model in found if _is_usable(model)][:N_SHOWN]
    except OfflineModeIsEnabled:
        raise HubError("HF_HUB_OFFLINE forbids a search of the hub; unset it") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise HubError(f"the hub answered the search with {status}; try again later") from None
    except (TRANSPORT_ERROR, OSError):
        raise HubError(
            f"{constants.ENDPOINT} cannot be reached, so it cannot be searched; check the network, "
            "or choose a model on this machine"
        ) from None


def _is_usable(model: huggingface_hub.ModelInfo) -> bool:
    """Return whether its tags name files and an architecture that the engine reads."""
    tags = set(model.tags or ())
    has_weights = "gguf" in tags or ("safetensors" in tags and not TAGS.isdisjoint(tags))
    return has_weights and not model.gated and is_hub_id(model.id)
