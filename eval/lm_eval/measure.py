"""LM evaluation harness: models behind its interface, with an explicit BOS policy, and its scores as rows."""

import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before lm_eval)
import pandas as pd
import torch
from lm_eval import evaluator, utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from transformers import PreTrainedModel

from eval.lm_eval.spec import IN_PERCENT, SHARES, Spec, check_names
from eval.lm_eval.task_files import HARNESS_VERSION, answer_options, load_tasks, quiet, write_stand_ins
from eval.lm_eval.tasks import TABLE
from eval.runner.batching import Row, Scored, at_ends, check_positions, in_batches, score
from eval.runner.context import Context
from eval.runner.generation import end_ids, generate
from eval.runner.loading import Loaded
from eval.runner.stand_ins import StandIns, fingerprint_in
from eval.runner.text import TextCodec
from models.loss import token_losses
from training.progress import Progress

BOOTSTRAP_ITERATIONS = 1000
Request = tuple[tuple[str, str], list[int], list[int]]


class HarnessModel(TemplateLM):
    """Causal language model behind the harness's interface: right-padded batches, logits of the scored positions only.

    BOS policy: with `add_bos` every context begins with exactly one BOS. Texts without context (rolling perplexity) are always
    conditioned on one BOS, and their later windows get none. With `scores_bos` such a text begins with a second BOS, which is
    scored, as with the authors' `add_bos_token=True`.
    Answers are saved in the context's partial file under the digest of the request."""

    def __init__(self, model: PreTrainedModel, codec: TextCodec, spec: Spec, context: Context, progress: Progress):
        super().__init__()
        self.model, self.codec, self.spec, self.context, self.progress = model, codec, spec, context, progress
        self._compute = context.compute(spec.precision)

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

    def _loglikelihood_tokens(self, requests: list[Request], **unused: object) -> list[Scored]:
        """Return (log-probability in nats, whether greedy decoding gives it) of each continuation."""
        records, todo = self.context.partial.records, {}
        keys = [_key("loglikelihood", texts) for texts, _, _ in requests]
        for key, (_, context, continuation) in zip(keys, requests, strict=True):
            if key not in records and key not in todo:
                if not continuation:
                    raise ValueError("a continuation has no tokens, and so no score: leave it out of the task's choices")
                if len(continuation) > self.max_length:
                    over = f"over max_length {self.max_length}: raise it"
                    raise ValueError(f"a continuation has {len(continuation)} tokens, {over}")
                todo[key] = (context + continuation, len(continuation))
        self.progress.expect(len(todo))
        order = sorted(todo, key=lambda key: -len(todo[key][0]))
        rows = {key: (todo[key][0][-(self.max_length + 1) :], todo[key][1]) for key in order}
        for start in range(0, len(order), self.spec.batch_size):
            batch = order[start : start + self.spec.batch_size]
            lengths = [len(rows[key][0]) for key in batch]
            whole = self.context.sources.batch_tokens or len(batch) * lengths[0]
            in_batches(lengths, self._compute, partial(self._scored, batch, rows), batch_tokens=whole)
        return [(records[key]["logprob"], records[key]["greedy"]) for key in keys]

    def _scored(self, batch: list[str], rows: Mapping[str, Row], places: list[int]) -> list[None]:
        """Score these places of a batch and save their records."""
        keys = [batch[place] for place in places]
        for key, logits_KV in zip(keys, at_ends(self.model, [rows[key] for key in keys], self._compute), strict=True):
            logprob, greedy = score(rows[key], logits_KV)
            self.context.partial.add(key, {"logprob": logprob, "greedy": greedy})
            self.progress.advance()
        return [None] * len(keys)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability in nats of whole texts, in disjoint windows of max_length."""
        asked = {_key("rolling", request.args): request for request in requests}
        self._answer(asked, lambda request: {"logprob": self._rolling(*request.args)})
        return [self.context.partial.records[_key("rolling", request.args)]["logprob"] for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate greedily, up to the first stop string."""
        keys = [_key("generate", (request.args[0], repr(sorted(request.args[1].items())))) for request in requests]
        self._answer(dict(zip(keys, requests, strict=True)), lambda request: {"text": self._generated(request)})
        return [self.context.partial.records[key]["text"] for key in keys]

    def _answer(self, asked: Mapping[str, Instance], answer: Callable[[Instance], dict[str, Any]]) -> None:
        """Add the record of each request that has none yet."""
        todo = [key for key in asked if key not in self.context.partial.records]
        self.progress.expect(len(todo))
        for key in todo:
            self.context.partial.add(key, answer(asked[key]))
            self.progress.advance()

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
        ends = end_ids(self.model, self.eot_token_id)
        (new,) = generate(self.model, [ids], self._compute, max_new_tokens=limit, stop_ids=ends, stop=done)
        text = self.codec.decode(new)
        for stop in stops:
            text = text.split(stop)[0]
        return text


def results_of(tasks: Any, loaded: Loaded, spec: Spec, context: Context, progress: Progress) -> Any:
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # otherwise the harness bootstraps standard errors in forked processes
    lm = HarnessModel(loaded.model, loaded.tokenizer, spec, context, progress)
    return evaluator.evaluate(lm=lm, task_dict=tasks, limit=spec.limit, bootstrap_iters=BOOTSTRAP_ITERATIONS, log_samples=False)


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return accuracies in percent and perplexities as they are, with standard errors in the same unit (NaN if the harness has
    none). ValueError for unknown tasks, and for data that are neither in the local cache nor available from the hub."""
    scratch = tempfile.TemporaryDirectory(prefix="lm-eval-tasks-")
    with Progress("lm-eval (requests)", 0) as progress, scratch, quiet():
        corpus = fingerprint_in(spec.include)
        if corpus is not None:
            folder: Path | None = write_stand_ins(StandIns(context.heldout(corpus)), spec.tasks, Path(scratch.name))
        else:
            folder = spec.folder(context.sources)
        check_names(spec.tasks, folder)
        found = load_tasks(spec.tasks, folder)
        results = results_of(found, loaded, spec, context, progress)
    policy = "one BOS before every context" if spec.add_bos else "BOS only where there is no context"
    context.extras["bos_policy"] = f"{policy}; whole texts begin with a second one, scored" if spec.scores_bos else policy
    context.extras["bootstrap_iterations"] = BOOTSTRAP_ITERATIONS
    return pd.DataFrame([row for task in found["tasks"] for row in _rows(task, results, spec)])


def _rows(task: str, results: Any, spec: Spec) -> Iterator[dict[str, Any]]:
    scores = results["results"][task]
    names = [name for name in scores if "," in name and "_stderr," not in name]
    metrics = [name.split(",")[0] for name in names]
    # A metric with several filters of the answers keeps the harness's full names, such as "exact_match,strict-match".
    every = [name if metrics.count(metric) > 1 else metric for name, metric in zip(names, metrics, strict=True)]
    for metric in TABLE[task]["metrics"].split() if task in TABLE else every:
        yield {
            "task": task,
            "metric": metric,
            **value_of(scores, metric, 100.0 if metric.startswith(SHARES) and task not in IN_PERCENT else 1.0),
            "num_examples": int(results["n-samples"][task]["effective"]),
            "task_version": str(results["versions"][task]),
            "harness_version": HARNESS_VERSION,
            "batch_size": spec.batch_size,
            "add_bos": int(spec.add_bos),
        }


def value_of(scores: Mapping[str, Any], metric: str, factor: float) -> dict[str, float]:
    """Return the value of one of a task's metrics (named with its filter if there are several) and its standard error (NaN if
    there is none), times a factor."""
    (name,) = (key for key in scores if metric in (key, key.split(",")[0]))
    error = scores.get(name.replace(",", "_stderr,", 1))
    stderr = factor * float(error) if isinstance(error, int | float) else math.nan
    return {"value": factor * float(scores[name]), "stderr": stderr}


def _key(kind: str, texts: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join([kind, *texts]).encode("utf-8", "surrogatepass")).hexdigest()[:24]
