"""Every limit of what may be asked for, on both sides: the last value that is taken, and the first that is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import nextafter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from analysis.curves import smooth
from data.corpus import Counts
from data.plan import resolve
from data.recall import RecallTask
from data.sampler import Sampler
from data.spec import DataSpec
from data.tokenizer import MAX_VOCAB_SIZE, Tokenizer, parse_tokenizer
from eval.decoding.spec import FIRST
from eval.kinds import KINDS
from eval.needle.spec import LEAST_HAYSTACK
from eval.needle.wording import DEFAULT_WORDING, NAMES, Wording
from eval.runner.stand_ins import check_stand_ins
from experiments.plan import _check_names
from experiments.request import Request
from kernels.attention_shared.arguments import check_limit_values, check_limits
from kernels.forgetting_attention import forgetting_attention
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from results.schema import Schema, integer, number
from slurm.cluster import CLUSTER
from training.spec import MAX_SEED, Execution, RunSpec, TrainSpec, micro_batch_size

FOX = ForgettingTransformerSpec(vocab_size=64, hidden_size=64, num_layers=2, num_heads=2)
DATA = DataSpec(source="text", tokenizer="bytes", vocab_size=64, bos_id=63, document_len=256, fingerprint="aa")
TRAIN = TrainSpec(seq_len=64, batch_tokens=256, train_tokens=1280, warmup_tokens=128, peak_lr=1e-3)
RUN = RunSpec(name="fox_llama", scale="tiny", model=FOX, data=DATA, train=TRAIN)
TASK = dict(num_keys=4, num_assignments=1, num_queries=1, num_symbols=8)
ONES = torch.ones(1, 4, 1, 16)
TEXT = Path(__file__).with_name("test_defaults.txt")
ASKED = Wording.read(DEFAULT_WORDING)
QUERY, NEEDLE = (len(text.encode()) + 1 for text in (ASKED.query, ASKED.hidden("standard")))
"""The most tokens that they may have, of one byte each."""


def of(kind: str, **given: Any) -> Any:
    return KINDS[kind](**given)


def loss_of(**given: int) -> Any:
    return of("per_token_loss", **{"context_len": 256, "num_documents": 3} | given)


def cells(length: int, reserve: int) -> None:
    of("needle", lengths=(length,), reserve=reserve).check_cells([ASKED], "bytes")


def corpus(**given: Any) -> None:
    resolve(f"text:{TEXT}", **{"cache_dir": Path("nowhere"), "tokenizer": "bytes", "document_len": 64} | given)


def attended(**given: Any) -> None:
    forgetting_attention(ONES, ONES, ONES, given.pop("log_fgate", torch.zeros(1, 4, 1)), **given)


def packed(*ends: int) -> None:
    check_limit_values(4, None, torch.tensor(ends))


def stored(column: Any, value: float) -> None:
    Schema({"a": column}, key=("a",)).validate(pd.DataFrame({"a": [value]}))


def seeds(*asked: int) -> None:
    _check_names(Request(seeds=asked))


def cluster(**given: Any) -> None:
    CLUSTER.validate_json(json.dumps({"time_limit_hours": 1.0} | given))


def uses(place: int, last: int) -> None:
    of("context_use", contexts=(8, 4), places=(place, last), targets=16, num_documents=1)


def stand_ins(documents: int) -> None:
    counts = Counts(documents=9, train_documents=9, heldout_documents=9, train_rows=9, heldout_rows=documents)
    check_stand_ins("local-v1:aa", counts)


def decaying(least: float) -> None:
    replace(FOX, forget_gate="fixed", decay_time_min=least, decay_time_max=4.0)


LIMITS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    # evaluations
    "places behind the shortest context": (lambda n: uses(n, 24), 20, 19),
    "a place behind the longest context": (lambda n: uses(20, n), 24, 23),
    "distance of a gate's decay": (lambda n: of("gate_maps", seq_len=8, distance=n), 7, 8),
    "layer of a map": (lambda n: of("gate_maps", layers=(n,)).check_heads(2, 3), 1, 2),
    "head of a map": (lambda n: of("gate_maps", heads=(n,)).check_heads(2, 3), 2, 3),
    "context of the harness": (lambda n: of("lm_eval", max_length=n), 2, 1),
    "prompt of LongBench": (lambda n: of("longbench", max_prompt_tokens=n), 2, 1),
    "tokens that are decoded": (lambda n: of("pruning", context_len=8, decoded_tokens=n), 7, 8),
    "tokens whose decoding is timed": (lambda n: of("throughput", mode="generate", new_tokens=n), FIRST + 2, FIRST + 1),
    "length of a needle's cell": (lambda n: of("needle", lengths=(n,), reserve=99), 100, 99),
    "tokens reserved for a query": (lambda n: cells(9999, n), QUERY + 1, QUERY),
    "haystack round a needle": (lambda n: cells(999 + NEEDLE + n, 999), LEAST_HAYSTACK, LEAST_HAYSTACK - 1),
    "keys of a passkey": (lambda n: of("needle", mode="passkey", num_keys=n), len(NAMES), len(NAMES) + 1),
    "held-out documents": (lambda n: loss_of(num_documents=n).check_extent(3, 256), 3, 4),
    "tokens of a held-out document": (lambda n: loss_of(context_len=n).check_extent(3, 256), 256, 257),
    "documents of stand-ins": (stand_ins, 2, 1),
    # data
    "tokens of a document": (lambda n: corpus(document_len=n), 2, 1),
    "documents to read": (lambda n: corpus(max_documents=n), 2, 1),
    "share held out, low": (lambda n: corpus(heldout_fraction=n), 1e-9, 0.0),
    "share held out, high": (lambda n: corpus(heldout_fraction=n), 1 - 1e-9, 1.0),
    "small vocabulary": (lambda n: parse_tokenizer(f"bpe-{n}"), 257, 256),
    "large vocabulary": (lambda n: parse_tokenizer(f"bpe-{n}"), MAX_VOCAB_SIZE, MAX_VOCAB_SIZE + 1),
    "ids of two bytes": (lambda n: Tokenizer("bytes", None, n, 0), 2**16, 2**16 + 1),
    "high BOS": (lambda n: replace(DATA, bos_id=n), 63, 64),
    "low BOS": (lambda n: replace(DATA, bos_id=n), 0, -1),
    "keys of a recall task": (lambda n: RecallTask(**TASK | {"num_keys": n}), 8, 9),
    "times of pairs that come first": (lambda n: RecallTask(**TASK | {"num_queries": n}, pairs_first=True), 1, 2),
    "length of a sample": (lambda n: Sampler(4, 64, n, 2), 64, 65),
    "documents of a batch": (lambda n: Sampler(4, 64, 64, n), 4, 5),
    # models and training
    "heads of a width": (lambda n: replace(FOX, num_heads=n), 2, 3),
    "size of a head": (lambda n: replace(FOX, num_heads=n), 4, 8),
    "decay times in order": (decaying, 4.0, nextafter(4, 5)),
    "logarithm of what pruning drops": (lambda n: replace(FOX, prune_log_tolerance=n), -1e-9, 0.0),
    "pruned share, low": (lambda n: FOX.executed_flops_per_token(8, n), 0.0, -1e-9),
    "pruned share, high": (lambda n: FOX.executed_flops_per_token(8, n), 1.0, 1 + 1e-9),
    "warm-up": (lambda n: replace(TRAIN, warmup_tokens=n), 1279, 1280),
    "tokens of a step": (lambda n: replace(TRAIN, train_tokens=n), 256 * 5, 256 * 5 + 1),
    "tokens of a sequence": (lambda n: replace(TRAIN, seq_len=n), 64, 96),
    "vocabulary of a model": (lambda n: replace(RUN, model=replace(FOX, vocab_size=n)), 64, 63),
    "documents of whole sequences": (lambda n: replace(RUN, data=replace(DATA, document_len=n)), 64, 96),
    "seed": (lambda n: replace(RUN, seed=n), MAX_SEED - 1, MAX_SEED),
    "processes of a step": (lambda n: micro_batch_size(TRAIN, n, None), 4, 3),
    "micro-batches of a process": (lambda n: micro_batch_size(TRAIN, 1, n), 128, 192),
    "second moment": (lambda n: replace(TRAIN, beta2=n), nextafter(1, 0), 1.0),
    "spike": (lambda n: Execution(spike_factor=n), nextafter(1, 2), 1.0),
    "minutes of a hang": (lambda n: Execution(hang_minutes=n), 1e-9, 0.0),
    # kernels
    "tolerance of a threshold": (lambda n: attended(adaptive_threshold="auto", log_tolerance=n), -1e-9, 0.0),
    "threshold": (lambda n: attended(adaptive_threshold=torch.full((1, 1), n)), 0.0, 1e-9),
    "gate": (lambda n: attended(log_fgate=torch.full((1, 4, 1), n)), 0.0, 1e-9),
    "window": (lambda n: check_limits(ONES, ONES, None, None, n), 1, 0),
    "low start": (lambda n: check_limit_values(4, torch.tensor([n]), None), 0, -1),
    "high start": (lambda n: check_limit_values(4, torch.tensor([n]), None), 4, 5),
    "documents of no token": (lambda n: packed(0, 2, n, 4), 2, 1),
    "first document": (lambda n: packed(n, 2, 4), 0, 1),
    "last document": (lambda n: packed(0, 2, n), 4, 3),
    "queries of a text": (lambda n: forgetting_attention(ONES[:, :n], *[ONES[:, :3]] * 2, torch.zeros(1, 3, 1)), 3, 4),
    # rows, drawings, plans, clusters
    "small integer": (lambda n: stored(integer(2, 5), n), 2, 1),
    "large integer": (lambda n: stored(integer(2, 5), n), 5, 6),
    "small number": (lambda n: stored(number(0.5, 1), n), 0.5, nextafter(0.5, 0)),
    "large number": (lambda n: stored(number(0.5, 1), n), 1.0, nextafter(1, 2)),
    "window of a mean": (lambda n: smooth(np.ones(9), n), 1, 0),
    "largest seed": (seeds, MAX_SEED - 1, MAX_SEED),
    "least seed": (seeds, 0, -1),
    "utilisation": (lambda n: cluster(mfu=n), 1.0, nextafter(1, 2)),
    "margin": (lambda n: cluster(margin=n), 1.0, nextafter(1, 0)),
    "seconds of a signal": (lambda n: cluster(signal_seconds=n), 3599, 3600),
    "GPUs of a node": (lambda n: cluster(gpus_per_node=4, gpu_tflops=9.0, evaluate={"gpus": n}), 4, 5),
    "GPUs of nodes": (lambda n: cluster(gpus_per_node=4, gpu_tflops=9.0, train={"gpus": n}), 8, 6),
    "processes of nodes": (lambda n: cluster(train={"tasks": n, "nodes": 2}), 4, 3),
}  # fmt: skip


@pytest.mark.parametrize("what", LIMITS)
def test_both_sides_of_a_limit(what):
    ask, taken, refused = LIMITS[what]
    ask(taken)
    with pytest.raises(ValueError):  # noqa: PT011 (each has its own test of what is said)
        ask(refused)
