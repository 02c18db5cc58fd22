"""A corpus and a loaded model that are played, for measures by hand."""

from types import SimpleNamespace

import numpy as np
from torch import nn

from eval.kinds import KINDS


class Split:
    """Documents of a corpus: token t of document d is 10 d + t, modulo 7."""

    shape = (9, 64)

    def read(self, rows, start=0, stop=None):
        return ((10 * np.arange(9)[rows, None] + np.arange(start, stop)) % 7).astype(np.uint16)

    def __len__(self):
        return 9


CORPUS = SimpleNamespace(
    heldout=Split(), heldout_sources=[*range(9)], spec=SimpleNamespace(bos_id=6, fingerprint="aa"), folder="f"
)


LOADED = SimpleNamespace(model=nn.Linear(1, 1), tokenizer=None, subject=SimpleNamespace(model="m"))


def of(kind, **given):
    return KINDS[kind](**dict(corpus="aa", precision="bf16") | given)
