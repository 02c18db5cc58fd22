"""The LM evaluation harness as a library, on any model object, with its BOS policy in the open (Tables 1, 7, 8)."""

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import logging
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import pandas as pd
import torch
import torch.nn.functional as F

os.environ.setdefault("DISABLE_MULTIPROC", "1")  # the harness bootstraps standard errors in forked processes otherwise

from lm_eval import evaluator, utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from transformers import PreTrainedModel

from eval.context import Context, inference
from eval.generation import generate
from eval.local_tasks import HARNESS_FILES, harness_file, write_task_files
from eval.progress import Progress
from eval.spec import LmEvalSpec
from eval.text import TextCodec
from models.loss import token_losses

BOOTSTRAP_ITERATIONS = 1000
TABLE_METRICS = {
    "wikitext": ("word_perplexity",),
    "lambada_openai": ("perplexity", "acc"),
    "piqa": ("acc",),
    "hellaswag": ("acc_norm",),
    "winogrande": ("acc",),
    "arc_easy": ("acc",),
    "arc_challenge": ("acc_norm",),
    "copa": ("acc",),
    "openbookqa": ("acc_norm",),
    "sciq": ("acc",),
    "boolq": ("acc",),
}
"""What the paper's tables show of each task; of other tasks every metric is kept."""

Scored = tuple[float, bool]
Request = tuple[tuple[str, str], list[int], list[int]]


class HarnessModel(TemplateLM):
    """A causal language model as the harness wants it: right-padded batches, logits of the scored positions only.

    BOS policy: with `add_bos` every context begins with exactly one BOS; texts without context (rolling perplexity) are
    conditioned on one BOS in any case, which is never itself scored, and their later windows get none.
    Answers are kept in the context's partial file under the digest of the request.
    """

    def __init__(self, model: PreTrainedModel, codec: TextCodec, spec: LmEvalSpec, context: Context, progress: Progress):
        super().__init__()
        self.model, self.codec, self.spec, self.context, self.progress = model, codec, spec, context, progress
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._device = torch.device(context.device)

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
        """(sum of log-probabilities in nats, whether greedy decoding gives it) of each continuation after its context."""
        records = self.context.partial.records
        todo = {}
        for texts, context, continuation in requests:
            key = _key("loglikelihood", texts)
            if key not in records and key not in todo:
                if not continuation or len(continuation) > self.max_length:
                    raise ValueError(
                        f"a continuation of {len(continuation)} tokens cannot be scored within max_length {self.max_length}"
                    )
                todo[key] = (context + continuation, len(continuation))
        self.progress.expect(len(todo))
        order = sorted(todo, key=lambda key: -len(todo[key][0]))
        for batch in _chunks(order, self.spec.batch_size):
            for key, scored in zip(batch, self._score([todo[key] for key in batch]), strict=True):
                self.context.partial.add(key, {"logprob": scored[0], "greedy": scored[1]})
            self.progress.advance(len(batch))
        found = [records[_key("loglikelihood", texts)] for texts, _, _ in requests]
        return [(record["logprob"], record["greedy"]) for record in found]

    def _score(self, batch: Sequence[tuple[list[int], int]]) -> list[Scored]:
        rows = [(ids[-(self.max_length + 1) :], scored) for ids, scored in batch]
        width = max(len(ids) for ids, _ in rows) - 1
        inputs_BT = torch.tensor([ids[:-1] + [0] * (width + 1 - len(ids)) for ids, _ in rows], device=self._device)
        spans = [range(len(ids) - 1 - scored, len(ids) - 1) for ids, scored in rows]
        wanted = sorted({position for span in spans for position in span})
        with inference(self.context.device):
            if self._keeps_logits:
                keep = torch.tensor(wanted, device=self._device)
                logits_BKV = self.model(input_ids=inputs_BT, use_cache=False, logits_to_keep=keep).logits
            else:
                logits_BKV = self.model(input_ids=inputs_BT, use_cache=False).logits[:, wanted]
            column = {position: k for k, position in enumerate(wanted)}
            results = []
            for logits_KV, (ids, scored), span in zip(logits_BKV, rows, spans, strict=True):
                logits = logits_KV[[column[p] for p in span]].float()
                target = torch.tensor(ids[-scored:], device=self._device)
                logprob = -F.cross_entropy(logits, target, reduction="none").double().sum()
                results.append((float(logprob), bool((logits.argmax(-1) == target).all())))
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability in nats of whole texts, in disjoint windows of max_length."""
        records = self.context.partial.records
        todo = {_key("rolling", request.args): request.args[0] for request in requests}
        self.progress.expect(sum(key not in records for key in todo))
        for key, text in todo.items():
            if key not in records:
                tokens = self.tok_encode(text, add_special_tokens=False)
                windows = utils.get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
                total = sum(self._window(*utils.make_disjoint_window(window)) for window in windows)
                self.context.partial.add(key, {"logprob": total})
                self.progress.advance()
        return [records[_key("rolling", request.args)]["logprob"] for request in requests]

    def _window(self, context: list[int], continuation: list[int]) -> float:
        ids = torch.tensor([*context, *continuation], device=self._device)[None]
        with inference(self.context.device):
            losses_T = token_losses(self.model, ids[:, :-1], ids[:, 1:])[0]
        return -float(losses_T[-len(continuation) :].double().sum())

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy generation up to the first stop string."""
        records = self.context.partial.records
        self.progress.expect(len(requests))
        for request in requests:
            prompt, options = request.args
            key = _key("generate", (prompt, repr(sorted(options.items()))))
            if key in records:
                continue
            if options.get("do_sample"):
                raise ValueError(f"task {request.task_name} samples; only greedy generation is offered")
            until = options.get("until") or []
            until = [until] if isinstance(until, str) else until
            stops = tuple(stop for stop in until if stop)
            limit = options.get("max_gen_toks", 256)

            def done(ids: list[int], stops: tuple[str, ...] = stops) -> bool:
                return any(stop in self.codec.decode(ids) for stop in stops)

            ids = self.tok_encode(prompt)[-(self.max_length - limit) :]
            (new,) = generate(
                self.model, [ids], max_new_tokens=limit, device=self.context.device, stop_ids=(self.eot_token_id,), stop=done
            )
            text = self.codec.decode(new)
            for stop in stops:
                text = text.split(stop)[0]
            self.context.partial.add(key, {"text": text})
            self.progress.advance()
        return [records[_key("generate", (r.args[0], repr(sorted(r.args[1].items()))))]["text"] for r in requests]


def evaluate(model: PreTrainedModel, tokenizer: TextCodec, spec: LmEvalSpec, context: Context) -> pd.DataFrame:
    """Rows (task, metric, value, stderr, num_examples, task_version, harness_version, batch_size, add_bos): accuracies in
    percent, perplexities plain, standard errors alike (NaN where the harness has none). Zero-shot.

    Raises ValueError for unknown tasks, and for data that are neither local nor to be had from the hub.
    """
    with Progress("lm-eval (requests)", 0) as progress, contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        folder = context.include_path
        if spec.include == "local":
            assert context.local_tasks is not None
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lm-eval-tasks-")))
            folder = write_task_files(context.local_tasks / "lm_eval", scratch)
        loaded = _load_tasks(spec, folder)
        lm = HarnessModel(model, tokenizer, spec, context, progress)
        results = evaluator.evaluate(
            lm=lm, task_dict=loaded, limit=spec.limit, bootstrap_iters=BOOTSTRAP_ITERATIONS, log_samples=False
        )
    assert results is not None
    context.extras["bos_policy"] = "one BOS before every context" if spec.add_bos else "BOS only where there is no context"
    context.extras["bootstrap_iterations"] = BOOTSTRAP_ITERATIONS
    return pd.DataFrame([row for task in loaded["tasks"] for row in _rows(task, results, spec)])


def _load_tasks(spec: LmEvalSpec, folder: Path | None) -> Any:
    manager = TaskManager(include_path=folder, include_defaults=False)
    wanted = [
        name if name in manager.task_index or name not in HARNESS_FILES else str(harness_file(name)) for name in spec.tasks
    ]
    if any(name not in manager.task_index and name not in HARNESS_FILES for name in spec.tasks):
        manager = TaskManager(include_path=folder) if folder is not None else _harness_tasks()
        unknown = [name for name in spec.tasks if name not in manager.task_index]
        if unknown:
            raise ValueError(
                f"task {', '.join(unknown)} is not known to lm-eval {importlib.metadata.version('lm_eval')}; a local task file "
                "goes in with --include-path"
            )
    try:
        loaded = manager.load(wanted)
    except ValueError:
        raise
    except Exception as error:  # datasets and the hub client raise many types when data cannot be had
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise ValueError(
            f"the data of {', '.join(spec.tasks)} are neither local nor to be had: {type(error).__name__}: {reason}\n"
            "On a machine without internet name local task files with --include-path, or fill the cache first."
        ) from error
    for task in loaded["tasks"].values():
        task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=0)
    return loaded


@functools.cache
def _harness_tasks() -> TaskManager:
    """The index of the harness's own tasks; reading its thousands of files takes seconds."""
    return TaskManager()


def _rows(task: str, results: Any, spec: LmEvalSpec) -> Iterator[dict[str, Any]]:
    scores = results["results"][task]
    metrics = TABLE_METRICS.get(task) or tuple(name.split(",")[0] for name in scores if "," in name and "_stderr," not in name)
    for metric in metrics:
        (name,) = (key for key in scores if key.split(",")[0] == metric)
        value, error = scores[name], scores.get(name.replace(metric, f"{metric}_stderr", 1))
        factor = 100.0 if metric.startswith(("acc", "exact_match", "f1")) else 1.0
        yield {
            "task": task,
            "metric": metric,
            "value": factor * float(value),
            "stderr": factor * float(error) if isinstance(error, int | float) else math.nan,
            "num_examples": int(results["n-samples"][task]["effective"]),
            "task_version": str(results["versions"][task]),
            "harness_version": importlib.metadata.version("lm_eval"),
            "batch_size": spec.batch_size,
            "add_bos": int(spec.add_bos),
        }


def _key(kind: str, texts: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join([kind, *texts]).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _chunks(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The harness reports to stdout and its logger, datasets draws bars; this suite has its own progress on stderr."""
    import datasets

    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        logger.setLevel(level)
