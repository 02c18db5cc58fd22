"""sbatch, patiently: a busy controller, a lost answer and a full queue are no reason to give up or to submit twice."""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from slurm import client
from slurm.client import ForNow, Refused, TooMany, Unclear

PAUSES_S = (1, 2, 4, 8, 15, 30)
UNCLEAR_TRIES = 6


class Patience:
    """Tries for at most `minutes` per script. `troubled`: something went wrong, so that an answer may have been lost."""

    def __init__(self, minutes: float, console: Console):
        self.minutes, self.console = minutes, console
        self.troubled = False

    def sbatch(self, script: Path, look: Callable[[], tuple[str | None, bool]], wait_for_room: bool) -> str:
        """SLURM's id of the job of `script`, which is submitted once.

        `look()` says under which id SLURM has it already, and whether other jobs of ours are queued or running. Raises Refused
        (for good), NoArrays (not as an array), TooMany (above a limit, at once or with `wait_for_room` after all patience) and
        ForNow (no answer for so long).
        """
        end = time.monotonic() + 60 * self.minutes
        unclear = attempts = 0
        error: ForNow | None = None
        while True:
            try:
                if error is not None:
                    job, busy = look()
                    if job is not None:
                        return job
                    if unclear >= UNCLEAR_TRIES or (isinstance(error, TooMany) and not busy):
                        raise Refused(str(error))
                return client.sbatch(str(script))
            except ForNow as problem:
                error = problem
            self.troubled = True
            unclear += isinstance(error, Unclear)
            pause = PAUSES_S[min(attempts, len(PAUSES_S) - 1)]
            if (isinstance(error, TooMany) and not wait_for_room) or time.monotonic() + pause > end:
                raise error
            if attempts == 2:
                self.console.print(f"SLURM takes no job for now ({error}); trying again for up to {self.minutes:g} minutes ...")
            attempts += 1
            time.sleep(pause)
