"""Evaluations that artefacts request of their runs, each with the sizes of a scale."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from eval.gate_maps import spec as gate_maps
from eval.lm_eval import spec as lm_eval
from eval.longbench import spec as longbench
from eval.needle import spec as needle
from eval.needle_choice import spec as needle_choice
from eval.needle_recall import spec as needle_recall
from eval.parameters import spec as parameters
from eval.per_token_loss import spec as per_token_loss
from eval.pruning import spec as pruning
from eval.recall import spec as recall
from eval.runner.spec import EvalSpec
from eval.throughput import spec as throughput
from eval.training_curve import spec as training_curve
from experiments.recipes import model_spec
from experiments.scales import NeedleGrid, Scale


def loss(scale: Scale) -> tuple[EvalSpec, ...]:
    """Per-token loss over a scale's whole documents, usually four times the training length."""
    return (per_token_loss.Spec(context_len=scale.document_len, num_documents=scale.heldout_documents),)


def curve(scale: Scale) -> tuple[EvalSpec, ...]:
    """Loss during training."""
    return (training_curve.Spec(),)


def needles(scale: Scale, modes: Sequence[Literal["easy", "standard"]] = ("easy", "standard")) -> tuple[EvalSpec, ...]:
    """The needle test, and recall in nats, which shows differences between small models, too."""
    grid = scale.needle
    scored = needle.Spec(lengths=grid.lengths, depths=grid.depths, reserve=grid.reserve, max_new_tokens=grid.max_new_tokens)
    recall = needle_recall.Spec(**_shorter(grid), samples_per_cell=grid.recall_samples)
    return (*(replace(spec, mode=mode) for spec in (scored, recall) for mode in modes),)


def needles_and_choices(scale: Scale) -> tuple[EvalSpec, ...]:
    """The needle tests, followed by the needle as a choice of one word out of ten."""
    choice = needle_choice.Spec(**_shorter(scale.needle), samples_per_cell=scale.needle.choice_samples)
    return (*needles(scale), replace(choice, mode="easy"), choice)


def _shorter(grid: NeedleGrid) -> dict[str, Any]:
    """Cells of the tests that ask short questions."""
    return dict(lengths=grid.recall_lengths or grid.lengths, depths=grid.depths, reserve=grid.recall_reserve)


def short_tasks(scale: Scale) -> tuple[lm_eval.Spec, ...]:
    """The lm-eval tasks of Table 1, or stand-ins made from held-out text."""
    made = lm_eval.Spec(include="local", max_length=scale.document_len)
    return (made if scale.stand_ins else lm_eval.Spec(max_length=scale.seq_len),)


def long_tasks(scale: Scale) -> tuple[EvalSpec, ...]:
    """LongBench, or stand-ins made from held-out text."""
    made = longbench.Spec(dataset="local", max_prompt_tokens=scale.prompt_tokens, max_new_tokens=12)
    return (made if scale.stand_ins else longbench.Spec(max_prompt_tokens=scale.prompt_tokens),)


def gates(scale: Scale) -> tuple[gate_maps.Spec, ...]:
    """Gate maps over one training length of held-out text; F is compared 1/16 of it back (1,024 tokens in the paper)."""
    return (gate_maps.Spec(seq_len=scale.seq_len, distance=scale.seq_len // 16),)


def key_recall(scale: Scale) -> tuple[EvalSpec, ...]:
    """Accuracy on the synthetic recall task."""
    return (recall.Spec(),)


def step_times(scale: Scale) -> tuple[EvalSpec, ...]:
    """Time of training steps in one process, with untrained weights, compared with Transformer (LLaMA)."""
    llama = model_spec("transformer_llama", scale, vocab_size=1)  # replaced by the corpus's vocabulary
    batch_size, micro_batch_tokens = scale.batch_tokens // scale.seq_len, scale.micro_batch_tokens
    return (throughput.Spec(seq_len=scale.seq_len, batch_size=batch_size, micro_batch_tokens=micro_batch_tokens,
                            compile=scale.compile, beside=llama),)  # fmt: skip


def parts(scale: Scale) -> tuple[EvalSpec, ...]:
    """Parameter counts of the model as built; needs no training."""
    return (parameters.Spec(),)


def skipped(scale: Scale) -> tuple[pruning.Spec, ...]:
    """Tiles that pruning skips at the training length: the kernels' tiles if a sequence has at least 16, else smaller ones."""
    tile = max(1, min(128, scale.seq_len // 16))
    return (pruning.Spec(context_len=scale.seq_len, tile=tile, decoded_tokens=min(32, scale.seq_len // 4)),)
