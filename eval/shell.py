"""How an evaluation behaves in a shell: short errors, clean interruption, exit codes (those of training)."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from training.signals import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_REQUEUE


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGUSR2: leave like Ctrl-C, with the exit code that asks to be started again."""


def _on_signal(number: int, frame: FrameType | None) -> None:
    raise Terminated(signal.Signals(number).name)


def guarded(action: Callable[[], int]) -> int:
    """Run `action` and return its exit code: 2 with one line for a user's error, 130 or 75 for an interruption."""
    # Evaluations must not hang on a machine without network: few, short tries at the hub.
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "5")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "10")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, _on_signal)
    try:
        return action()
    except KeyboardInterrupt as interrupt:
        print("interrupted; finished samples are kept, the same command goes on from there", file=sys.stderr)
        return EXIT_REQUEUE if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED
    except ValueError as error:
        print(f"error: {short(error)}", file=sys.stderr)
        return EXIT_ERROR
    except OSError as error:
        print(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        return EXIT_ERROR


def short(error: ValueError) -> str:
    """One or two lines; of a pydantic error the offending key and its message."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        value = first.get("input")
        given = f" (given: {value!r})" if isinstance(value, str | int | float | bool) else ""
        return f"{where}: {first['msg']}{given}".removeprefix(": ").replace("Value error, ", "")
    return "\n".join(str(error).splitlines()[:2])
