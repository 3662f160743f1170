"""What can go wrong with the hub, and what a person can do about it."""

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

from app.transfer import Cancelled
from gpu import EngineError, ModelError

TRANSPORT_ERROR: type[BaseException] = HfHubHTTPError.__bases__[0]
"""Base of what the client's HTTP library raises; which library that is depends on the client's
version."""


class HubError(EngineError):
    """A model could not be fetched: no network, no room, damaged on the way. Trying again may
    help."""

    code = "hub_error"


class NotOnHub(ModelError):
    """There is no such model on the hub, or it may not be had, or it is not one for this engine."""


@contextmanager
def hub_errors(repository: str, revision: str) -> Iterator[None]:
    """Turn the client's errors into those above, in words a person can act on."""
    try:
        yield
    except (EngineError, Cancelled):
        raise
    except OfflineModeIsEnabled:
        raise HubError(
            f"{repository} ({revision}) is not in the cache ({constants.HF_HUB_CACHE}), and "
            "HF_HUB_OFFLINE forbids asking the hub; unset it, or give a folder"
        ) from None
    except RevisionNotFoundError:
        raise NotOnHub(f"{repository} has no revision {revision!r}") from None
    except GatedRepoError:
        raise NotOnHub(
            f"{repository} is gated: accept its terms at {constants.ENDPOINT}/{repository}, then "
            "run `hf auth login`, or set HF_TOKEN to a token of that account"
        ) from None
    except RepositoryNotFoundError:
        raise NotOnHub(
            f"there is no folder {repository!r}, and the hub has no model of that name, or it is "
            "private: check the name, or set HF_TOKEN to a token that may see it"
        ) from None
    except EntryNotFoundError as error:
        raise HubError(f"{repository} ({revision}): {_first_line(error)}") from None
    except SafetensorsParsingError as error:
        raise NotOnHub(f"{repository}: {_first_line(error)}") from None
    except HfHubHTTPError as error:
        raise _refused(repository, error) from None
    except ValueError as error:  # files that the client does not fetch over plain HTTP
        raise HubError(f"{repository}: {_first_line(error)}") from None
    except OSError as error:
        raise _local(repository, error) from None
    except TRANSPORT_ERROR as error:
        raise HubError(
            f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}: "
            f"{_first_line(error)}), and {repository} is not whole in the cache; check the "
            "network, or give a folder"
        ) from None


def _refused(repository: str, error: HfHubHTTPError) -> EngineError:
    status = error.response.status_code
    if status in (401, 403):
        return NotOnHub(
            f"the hub refuses {repository} ({status}): the token in HF_TOKEN or of `hf auth login` "
            "is not valid for it; renew it, or log out to ask without one"
        )
    if status == 429:
        return HubError(f"the hub wants fewer requests (429); wait before fetching {repository}")
    return HubError(f"the hub answered {status} for {repository}; try again later")


def _local(repository: str, error: OSError) -> HubError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HubError(
            f"the disk of the cache ({constants.HF_HUB_CACHE}) is full; make room, or set "
            "HF_HUB_CACHE to a folder on another disk"
        )
    return HubError(f"{repository} could not be fetched: {_first_line(error)}; try again")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
