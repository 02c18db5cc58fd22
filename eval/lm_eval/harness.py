"""Models as the LM evaluation harness wants them, with its BOS policy in the open."""

import hashlib
import os
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before lm_eval)
import torch
from lm_eval import evaluator, utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from transformers import PreTrainedModel

from eval.lm_eval.spec import Spec
from eval.shell.batching import Scored, at_ends, check_positions, score
from eval.shell.context import Context
from eval.shell.generation import generate
from eval.shell.loading import Loaded
from eval.shell.text import TextCodec
from models.loss import token_losses
from training.progress import Progress

BOOTSTRAP_ITERATIONS = 1000
Request = tuple[tuple[str, str], list[int], list[int]]


class HarnessModel(TemplateLM):
    """Causal language model as the harness wants it: right-padded batches, logits of the scored positions only.

    BOS policy: with `add_bos` every context begins with exactly one BOS. Texts without context (rolling perplexity) are
    conditioned on one BOS in any case, and their later windows get none. With `scores_bos` such a text begins with a second
    BOS, which is scored: so the authors' `add_bos_token=True` has it.
    Answers are kept in the context's partial file under the digest of the request.
    """

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
        """Return (sum of log-probabilities in nats, whether greedy decoding gives it) of each continuation."""
        records = self.context.partial.records
        todo = {}
        for texts, context, continuation in requests:
            key = _key("loglikelihood", texts)
            if key not in records and key not in todo:
                if not continuation or len(continuation) > self.max_length:
                    raise ValueError(
                        f"a continuation of {len(continuation)} tokens does not fit into max_length {self.max_length}: raise it"
                    )
                todo[key] = (context + continuation, len(continuation))
        self.progress.expect(len(todo))
        order = sorted(todo, key=lambda key: -len(todo[key][0]))
        for start in range(0, len(order), self.spec.batch_size):
            batch = order[start : start + self.spec.batch_size]
            rows = [(todo[key][0][-(self.max_length + 1) :], todo[key][1]) for key in batch]
            for key, row, logits_KV in zip(batch, rows, at_ends(self.model, rows, self._compute), strict=True):
                logprob, greedy = score(row, logits_KV)
                self.context.partial.add(key, {"logprob": logprob, "greedy": greedy})
            self.progress.advance(len(batch))
        found = [records[_key("loglikelihood", texts)] for texts, _, _ in requests]
        return [(record["logprob"], record["greedy"]) for record in found]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability in nats of whole texts, in disjoint windows of max_length."""
        records = self.context.partial.records
        todo = {_key("rolling", request.args): request.args[0] for request in requests}
        self.progress.expect(sum(key not in records for key in todo))
        for key, text in todo.items():
            if key not in records:
                tokens = self.tok_encode(text, add_special_tokens=self.spec.scores_bos)
                windows = utils.get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
                total = sum(self._window(*utils.make_disjoint_window(window)) for window in windows)
                self.context.partial.add(key, {"logprob": total})
                self.progress.advance()
        return [records[_key("rolling", request.args)]["logprob"] for request in requests]

    def _window(self, context: list[int], continuation: list[int]) -> float:
        ids = torch.tensor([*context, *continuation], device=self._compute.device)[None]
        check_positions(self.model, ids.shape[1] - 1, "lower --max-length")
        with self._compute.inference():
            losses_T = token_losses(self.model, ids[:, :-1], ids[:, 1:])[0]
        return -float(losses_T[-len(continuation) :].double().sum())

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate greedily, up to the first stop string."""
        records = self.context.partial.records
        keys = [_key("generate", (request.args[0], repr(sorted(request.args[1].items())))) for request in requests]
        self.progress.expect(sum(key not in records for key in keys))
        for key, request in zip(keys, requests, strict=True):
            if key in records:
                continue
            prompt, options = request.args
            if options.get("do_sample"):
                raise ValueError(f"task {request.task_name} samples; only greedy generation is offered: leave it out")
            until = options.get("until") or []
            stops = tuple(filter(None, [until] if isinstance(until, str) else until))
            limit = options.get("max_gen_toks", 256)

            def done(ids: list[int], stops: tuple[str, ...] = stops) -> bool:
                return any(stop in self.codec.decode(ids) for stop in stops)

            ids = self.tok_encode(prompt)[-(self.max_length - limit) :]
            (new,) = generate(self.model, [ids], self._compute, max_new_tokens=limit, stop_ids=(self.eot_token_id,), stop=done)
            text = self.codec.decode(new)
            for stop in stops:
                text = text.split(stop)[0]
            self.context.partial.add(key, {"text": text})
            self.progress.advance()
        return [records[key]["text"] for key in keys]


def results_of(tasks: Any, loaded: Loaded, spec: Spec, context: Context, progress: Progress) -> Any:
    """Run loaded tasks of the harness on a model, and return its results."""
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # the harness bootstraps standard errors in forked processes otherwise
    lm = HarnessModel(loaded.model, loaded.tokenizer, spec, context, progress)
    results = evaluator.evaluate(
        lm=lm, task_dict=tasks, limit=spec.limit, bootstrap_iters=BOOTSTRAP_ITERATIONS, log_samples=False
    )
    assert results is not None
    return results


def _key(kind: str, texts: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join([kind, *texts]).encode("utf-8", "surrogatepass")).hexdigest()[:24]
