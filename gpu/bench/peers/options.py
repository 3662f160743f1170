"""Options of a benchmark's command line that choose peers."""

from __future__ import annotations

import argparse
from collections.abc import Collection


def add_peer_options(parser: argparse.ArgumentParser, peers: Collection[str]) -> None:
    """Add `--peer NAME` and `--peer-python NAME=PROGRAM`, both as often as wanted."""

    def pair(text: str) -> tuple[str, str]:
        name, found, program = text.partition("=")
        if not found or name not in peers:
            raise argparse.ArgumentTypeError(
                f"{text!r} should be PEER=PROGRAM, where PEER is one of {', '.join(peers)}"
            )
        return name, program

    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        choices=tuple(peers),
        help="also measure this engine",
    )
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        type=pair,
        metavar="PEER=PROGRAM",
        help="Python in which the peer is installed (default: this one)",
    )
