"""Errors of the hub, translated into messages that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    SafetensorsParsingError,
)

from app.models.transfer import Cancelled
from gpu import EngineError, ModelError

TRANSPORT_ERROR: type[BaseException] = HfHubHTTPError.__bases__[0]
"""Base class of the errors of the client's HTTP library, which depends on the client's version."""


class HubError(EngineError):
    """A download failed: no network, disk full, damaged data. Trying again may help."""

    code = "hub_error"


class NotOnHub(ModelError):
    """The model does not exist on the hub, is not accessible, or cannot be used by this engine."""


@contextmanager
def hub_errors(repository: str, revision: str, kind: str = "model") -> Iterator[None]:
    """Turn errors of `huggingface_hub` into HubError and NotOnHub. `kind`: what the repository
    should be."""
    try:
        yield
    except (EngineError, Cancelled):
        raise
    except OfflineModeIsEnabled:
        raise HubError(
            f"{repository} ({revision}) is not in the cache ({constants.HF_HUB_CACHE}), and "
            "HF_HUB_OFFLINE forbids downloads; unset it, or give a folder"
        ) from None
    except RevisionNotFoundError:
        raise NotOnHub(f"{repository} has no revision {revision!r}; check --revision") from None
    except GatedRepoError:
        raise NotOnHub(
            f"{repository} is gated: accept its terms at {constants.ENDPOINT}/{repository}, then "
            "run `hf auth login` or set HF_TOKEN to a token of that account"
        ) from None
    except RepositoryNotFoundError:
        raise NotOnHub(
            f"there is no folder {repository!r}, and no {kind} of that name on the hub that you "
            f"have access to; check the name, or set HF_TOKEN if the {kind} is private"
        ) from None
    except EntryNotFoundError as error:
        raise HubError(f"{repository} ({revision}): {_first_line(error)}") from None
    except SafetensorsParsingError as error:
        raise NotOnHub(f"{repository}: {_first_line(error)}") from None
    except HfHubHTTPError as error:
        raise _status_error(repository, error) from None
    except ValueError as error:  # files that the client does not download over plain HTTP
        raise HubError(f"{repository}: {_first_line(error)}") from None
    except OSError as error:
        raise _local_error(repository, error) from None
    except TRANSPORT_ERROR as error:
        raise HubError(
            f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}: "
            f"{_first_line(error)}), and {repository} is not complete in the cache; check the "
            "network, or give a folder"
        ) from None


def _status_error(repository: str, error: HfHubHTTPError) -> EngineError:
    status = error.response.status_code
    if status in (401, 403):
        return NotOnHub(
            f"the hub refused access to {repository} ({status}): the token in HF_TOKEN or of "
            "`hf auth login` is not valid for it; renew the token, or log out if none is needed"
        )
    if status == 429:
        return HubError(f"too many requests to the hub (429); wait before downloading {repository}")
    return HubError(f"the hub answered {status} for {repository}; try again later")


def _local_error(repository: str, error: OSError) -> HubError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HubError(
            f"the disk of the cache ({constants.HF_HUB_CACHE}) is full; free some space, or set "
            "HF_HUB_CACHE to a folder on another disk"
        )
    return HubError(f"{repository} could not be downloaded: {_first_line(error)}; try again")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
