"""One line instead of a traceback for Ctrl-C during a command's slow imports. Commands import this first."""

import sys
from types import TracebackType

SAID = "interrupted; finished work is kept, and the same command resumes from there"


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(SAID, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
