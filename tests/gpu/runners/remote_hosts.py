"""Hosts of the stages of a model on this machine, which an engine reaches through sockets."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from gpu import StageAddress, stage_server

HOST = "127.0.0.1"
END_SECONDS = 30.0


class ThreadHosts:
    """A server of each stage on a thread of this process: started at once, but not to be killed.
    Implements `gpu.StageHosts`."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.losses: list[str] = []

    def start(self, n_stages: int) -> Sequence[StageAddress]:
        servers = [stage_server(HOST) for _ in range(n_stages)]
        self.threads = [threading.Thread(target=server.serve, daemon=True) for server in servers]
        for thread in self.threads:
            thread.start()
        return [server.address for server in servers]

    def lost(self, message: str) -> None:
        self.losses.append(message)

    def end(self) -> None:
        for thread in self.threads:
            thread.join(END_SECONDS)

    @property
    def have_ended(self) -> bool:
        return not any(thread.is_alive() for thread in self.threads)


class ProcessHosts:
    """A process for each stage. Implements `gpu.StageHosts`."""

    def __init__(self) -> None:
        self.processes: list[SpawnProcess] = []
        self.losses: list[str] = []

    def start(self, n_stages: int) -> Sequence[StageAddress]:
        context = multiprocessing.get_context("spawn")
        pipes = []
        for _ in range(n_stages):
            ours, theirs = context.Pipe()
            self.processes.append(context.Process(target=_serve, args=(theirs,), daemon=True))
            self.processes[-1].start()
            theirs.close()
            pipes.append(ours)
        return [pipe.recv() for pipe in pipes]

    def lost(self, message: str) -> None:
        self.losses.append(message)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(END_SECONDS)

    @property
    def have_ended(self) -> bool:
        return not any(process.is_alive() for process in self.processes)


def _serve(pipe: Connection) -> None:
    server = stage_server(HOST)
    pipe.send(server.address)
    server.serve()
