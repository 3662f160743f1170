"""Process that trains: it gets a job through its pipe and answers with events.

It runs with low priority on few threads, so that texts being written at the same time go on, and
torch is imported only here.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import warnings

from app.engine.child import Pipe
from app.processes.parent import end_with_parent
from app.train.messages import StepJob, TrainEvent, TrainFailed, decode_job, encode
from gpu import ModelError

NICE = 10
BELOW_NORMAL_PRIORITY_CLASS = 0x4000


def main(pipe: Pipe) -> None:
    """Do one job."""
    end_with_parent()
    lower_priority()
    job = decode_job.decode(pipe.recv_bytes())
    # Read when torch is imported. Threads that wait by spinning would keep the engine's cores busy.
    os.environ |= {"OMP_NUM_THREADS": str(job.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    warnings.simplefilter("ignore")
    from tqdm import tqdm  # which transformers brings

    # The lock that tqdm makes by itself is one of the system, which a killed process leaves.
    tqdm.set_lock(threading.RLock())

    def tell(event: TrainEvent) -> None:
        pipe.send_bytes(encode(event))

    try:
        if isinstance(job, StepJob):
            from app.train.one_step import take_step

            tell(take_step(job))
        else:
            from app.train.loop import train

            train(job, tell)
    except ModelError as error:
        tell(TrainFailed(str(error)))
    except MemoryError:
        tell(TrainFailed("this machine has too little memory for these lines; use shorter ones"))


def lower_priority() -> None:
    """Let other processes compute first."""
    if sys.platform == "win32":
        kernel = ctypes.windll.kernel32
        kernel.SetPriorityClass(kernel.GetCurrentProcess(), BELOW_NORMAL_PRIORITY_CLASS)
    else:
        os.nice(NICE)
