"""Ctrl-C while a command still imports what takes it seconds: one line, no traceback. Commands import this first."""

import sys
from types import TracebackType

SAID = "interrupted; what is finished is kept, the same command goes on from there"


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(SAID, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
