"""One training has one digest on 1, 2 and 4 processes, and when it is moved between them."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import pytest
import torch
from torch import nn

from experiments.recipes import model_spec
from experiments.scales import SCALES
from models.build import build_model
from tests.training.runs import Outcome, assert_same_run
from training.run_folder import RunFolder
from training.signals import EXIT_FINISHED, EXIT_REQUEUE
from training.spec import Execution, RunSpec, TrainSpec
from training.tree import in_tree, tree_sum

LEAF = 16


ORDERS = {
    1: "0", 2: "01", 3: "012", 4: "(01)(23)", 6: "(012)(345)", 8: "((01)(23))((45)(67))", 12: "((012)(345))((678)(9ab))",
}  # fmt: skip


@pytest.mark.parametrize(("count", "order"), ORDERS.items())
def test_the_tree(count, order):
    """By hand, for the sum and for gradients, whose layout and alignment differ."""
    torch.manual_seed(0)
    values = torch.randn(count, 3, 37) * 10 ** torch.randn(count, 3, 37)

    def by_hand(text: str) -> torch.Tensor:
        terms, depth, start = [], 0, 0
        for place, sign in enumerate(text):
            depth += (sign == "(") - (sign == ")")
            if sign == "(" and depth == 1:
                start = place + 1
            elif sign == ")" and depth == 0:
                terms.append(by_hand(text[start:place]))
            elif depth == 0:
                terms.append(values[int(sign, 16)])
        return reduce(torch.add, terms)

    wanted = by_hand(order)
    assert torch.equal(tree_sum([*values]), wanted)
    if count > 3:
        assert not torch.equal(reduce(torch.add, [*values]), wanted), "else no order could be told from another"
    parameters = [nn.Parameter(torch.zeros(3, 37)), nn.Parameter(torch.zeros(37, 3))]
    for part in in_tree(parameters, count):
        (parameters[0] * values[part] + parameters[1].T * values[part]).sum().backward()
    assert torch.equal(parameters[0].grad, wanted) and torch.equal(parameters[1].grad.T, wanted)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in parameters)


def test_gradients_end_where_all_kernels_read_them_alike():
    parameter = nn.Parameter(torch.zeros(5))
    for _ in in_tree([parameter], 1):
        parameter.grad = torch.arange(6.0)[1:]
    assert parameter.grad.data_ptr() % 16 == 0 and parameter.grad.tolist() == [1, 2, 3, 4, 5]


def stopped():
    """A process is told to stop in each of its steps."""
    import training.loop

    whole = training.loop.learning_rate

    def learning_rate(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return whole(*arguments)

    training.loop.learning_rate = learning_rate


@pytest.mark.parametrize("name", ["fox_pro", "hgrn2"])
def test_one_digest_on_1_2_and_4_processes(name, corpus, tmp_path):
    """Eight micro-batches a step; the last run moves from one process to two and to four."""
    scale = replace(SCALES["tiny"], hidden_size=64, linear_head_dim=32, mlp_widths={"pro": 50, "llama": 66, "mamba": 43})
    train = TrainSpec(
        seq_len=LEAF, batch_tokens=8 * LEAF, train_tokens=8 * LEAF * 5, warmup_tokens=0, peak_lr=3e-3, precision="fp32"
    )
    model = model_spec(name, scale, corpus.spec.vocab_size)
    build_model(model, device="meta")  # imports here what the forked processes then need not

    def begin(folder: str) -> RunFolder:
        spec = RunSpec(name=name, scale="test", model=model, data=corpus.spec, train=train)
        (tmp_path / folder).mkdir()
        return RunFolder.create(tmp_path / folder / spec.folder_name, spec)

    def run(folder: RunFolder, world_size: int, before: Callable[[], None] | None = None) -> None:
        execution = Execution(device="cpu", micro_batch_tokens=LEAF)
        outcome = Outcome(folder, corpus.folder, execution, world_size, before)
        assert outcome.exit_code() == (EXIT_REQUEUE if before else EXIT_FINISHED), outcome.output

    runs = {size: begin(f"on {size}") for size in (1, 2, 4)}
    for size, folder in runs.items():
        run(folder, size)
    moved = begin("moved")
    for size, before in ((1, stopped), (2, stopped), (4, None)):
        run(moved, size, before)
    for folder in (runs[2], runs[4], moved):
        assert_same_run(runs[1], folder)
        assert folder.weights == runs[1].weights
    starts = moved.read_starts()
    assert [(start["world_size"], start["micro_batch_tokens"], start["parallel"]) for start in starts] == [
        (size, LEAF, "ddp") for size in (1, 2, 4)
    ]
    assert [start["first_step"] for start in starts] == [0, 2, 4], "a stop is noticed a step later"
