"""Tells whether a change of code left every number as it was.

    python -m tests.equal                              ids, plans and drawings of this checkout
    python -m tests.equal steps --against CHECKOUT     and twenty training steps, here and there

ids        every stored run and evaluation has the id that its stored spec gives
plans      every run that the stored figures plan at scale tiny is a stored one; with CHECKOUT every run that they plan at the
           paper's scales is one that it plans, too
drawings   the published folders, drawn in a copy: CSVs, tables, verdicts and the numbers of claims.md are those that lie
           here, or in CHECKOUT. Words, layout, pictures and reports are free to change
steps      the weights of every kind of model after twenty steps on a CPU equal those that CHECKOUT's code gives

Exits with 1 after the names of what differs."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PUBLISHED = {"results": ("tiny", "mini"), "results/unseen_books": ("mini",)}
"""Results folders with the scales that are drawn."""
BEFORE = {"results": "results", "results/unseen_books": "results/unseen_books"}
"""The same folders in an older CHECKOUT."""
PAPER = ("125m-2.7b", "760m-48b")
MEANT = ("hgrn2",)
"""Models of which no run is stored at the paper's scales, and whose ids changed there on purpose."""
NUMBERS = ("figures/*.csv", "tables/*.csv", "tables/*.md", "verdicts.jsonl", "claims.md")
MODELS = (
    {"kind": "forgetting_transformer"},
    {"kind": "forgetting_transformer", "forget_gate": "none", "use_rope": True},
    {"kind": "forgetting_transformer", "forget_gate": "none", "use_rope": True, "window_size": 16},
    {"kind": "forgetting_transformer", "forget_gate": "none", "attention": "stick_breaking", "stick_remainder": True},
    {"kind": "forgetting_transformer", "forget_gate": "bias_only", "decay_time_min": 2.0, "decay_time_max": 64.0},
    {"kind": "forgetting_transformer", "prune_log_tolerance": -10.0, "mlp_ratio": 3.5}
    | dict.fromkeys(("use_k_shift", "use_v_shift", "qk_norm", "use_output_gate", "use_output_norm"), True),
    {"kind": "mamba2", "head_dim": 32, "ssm_state_size": 16},
    {"kind": "hgrn2", "expand_ratio": 32},
    {"kind": "delta_net", "head_dim": 32},
    {"kind": "samba", "window_size": 16},
    {"kind": "gated_delta_net", "head_dim": 32},
    {"kind": "gated_linear_attention", "head_dim": 32},
    {"kind": "kimi_delta_attention", "head_dim": 32},
    {"kind": "fox_hybrid", "head_dim": 32, "fox_every": 2},
)
WITH_HEADS = ("forgetting_transformer", "samba", "fox_hybrid")
RENDER = """
import sys
from matplotlib.figure import Figure
from PIL import Image
from experiments.__main__ import main
draw, pack = Figure.savefig, Image.Image.save  # pictures are not compared, and PDFs and the report's take long
Figure.savefig = lambda self, *to, **how: how.get("format") == "pdf" or draw(self, *to, **how)
Image.Image.save = lambda self, to, format=None, **how: pack(
    self.resize((1, 1)) if format == "WEBP" else self, to, format, **how
)
sys.exit(main(["render", *sys.argv[1:]]))
"""
STEPS = """
import hashlib, json, sys
from pathlib import Path
from safetensors import safe_open
from data.plan import resolve
from data.prepare import prepare
from data.recall import RecallTask
from data.spec import DataSpec
from models.spec import KINDS
from training.__main__ import main
from training.run_folder import RunFolder
from training.spec import RunSpec, TrainSpec

here, texts, models = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
corpus = prepare(resolve(f"text:{texts}", cache_dir=here, tokenizer="bytes", document_len=128))
recall = DataSpec.of_recall(RecallTask(num_keys=16, num_assignments=1, num_queries=1, num_symbols=32))
rest = dict(batch_tokens=256, train_tokens=5120, warmup_tokens=1280, peak_lr=0.01, precision="fp32")
train = TrainSpec(seq_len=64, **rest)
for number, changes in enumerate(models):
    if changes["kind"] not in KINDS:
        continue
    sizes = dict(vocab_size=257, hidden_size=64, num_layers=2)
    model = KINDS[changes["kind"]](**sizes, **{k: v for k, v in changes.items() if k != "kind"})
    text = number % 2 == 0
    spec = RunSpec(name="steps", scale="tiny", model=model, data=corpus.spec if text else recall, train=train, seed=number)
    folder = RunFolder.create(here / spec.folder_name, spec)
    read = ["--corpus-dir", str(corpus.folder)] if text else []
    assert main([str(folder.path), "--quiet", "--device", "cpu", "--micro-batch-tokens", "128", *read]) == 0
    digest = hashlib.sha256()
    with safe_open(folder.export / "model.safetensors", "numpy") as file:
        for name in sorted(file.keys()):
            digest.update(name.encode() + file.get_tensor(name).tobytes())
    print("weights", json.dumps(changes), digest.hexdigest()[:16], flush=True)
"""
"""Read by the Python of either checkout from its standard input: nothing else of this file need be there."""


def ids() -> Iterator[str]:
    """Yield the stored runs and evaluations whose id is not that of their spec."""
    from eval.kinds import EVAL_SPEC, eval_id
    from training.spec import RUN_SPEC

    runs, metas = ([row for folder in PUBLISHED for row in _published(ROOT / folder, name)] for name in ("runs", "evaluations"))
    for run in runs:
        if RUN_SPEC.validate_json(json.dumps(run["spec"])).run_id != run["run_id"]:
            yield f"run {run['run_id']}: another id"
    for meta in metas:
        if eval_id(EVAL_SPEC.validate_json(json.dumps(meta["spec"]))) != meta["eval_id"]:
            yield f"{meta['eval_id']} of run {meta['run_id']}: another id"
    count = len({(run["scale"], run["run_id"]) for run in runs})
    print(f"ids: {count} runs, {len(metas)} evaluations")
    if count < 684 or len(metas) < 1498:
        yield f"{count} runs and {len(metas)} evaluations are found: 684 and 1,498 were stored"


def _published(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(f"*/{name}.jsonl")) for line in path.read_text().splitlines()]


def plans(before: Path) -> Iterator[str]:
    """Yield the runs that are planned at scale tiny, but have never been trained, and those at the paper's scales that the
    checkout `before` does not plan."""
    there = {path.stem for room in ("experiments", "beyond") for path in (before / room).glob("**/*.py")}
    stems = sorted(there & {path.stem for path in ROOT.glob("results/tiny/*.json")})
    stored = {run["run_id"] for run in _published(ROOT / "results", "runs") if run["scale"].startswith("tiny")}
    known = {"tiny": stored} | ({} if before == ROOT else {at: _planned(before, at, stems) for at in PAPER})
    for scale, there in known.items():
        here = _planned(ROOT, scale, stems)
        print(f"plans: {len(here)} runs at scale {scale}")
        yield from (f"{run}: planned at scale {scale}, but not known" for run in sorted(here - there))
        if len(here) < 60:
            yield f"only {len(here)} runs are planned at scale {scale}"


def _planned(checkout: Path, scale: str, stems: list[str]) -> set[str]:
    """Return the ids of all runs that a checkout plans at a scale for some figures."""
    with tempfile.TemporaryDirectory() as empty:
        folders = [f"--{name}-dir={empty}/{name}" for name in ("results", "corpora")]
        command = [sys.executable, "-m", "experiments", "plan", *stems, "--scale", scale, *folders]
        how = dict(cwd=checkout, env=_environment(checkout), check=True, text=True)
        shown = subprocess.run(command, stdout=subprocess.PIPE, **how).stdout
    runs = re.findall(r"^\S+/(\S+)-([0-9a-f]{10})\b", shown, re.M)
    return {run_id for model, run_id in runs if scale == "tiny" or model not in MEANT}


def drawings(before: Path) -> Iterator[str]:
    """Yield the files that are drawn otherwise than they lie in the checkout `before`."""
    for folder, scales in PUBLISHED.items():
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary, folder)  # pages have commands that name the folder
            shutil.copytree(ROOT / folder, copy, ignore=shutil.ignore_patterns("*.png", "figures", "tables", "unseen_books"))
            for scale in scales:
                command = [sys.executable, "-c", RENDER, "--scale", scale, "--results-dir", folder]
                done = subprocess.run(command, cwd=temporary, stdout=subprocess.DEVNULL, env=_environment(ROOT), check=False)
                if done.returncode:
                    yield f"{folder}/{scale}: not all of it is drawn"
                old = before / (folder if before == ROOT else BEFORE[folder]) / scale
                yield from (f"{folder}/{scale}/{name}" for name in different(old, copy / scale))


def different(one: Path, other: Path) -> list[str]:
    """Return the names of the files with numbers of one folder of a scale that are not the same in another, or not there."""
    names = sorted(str(path.relative_to(one)) for glob in NUMBERS for path in one.glob(glob))
    print(f"drawings: {len(names)} files of {one}")
    return [name for name in names if _numbers(one / name) != _numbers(other / name)]


def _numbers(path: Path) -> object:
    """Return the bytes of a file; of a page of claims only each claim's id, numbers and verdict."""
    if path.name != "claims.md" or not path.is_file():
        return path.read_bytes() if path.is_file() else None
    lines = [line.strip("| \n").split(" | ") for line in path.read_text().splitlines()]
    claims = [cells for cells in lines if re.fullmatch(r"[A-Z]\d+[a-z]?", cells[0])]
    return [(cells[0], cells[-1], re.findall(r"[−-]?\d[\d,]*\.?\d*", " ".join(cells[2:-1]))) for cells in claims]


def steps(before: Path) -> Iterator[str]:
    """Yield the models whose weights differ after twenty steps from those of the checkout `before`."""
    from tests.texts import write_texts

    found: list[dict[str, str]] = []
    for checkout in (ROOT, before):
        with tempfile.TemporaryDirectory() as temporary:
            texts = write_texts(Path(temporary, "texts"), documents=6, sentences_each=40)
            models = [m | ({"num_heads": 2} if m["kind"] in WITH_HEADS else {}) for m in MODELS]
            command = [sys.executable, "-", temporary, str(texts), json.dumps(models)]
            how = dict(cwd=checkout, check=True, env=_environment(checkout), text=True)
            shown = subprocess.run(command, input=STEPS, stdout=subprocess.PIPE, **how).stdout
            lines = (line.split(" ", 1)[1] for line in shown.splitlines() if line.startswith("weights "))
            found.append(dict(line.rsplit(" ", 1) for line in lines))
    here, there = found
    print(f"steps: {len(here)} models here, {len(there)} in {before}")
    yield from (f"other weights, or no model here: {model}" for model in there if here.get(model) != there[model])


def _environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.equal", description=__doc__, formatter_class=raw)
    parser.add_argument("what", nargs="*", default=["ids", "plans", "drawings"], metavar="ids|plans|drawings|steps")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="an older checkout; `steps` needs one")
    asked = parser.parse_args()
    if unknown := set(asked.what) - {"ids", "plans", "drawings", "steps"}:
        parser.error(f"{', '.join(unknown)}: there are ids, plans, drawings and steps")
    if "steps" in asked.what and asked.against is None:
        parser.error("steps: name the checkout to compare with by --against")
    before = (asked.against or ROOT).resolve()
    checks = {"ids": ids, "plans": lambda: plans(before), "drawings": lambda: drawings(before), "steps": lambda: steps(before)}
    faults = [fault for what in asked.what for fault in checks[what]()]
    for fault in faults:
        print(f"DIFFERENT {fault}")
    print(f"{len(faults)} differences" if faults else "equal")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
