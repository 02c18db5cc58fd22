"""The command-line parser of the suite: argparse with errors of one line, exit code 2."""

import argparse
from typing import NoReturn

EXIT_USER_ERROR = 2


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USER_ERROR, f"error: {message}; `{self.prog} --help` says what there is.\n")
