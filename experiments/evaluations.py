"""Evaluations that artefacts ask of their runs, each with the sizes of a scale."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from eval.attention_speed import spec as attention_speed
from eval.equal_logits import spec as equal_logits
from eval.gate_maps import spec as gate_maps
from eval.lm_eval import spec as lm_eval
from eval.longbench import spec as longbench
from eval.needle import spec as needle
from eval.needle_recall import spec as needle_recall
from eval.parameters import spec as parameters
from eval.per_token_loss import spec as per_token_loss
from eval.pruning import spec as pruning
from eval.recall import spec as recall
from eval.ruler import spec as ruler
from eval.shell.spec import EvalSpec
from eval.throughput import spec as throughput
from eval.training_curve import spec as training_curve
from experiments.recipes import model_spec
from experiments.scales import Scale


def loss(scale: Scale) -> tuple[EvalSpec, ...]:
    """Per-token loss at four times the training length."""
    return (per_token_loss.Spec(context_len=scale.document_len, num_documents=scale.heldout_documents),)


def curve(scale: Scale) -> tuple[EvalSpec, ...]:
    """The training's own loss."""
    return (training_curve.Spec(),)


def needles(scale: Scale, modes: Sequence[Literal["easy", "standard"]] = ("easy", "standard")) -> tuple[EvalSpec, ...]:
    """The needle test, and the recall in nats that small models show, too."""
    grid = scale.needle
    scored = needle.Spec(lengths=grid.lengths, depths=grid.depths, reserve=grid.reserve, max_new_tokens=grid.max_new_tokens)
    recall = needle_recall.Spec(
        lengths=grid.recall_lengths or grid.lengths,
        depths=grid.depths,
        reserve=grid.recall_reserve,
        samples_per_cell=grid.recall_samples,
    )
    return (*(replace(spec, mode=mode) for spec in (scored, recall) for mode in modes),)


def short_tasks(scale: Scale) -> tuple[lm_eval.Spec, ...]:
    """The harness's tasks of Table 1, or stand-ins made from the held-out text."""
    if scale.stand_ins:
        return (lm_eval.Spec(include="local", max_length=scale.document_len),)
    return (lm_eval.Spec(max_length=scale.seq_len),)


def six_tasks(scale: Scale) -> tuple[EvalSpec, ...]:
    """The tasks of Table 7, with the perplexities."""
    (spec,) = short_tasks(scale)
    return (replace(spec, tasks=lm_eval.TASKS[:7]),)


def long_tasks(scale: Scale) -> tuple[EvalSpec, ...]:
    """LongBench, or stand-ins made from the held-out text."""
    if scale.stand_ins:
        return (longbench.Spec(dataset="local", max_prompt_tokens=scale.prompt_tokens, max_new_tokens=12),)
    return (longbench.Spec(max_prompt_tokens=scale.prompt_tokens),)


def gates(scale: Scale) -> tuple[gate_maps.Spec, ...]:
    """One training length of held-out text; F is compared 1,024 tokens back at the paper's length."""
    return (gate_maps.Spec(seq_len=scale.seq_len, distance=scale.seq_len // 16),)


def extrapolation(scale: Scale) -> tuple[EvalSpec, ...]:
    """Per-token loss far beyond the training length, and the built-in bias towards recent keys."""
    return (*loss(scale), equal_logits.Spec())


def key_recall(scale: Scale) -> tuple[EvalSpec, ...]:
    """Accuracy on the synthetic recall task."""
    return (recall.Spec(),)


def step_times(scale: Scale) -> tuple[EvalSpec, ...]:
    """Training steps of fresh weights as one process trains them, beside those of Transformer (LLaMA)."""
    return (
        throughput.Spec(
            seq_len=scale.seq_len,
            batch_size=scale.batch_tokens // scale.seq_len,
            micro_batch_tokens=scale.micro_batch_tokens,
            compile=scale.compile,
            beside=model_spec("transformer_llama", scale, vocab_size=1),  # the corpus's vocabulary takes its place
        ),
    )


def parts(scale: Scale) -> tuple[EvalSpec, ...]:
    """The parameters of the model as it is built; no training."""
    return (parameters.Spec(),)


def skipped(scale: Scale) -> tuple[EvalSpec, ...]:
    """Tiles that pruning skips at the training length: the kernels' own where a sequence has sixteen of them, else smaller."""
    tile = max(1, min(128, scale.seq_len // 16))
    return (pruning.Spec(context_len=scale.seq_len, tile=tile, decoded_tokens=min(32, scale.seq_len // 4)),)


def pruned_times(scale: Scale) -> tuple[EvalSpec, ...]:
    """Attention and training steps with and without pruning, at the training length: as many tokens at each as
    `timed_sequences` have at the longest."""
    sequences = max(1, scale.timed_sequences * max(scale.pruning_contexts) // scale.seq_len)
    return (attention_speed.Spec(seq_len=scale.seq_len, batch_size=sequences),)


def ruler_tasks(scale: Scale) -> tuple[EvalSpec, ...]:
    """RULER's single needles; of models too small to spell an answer, the choice of one of four."""
    if scale.stand_ins:
        return (ruler.Spec(lengths=scale.ruler_lengths, samples=16, answers="choose"),)
    return (ruler.Spec(lengths=scale.ruler_lengths),)


def generation_times(scale: Scale) -> tuple[EvalSpec, ...]:
    """Prefill and decoding of fresh weights."""
    lengths = scale.generation_lengths
    return tuple(throughput.Spec(mode="generate", seq_len=n, new_tokens=32, warmup=1, repeats=3) for n in lengths)


def more_gates(scale: Scale) -> tuple[EvalSpec, ...]:
    """Figure 3's matrices of eight heads, on the second held-out document."""
    (spec,) = gates(scale)
    return (replace(spec, document=1, num_maps=8, grid=128),)


def long_needles(scale: Scale) -> tuple[EvalSpec, ...]:
    """The easy needle at eleven lengths up to four times the training length."""
    grid = scale.needle
    step = (grid.longest - grid.lengths[0]) // 10
    lengths = tuple(grid.lengths[0] + step * place for place in range(11))
    return needles(replace(scale, needle=replace(grid, lengths=lengths, recall_lengths=None)), modes=("easy",))
