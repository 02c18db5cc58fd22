"""LM evaluation harness: models behind its interface, with an explicit BOS policy, and its scores as rows."""

import hashlib
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before lm_eval)
import pandas as pd
import torch
from lm_eval import evaluator, utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from eval.lm_eval.spec import IN_PERCENT, SHARES, Spec, check_names
from eval.lm_eval.task_files import HARNESS_VERSION, answer_options, load_tasks, quiet, write_stand_ins
from eval.lm_eval.tasks import TABLE
from eval.runner.batching import Record, check_positions, recorded, recorded_ends, score
from eval.runner.context import Context
from eval.runner.generation import end_ids, greedy
from eval.runner.loading import Loaded
from eval.runner.stand_ins import StandIns, fingerprint_in
from models.loss import token_losses

BOOTSTRAP_ITERATIONS = 1000


class HarnessModel(TemplateLM):
    """Causal language model behind the harness's interface: right-padded batches, logits of the scored positions only.

    BOS policy: with `add_bos` every context begins with exactly one BOS. Texts without context (rolling perplexity) are always
    conditioned on one BOS, and their later windows get none. With `scores_bos` such a text begins with a second BOS, which is
    scored, as with the authors' `add_bos_token=True`.
    Answers are saved in the context's partial file under the digest of the request."""

    def __init__(self, loaded: Loaded, spec: Spec, context: Context):
        super().__init__()
        self.loaded, self.spec, self.context = loaded, spec, context
        self.model, self.codec = loaded.model, loaded.tokenizer
        self._compute, self._stderr = context.compute(spec.precision), sys.stderr  # which `quiet` redirects

    @property
    def eot_token_id(self) -> int:
        return self.codec.eos_id if self.codec.eos_id is not None else self.codec.bos_id

    @property
    def prefix_token_id(self) -> int:
        return self.codec.bos_id

    @property
    def max_length(self) -> int:
        return self.spec.max_length

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **unused: object) -> list[int]:
        bos = self.spec.add_bos if add_special_tokens is None else add_special_tokens
        return [self.codec.bos_id] * bos + self.codec.encode(string)

    def _loglikelihood_tokens(self, requests: list[Any], **unused: object) -> list[tuple[float, bool]]:
        """Return (log-probability in nats, whether greedy decoding gives it) of each continuation."""
        keys, rows = [_key("loglikelihood", *texts) for texts, _, _ in requests], {}
        for key, (_, context, continuation) in zip(keys, requests, strict=True):
            if not 0 < len(continuation) <= self.max_length:
                what = f"a continuation has {len(continuation)} tokens, not 1 to max_length {self.max_length}"
                raise ValueError(f"{what}: raise it, or leave out of the task's choices what is empty")
            rows[key] = (context + continuation)[-(self.max_length + 1) :], len(continuation)

        def read(key: str, logits_KV: torch.Tensor) -> Record:
            return dict(zip(("logprob", "greedy"), score(rows[key], logits_KV), strict=True))

        given = (rows, self.loaded, self.context, self.spec.precision, read, self.spec.batch_size)
        with redirect_stderr(self._stderr):
            found = recorded_ends("lm-eval (likelihoods)", *given)
        return [(found[key]["logprob"], found[key]["greedy"]) for key in keys]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability in nats of whole texts, in disjoint windows of max_length."""
        return self._each("rolling", requests, lambda request: self._rolling(*request.args))

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate greedily, up to the first stop string."""
        return self._each("generate", requests, self._generated)

    def _each(self, kind: str, requests: list[Instance], answer: Callable[[Instance], Any]) -> list[Any]:
        """Return the answer to each request, one at a time. Those that are asked twice are answered once."""
        keys = [_key(kind, request.args[0], *(repr(sorted(more.items())) for more in request.args[1:])) for request in requests]
        asked = dict(zip(keys, requests, strict=True))

        def run(keys: list[str]) -> list[Record]:
            return [{"answer": answer(asked[key])} for key in keys]

        lengths = {key: len(self.codec.encode(request.args[0])) for key, request in asked.items()}
        with redirect_stderr(self._stderr):
            found = recorded(f"lm-eval ({kind})", lengths, self.context, self._compute, run, size=1)
        return [found[key]["answer"] for key in keys]

    def _rolling(self, text: str) -> float:
        tokens = self.tok_encode(text, add_special_tokens=self.spec.scores_bos)
        windows = utils.get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
        return sum(self._window(*utils.make_disjoint_window(window)) for window in windows)

    def _window(self, context: list[int], continuation: list[int]) -> float:
        ids = torch.tensor([*context, *continuation], device=self._compute.device)[None]
        check_positions(self.model, ids.shape[1] - 1, "lower --max-length")
        with self._compute.inference():
            losses_T = token_losses(self.model, ids[:, :-1], ids[:, 1:])[0]
        loss = float(losses_T[-len(continuation) :].double().sum())
        if math.isnan(loss):
            raise ValueError(f"the loss of {len(continuation)} tokens is NaN: look at the training, or evaluate in fp32")
        return -loss

    def _generated(self, request: Instance) -> str:
        prompt, given = request.args
        options = answer_options(str(request.task_name), given)
        stops, limit = tuple(filter(None, options["until"])), options["max_gen_toks"]
        if limit >= self.max_length:
            over = f"writes up to {limit} tokens, and max_length {self.max_length} leaves none for a prompt"
            raise ValueError(f"task {request.task_name} {over}: raise --max-length")

        def done(ids: list[int]) -> bool:
            return any(stop in self.codec.decode(ids) for stop in stops)

        ids = self.tok_encode(prompt)[-(self.max_length - limit) :]
        (new,) = greedy(self.model, self._compute, limit, end_ids(self.model, self.eot_token_id), done)([ids])
        text = self.codec.decode(new)
        for stop in stops:
            text = text.split(stop)[0]
        return text


def results_of(names: Sequence[str], folder: Path | None, loaded: Loaded, spec: Spec, context: Context) -> Any:
    """Return the harness's results of tasks; see `load_tasks`."""
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # otherwise the harness bootstraps standard errors in forked processes
    how: dict[str, Any] = dict(limit=spec.limit, bootstrap_iters=BOOTSTRAP_ITERATIONS, log_samples=spec.keep_scores)
    lm = HarnessModel(loaded, spec, context)
    with quiet():
        return evaluator.evaluate(lm=lm, task_dict=load_tasks(names, folder), **how)


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return accuracies in percent and perplexities as they are, with standard errors in the same unit (NaN if the harness has
    none). ValueError for unknown tasks, and for data that are neither in the local cache nor available from the hub."""
    with tempfile.TemporaryDirectory(prefix="lm-eval-tasks-") as scratch:
        corpus = fingerprint_in(spec.include)
        if corpus is not None:
            folder: Path | None = write_stand_ins(StandIns(context.heldout(corpus)), spec.tasks, Path(scratch))
        else:
            folder = spec.folder(context.sources)
        check_names(spec.tasks, folder)
        results = results_of(spec.tasks, folder, loaded, spec, context)
    if spec.keep_scores:
        context.extras["scores"] = {
            task: [{name: sample[name] for name in sample["metrics"]} for sample in samples]
            for task, samples in results["samples"].items()
        }
    return pd.DataFrame([row for task in results["n-samples"] for row in _rows(task, results, spec)])


def _rows(task: str, results: Any, spec: Spec) -> Iterator[dict[str, Any]]:
    scores, in_table = results["results"][task], TABLE[task]["metrics"].split() if task in TABLE else None
    names = {name: name.split(",")[0] for name in scores if "," in name and "_stderr," not in name}
    for name, metric in names.items():
        if in_table is None or metric in in_table:
            yield {
                "task": task,
                # A metric with several filters of the answers keeps the harness's full names: "exact_match,strict-match".
                "metric": name if [*names.values()].count(metric) > 1 else metric,
                **value_of(scores, name, 100.0 if metric.startswith(SHARES) and task not in IN_PERCENT else 1.0),
                "num_examples": int(results["n-samples"][task]["effective"]),
                "task_version": str(results["versions"][task]),
                "harness_version": HARNESS_VERSION,
                "batch_size": spec.batch_size,
                "add_bos": int(spec.add_bos),
            }


def value_of(scores: Mapping[str, Any], name: str, factor: float) -> dict[str, float]:
    """Return the value of one of a task's metrics ("acc,none": named with its filter) and its standard error (NaN if there is
    none), times a factor."""
    error = scores.get(name.replace(",", "_stderr,", 1))
    stderr = factor * float(error) if isinstance(error, int | float) else math.nan
    return {"value": factor * float(scores[name]), "stderr": stderr}


def _key(kind: str, *texts: str) -> str:
    return hashlib.sha256("\0".join([kind, *texts]).encode("utf-8", "surrogatepass")).hexdigest()[:24]
