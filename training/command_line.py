"""Behaviour of commands in a shell: a mistake is one line and exit code 2, an interruption keeps finished work. Torch-free."""

import contextlib
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from types import FrameType
from typing import Any

import tyro

from training.interrupted import SAID
from training.signals import EXIT_CRASHED, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_REQUEUE

TYPES = ("str", "bool", "int", "float", "[key]")
"""Parts of a pydantic error's location that name an alternative of a union, not a field."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
MENDABLE = FULL | {
    None, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP,
    errno.ENAMETOOLONG, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPIPE,
}  # fmt: skip
"""Numbers of system errors that a user can mend. Any other, such as an input/output error, may be the node's."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGUSR2: exit as for Ctrl-C, but with the code that asks for a restart."""


def _on_signal(number: int, frame: FrameType | None) -> None:
    raise Terminated(signal.Signals(number).name)


def parse(command: Any, arguments: list[str] | None, prog: str, description: str | None) -> Any:
    """Parse the command line into an object of type `command`. A mistake exits the program with one line and code 2."""
    for word in sys.argv[1:] if arguments is None else arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in word):  # bytes that Python could not decode
            print(f"error: {word!a}: this shell's locale cannot decode it; set LC_ALL=C.UTF-8", file=sys.stderr)
            raise SystemExit(EXIT_ERROR)
    boxed = io.StringIO()
    config = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.HelptextFromCommentsOff)
    try:
        with contextlib.redirect_stderr(boxed):
            return tyro.cli(command, args=arguments, prog=prog, description=description, config=config)
    except SystemExit as stop:
        if stop.code != EXIT_ERROR:
            raise
        said = _unboxed(boxed.getvalue())
    except BrokenPipeError:  # `--help | head`: nobody reads the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except (ValueError, OSError) as error:  # a value of the right type that is not allowed; tyro reports only some of these
        said = short(error)
    print(f"error: {said}; see {prog} --help", file=sys.stderr)
    raise SystemExit(EXIT_ERROR)


def arguments_of(options: Any, kind: type | None = None) -> list[str]:
    """Return the command-line arguments that `parse` turns into the dataclass `options`, for fields that differ from their
    default. `kind`: only the fields of this base class of `options`."""
    words: list[str] = []
    for item in fields(kind or options):
        value, flag = getattr(options, item.name), item.name.replace("_", "-")
        if value != item.default:
            words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def _unboxed(text: str) -> str:
    """Return the text of a message of tyro's without its title, hints, boxes and rules."""
    blocks: list[list[str]] = [[]]
    for line in (line.strip(" │") for line in text.splitlines()):
        if "────" in line or "----" in line:
            blocks.append([])
        else:
            blocks[-1].append(line)
    words = " ".join(" ".join(blocks[1] if len(blocks) > 1 else blocks[0]).split())
    words = re.sub(r"\[type=\w+, input_value=(?!ArgsKwargs)(.*?), input_type=.*", r"(given: \1)", words)
    for hint in ("For further information", "[type=", "Got errors:"):
        words = words.split(hint)[0]
    names = r"__tyro-dummy-inner__\S*|[A-Z]\w*|\S+(?=: \d+ val)"  # names that are not options
    words = re.sub(rf"Error parsing ({names}): (\d+ validation errors? for \w+ )?", "", words)
    words = words.replace("Value error, ", "")
    return words.rstrip(".: ")


def guarded(action: Callable[[], int]) -> int:
    """Run `action` and return its exit code: 2 with one line for a user's error, 130 or 75 for an interruption. 1, also with
    one line, for a system error that the user cannot mend: launchers restart the task, as after a crash."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, _on_signal)
    try:
        return action()
    except KeyboardInterrupt as interrupt:
        _say(SAID)
        return EXIT_REQUEUE if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED
    except (ValueError, OSError) as error:
        _say(f"error: {short(error)}")
        return EXIT_CRASHED if isinstance(error, OSError) and error.errno not in MENDABLE else EXIT_ERROR


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the disk of the log is full: the exit code must tell
        print(text, file=sys.stderr)


def short(error: ValueError | OSError) -> str:
    """Return the error in one or two lines; for a pydantic error, the offending key and its message."""
    from pydantic import ValidationError

    if isinstance(error, OSError):
        remedy = ". Free some space and start the same command again." if error.errno in FULL else ""
        return f"{error.strerror or error}: {error.filename or ''}".rstrip(": ") + remedy
    if isinstance(error, ValidationError):
        surplus = "unexpected_keyword_argument"  # for a misspelt key this helps more than "missing"
        first = min(error.errors(), key=lambda each: each["type"] != surplus)
        where = ".".join(str(part) for part in first["loc"] if part not in TYPES)
        value = first.get("input")
        given = f" (given: {value!r})" if isinstance(value, str | int | float | bool) else ""
        return f"{where}: {first['msg']}{given}".removeprefix(": ").replace("Value error, ", "")
    return "\n".join(str(error).splitlines()[:2])
