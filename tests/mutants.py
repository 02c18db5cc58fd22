"""Faults in lines that make numbers, and a runner that tells whether the tests of a checkout notice them.

    python tests/mutants.py CHECKOUT OUT.json [NAME ...] [--rooms] [--minutes M]

Each fault is put into a copy of CHECKOUT, its tests are run there until the first failure, and it is taken out again. Tests
are the files listed here; with --rooms those of them that exist, and then all tests of the room that has the fault. What OUT
holds already is not run again; the runner ends after M minutes, and the same command goes on.

A fault is a name (function, class or constant, wherever it stands; `part of the path:name` where that is not one place), an
expression, keyword argument or statement in it, and what that becomes."""

import argparse
import ast
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

FAULTS = {
    "test_forgetting_attention": [
        ("first_visible_key", "position_T - (min(window_size, T) - 1)", "position_T - min(window_size, T)"),
        ("first_visible_key", "torch.where(is_cut_BHT, position_T, 0)", "torch.where(is_cut_BHT, position_T + 1, 0)"),
        (
            "pruned_tiles",
            "torch.minimum(count_BHM, first_query_M // tile)",
            "torch.minimum(count_BHM, first_query_M // tile + 1)",
        ),
        (
            "pruned_tiles",
            "cum_BHT[..., first_query_M] - threshold_BH.double().unsqueeze(-1)",
            "cum_BHT[..., first_query_M] + threshold_BH.double().unsqueeze(-1)",
        ),
        ("pruning_threshold", "-2.0 * logit_bound - math.log(num_keys)", "-1.0 * logit_bound - math.log(num_keys)"),
        (
            "reference_attention",
            "(key_T <= query_Q1) & (key_T >= first_key_BHQ[..., None])",
            "(key_T < query_Q1) & (key_T >= first_key_BHQ[..., None])",
        ),
        ("_blocks", "rows.stop + num_keys - num_queries", "rows.stop"),
        ("_block_logits", "position_J[diagonal:] > query_R1", "position_J[diagonal:] >= query_R1"),
        ("_block_logits", "position_J < first_NR[..., None]", "position_J <= first_NR[..., None]"),
        (
            "chunked_backward",
            "torch.bmm(do_NQD[:, rows], v_NTD[:, keys].transpose(1, 2)).sub_(delta_NQ1[:, rows])",
            "torch.bmm(do_NQD[:, rows], v_NTD[:, keys].transpose(1, 2))",
        ),
        ("chunked_backward", "torch.bmm(dlogits_NRJ, k_NTD[:, keys]).mul_(scale)", "torch.bmm(dlogits_NRJ, k_NTD[:, keys])"),
        ("chunked_backward", "dcum_NT[:, keys] -= dlogits_NRJ.sum(1)", "dcum_NT[:, keys] += dlogits_NRJ.sum(1)"),
        (
            "chunked_backward",
            "dk_NTD[:, keys].baddbmm_(dlogits_NRJ.transpose(1, 2), q_NQD[:, rows], alpha=scale)",
            "dk_NTD[:, keys].baddbmm_(dlogits_NRJ.transpose(1, 2), q_NQD[:, rows])",
        ),
    ],
    "test_forgetting_attention test_regimes": [
        (
            "chunked_backward",
            "torch.bmm(dlogits_NRJ, k_NTD[:, keys]).mul_(scale)",
            "torch.bmm(dlogits_NRJ, k_NTD[:, keys]).mul_(q_NQD.shape[-1] ** -0.5)",
        ),
        ("forgetting_attention/chunked:chunked_backward", "alpha=scale", "alpha=q_NQD.shape[-1] ** -0.5"),
    ],
    "kernels/test_without_gpu -k interpreter": [
        ("forgetting_attention/portable:dkdv_kernel", "dk_ND * scale", "dk_ND * D**-0.5"),
    ],
    "stick_breaking/test_without_gpu": [
        ("stick_breaking/portable:dkdv_kernel", "dk_ND * scale", "dk_ND * D**-0.5"),
    ],
    "test_report test_drawn test_rows_by_hand analysis/test_by_hand": [
        ("Drawn.mean", "self.values_SX.mean(axis=0)", "np.median(self.values_SX, axis=0)"),
    ],
    "test_statistics analysis/test_by_hand test_curves": [
        ("LossCurve.mean_N", "self.losses_SN.mean(axis=0)", "np.median(self.losses_SN, axis=0)"),
        ("contrast", "term.seeds.mean()", "np.median(term.seeds)"),
    ],
    "test_tight": [
        (
            "tight_tiles",
            "_by_tile(kept_BHQ, tile, torch.inf).amin(-1).flip(-1).cummin(-1).values.flip(-1)",
            "_by_tile(kept_BHQ, tile, torch.inf).amin(-1)",
        ),
        (
            "tight_tiles",
            "_by_tile(-cum_BHT, tile, -torch.inf).logsumexp(-1).logcumsumexp(-1)",
            "_by_tile(-cum_BHT, tile, -torch.inf).logsumexp(-1)",
        ),
        ("_kept", "first_BHRI[..., None]", "0"),
        ("forgetting_attention", "log_tolerance if tight else None", "-1e-3 if tight else None"),
    ],
    "kernels/test_without_gpu -k under_the_interpreter": [
        ("FusedLinearCrossEntropy.backward", "(derivatives @ weight) * grad", "derivatives @ weight"),
        ("_swiglu_kernel", "1.0 + gate_RC * (1.0 - sigmoid_RC)", "1.0 - sigmoid_RC"),
        ("_cross_entropy_kernel", "sum_C * tl.exp(top - above) + tl.exp(x_C - above)", "sum_C + tl.exp(x_C - above)"),
        ("_conv_backward_kernel", "da + db + dc + dd", "da + db + dc"),
        ("_halves_kernel", "each_N[None, :] <= each_M[:, None] + _HALF", "each_N[None, :] < each_M[:, None] + _HALF"),
        ("_halves_kernel", "head // HEADS_PER_KEY * k_h", "head * k_h"),
        ("_prefix_kernel", "tl.associative_scan(need_M, 0, _least, reverse=True)", "tl.associative_scan(need_M, 0, _least)"),
        ("_stretch_kernel", "(stop > first) & (decay > limit)", "(stop > first) & (decay > limit + 15)"),
        ("_stretch_kernel", "tl.maximum(split * stretch, T - window)", "tl.maximum(split * stretch, T - window - 1)"),
        ("_walk", "acc_MD * shrink_M[:, None]", "acc_MD"),
        ("_norm_of_gated_backward_kernel", "products * scale / d", "products / d"),
        ("_norm_of_gated_kernel", "z_ptr + row // T * z_b + row % T * z_t", "z_ptr + row * z_t"),
    ],
    "kernels/test_without_gpu -k interpreters": [
        ("_rows", "(diagonal == query) & (common <= query)", "diagonal == query"),
        ("_rows", "gl.sum(before_M8, 1)", "gl.max(before_M8, 1)"),
        ("before_kernel", "(decay < LEAST_DECAY) == 0", "(decay < LEAST_DECAY) == 1"),
    ],
    "test_stick_breaking": [
        ("stick_breaking/chunked:chunked_backward", "alpha=scale", "alpha=q_NRD.shape[-1] ** -0.5"),
        (
            "reference_attention",
            "key_T <= query_Q1 if attend_current else key_T < query_Q1",
            "key_T < query_Q1 if attend_current else key_T < query_Q1",
        ),
        ("reference_attention", "log_left_BHQT[..., 1:]", "log_left_BHQT[..., :-1]"),
        ("chunked_backward", "older_NRJ[..., :1] += left_NRJ[..., -1:] * dr_NQ1[:, rows]", "pass"),
    ],
    "test_errors": [
        ("measure_errors", "error**2", "error"),
    ],
    "test_forgetting_transformer": [
        ("decay_time_bias", "-torch.log(torch.expm1(1.0 / times))", "torch.log(torch.expm1(1.0 / times))"),
        ("rotate", "second * cos + first * sin", "second * cos - first * sin"),
        ("ForgettingAttention.forward", "(F.silu if silu else torch.sigmoid)(gate)", "gate"),
        (
            "ForgettingAttention.threshold",
            "pruning_threshold(bound, k.shape[1], log_tolerance)",
            "pruning_threshold(bound / 2, k.shape[1], log_tolerance)",
        ),
        ("ForgettingAttention.attend", "window_size=self.spec.window_size", "window_size=None"),
    ],
    "test_models": [
        (
            "CausalLM.forward",
            "F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())",
            "F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())",
        ),
        ("ForgettingAttention._project", "projected[:, -1:]", "shifted[:, -1:]"),
        ("Block._mix", "zero_padded(self.attn_norm(x), padding)", "self.attn_norm(x)"),
        ("_padding", "(~seen_BT).sum", "seen_BT.sum"),
    ],
    "test_count": [
        ("ForgettingTransformerSpec.mixer_params", "heads * (d + 1)", "heads * d"),
        ("ForgettingTransformerSpec.mixing_flops", "per_key * seq_len // 2", "per_key * seq_len"),
    ],
    "test_initial_values": [
        ("MIXER_GAIN", "2**-2.5", "1.0"),
    ],
    "test_load test_convert": [
        ("_load_authors", "wanted.keys() - found.keys()", "()"),
    ],
    "test_sampler": [
        ("bos_roll", "inputs_BT[:, 0] = bos_id", "pass"),
        ("Sampler.rows", "self.batches_per_column", "self.document_len // self.seq_len"),
        ("share_of", "slice(rank * share, (rank + 1) * share)", "slice(rank, rank + share)"),
    ],
    "test_corpus": [
        (
            "Split.read",
            "chunk[indices[inside] - row * height, first - column * width : last - column * width]",
            "chunk[indices[inside] - row * height, : last - first]",
        ),
    ],
    "test_prepare": [
        (
            "resolve",
            "[FORMAT, digests[0], choice.digest(), document_len, split, max_documents]",
            "[FORMAT, digests[0], choice.digest(), document_len, max_documents]",
        ),
        ("_tokenise", "ids[: len(ids) // document_len * document_len]", "ids"),
    ],
    "test_step": [
        ("open_corpus", "corpus.spec.fingerprint != spec.data.fingerprint", "False"),
        (
            "Stepper.run",
            "nn.utils.clip_grad_norm_(self._parameters, self.spec.grad_clip, foreach=True)",
            "nn.utils.get_total_norm([p.grad for p in self._parameters])",
        ),
        ("Stepper._backward", "losses.where(targets >= 0, 0.0).sum() / counted", "losses.where(targets >= 0, 0.0).mean()"),
        ("Guard.judge", "torch.isfinite(loss) & torch.isfinite(grad_norm)", "torch.isfinite(loss)"),
        ("TrainSpec.weight_decay", "0.1", "0.01"),
    ],
    "test_optimizer": [
        (
            "decays",
            'parameter.ndim >= 2 and not name.endswith(("bias", "A_log", "lower_bounds"))',
            'not name.endswith(("bias", "A_log", "lower_bounds"))',
        ),
    ],
    "test_schedule": [
        (
            "learning_rate",
            "(tokens_seen - spec.warmup_tokens) / (spec.train_tokens - spec.warmup_tokens)",
            "(tokens_seen - spec.warmup_tokens) / spec.train_tokens",
        ),
    ],
    "test_spec": [
        ("_changed", "True", "False"),
    ],
    "test_checkpoint": [
        ("Checkpoints._publish", "whole", "steps"),
    ],
    "test_loop": [
        ("Stepper", "verdict != 0", "0 * verdict"),
    ],
    "test_kinds": [
        ("_UNBOUND", '(None, "heldout", "local")', "(None,)"),
    ],
    "test_loading test_job": [
        ("Loaded.check_token_ids", "own.fingerprint == data.fingerprint", "True"),
    ],
    "test_needle": [
        ("Context.heldout", "found != wanted", "False"),
        ("CellBuilder._checked", "len(prompt) > length", "False"),
        ("insertion_point", "point > 0 and hay[point - 1] not in stops", "False"),
    ],
    "test_lm_eval test_needle_recall": [
        ("at_ends", "len(ids) - 1 - count - first", "len(ids) - count - first"),
    ],
    "test_needle_recall": [
        ("evaluate", "with_it - without", "with_it"),
    ],
    "test_partial": [
        ("Partial.__init__", "found[1:] if found[:1] == [self._head] else []", "found[1:]"),
    ],
    "test_per_token_loss": [
        ("Compute.inference", 'self.precision == "bf16"', "False"),
        ("document_losses", "bos_id", "0"),
    ],
    "test_throughput": [
        ("evaluate", "seconds_RM[:, 1] / seconds_RM[:, 0]", "seconds_RM[:, 0] / seconds_RM[:, 1]"),
    ],
    "test_statistics": [
        ("Estimate.interval", "self.df", "1e9"),
        ("own_noise", "ddof=1", "ddof=0"),
        ("contrast", "by_source.get(term.source, 0.0)", "0.0"),
        ("holm", "np.arange(len(order), 0, -1)", "1.0"),
    ],
    "test_verdict": [
        ("decide_any", "len(alternatives) * min(holds)", "min(holds)"),
        (
            "decide_any",
            "[max(each.p_holds for each in some) for some in alternatives]",
            "[min(each.p_holds for each in some) for some in alternatives]",
        ),
    ],
    "test_curves": [
        ("LossCurve.term", "last - first + 1", "last - first + 2"),
    ],
    "test_fig2_per_token_loss": [
        ("grid_inside", "(32, 16, 8, 4, 2, 1)", "(16, 8, 4, 2, 1)"),
    ],
    "experiments/test_context_use": [
        ("_steps", "losses.everywhere", "end"),
        ("c4", "LATE * fox.train_len", "0.5 * fox.train_len"),
    ],
    "eval/test_context_use": [
        ("evaluate", "place - spec.targets - length", "place - length"),
    ],
    "test_tasks": [
        ("c22b", "9.5", "8.5"),
        ("_what", "lengths.min()", "lengths.max()"),
    ],
    "test_table6_throughput": [
        ("c30", "0.85", "0.95"),
        ("at_longer_contexts", "set(speed) & set(here)", "set(speed) | set(here)"),
    ],
    "test_plan": [
        ("_paper", "256", "128"),
        ("SCALES", "45 * Gi", "48 * Gi"),
        ("Recipe.run_spec", "seed=self.seed", "seed=0"),
    ],
    "test_plan test_count": [
        ("_attention", "not (fox or stick)", "True"),
        ("_OWN", "2 * scale.num_layers", "scale.num_layers"),
    ],
}
ROOMS = ("kernels", "models", "data", "training", "eval", "results", "analysis", "experiments", "beyond")
NODES = (ast.expr, ast.stmt, ast.keyword)
SERVER = multiprocessing.get_context("forkserver")
PRELOADED = ("kernels.hf_guard", "transformers.modeling_utils", "pandera.pandas", "matplotlib.pyplot", "zarr", "hypothesis")
"""What takes long to import, and has no faults: imported once, for all processes of tests."""


def parsed(text: str) -> ast.AST:
    (statement,) = ast.parse(text).body
    if isinstance(statement, ast.Expr):
        return statement.value
    if isinstance(statement, ast.Assign) and text == ast.unparse(statement).replace(" = ", "="):  # as arguments are written
        return ast.parse(f"f({text})", mode="eval").body.keywords[0]  # type: ignore[attr-defined]
    return statement


def named(node: ast.AST, above: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield functions, classes and constants below a node with their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield above + child.name, child
            yield from named(child, f"{above}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign) and isinstance(node, ast.Module | ast.ClassDef):
            yield above + ast.unparse(child.targets[0] if isinstance(child, ast.Assign) else child.target), child
        elif isinstance(child, ast.stmt):
            yield from named(child, above)


class Code:
    """All names of a checkout's code."""

    def __init__(self, root: Path):
        self.names: dict[str, list[tuple[str, ast.AST]]] = {}
        for path in (path for room in ROOMS for path in sorted((root / room).rglob("*.py"))):
            for name, node in named(ast.parse(path.read_text())):
                self.names.setdefault(name, []).append((str(path.relative_to(root)), node))
        self.root = root

    def changed(self, name: str, old: str, new: str) -> list[tuple[str, str]]:
        """Return the file and its changed text for every place that a fault means, which should be one. A name that is gone
        may be another's now: then the expression is looked for everywhere."""
        part, _, name = name.rpartition(":")
        wanted, found = ast.dump(parsed(old)), {}
        scopes = [scope for scope in self.names.get(name, []) if part in scope[0]]
        everywhere = [scope for scopes in self.names.values() for scope in scopes]
        for some in (scopes, everywhere if len(wanted) > 200 else []):
            for file, scope in some:
                for node in (each for each in ast.walk(scope) if isinstance(each, NODES) and ast.dump(each) == wanted):
                    found[file, node.lineno, node.col_offset] = self._with(file, node, new)
            if found:
                break
        return [(file, text) for (file, *_), text in found.items()]

    def _with(self, file: str, node: ast.expr | ast.stmt | ast.keyword, new: str) -> str:
        assert node.end_lineno is not None and node.end_col_offset is not None
        whole = (self.root / file).read_bytes()
        lines = whole.splitlines(keepends=True)
        start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
        end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
        return (whole[:start] + (f"({new})" if isinstance(node, ast.expr) else new).encode() + whole[end:]).decode()


def run_pytest(folder: Path, arguments: list[str], limit_s: float) -> tuple[str, str]:
    """Run pytest in a copy; return "killed", "survived", "hung" or "no tests", and the first test that failed."""
    said = folder / ".said"
    said.unlink(missing_ok=True)
    process = SERVER.Process(target=_within, args=(folder, arguments, said))
    process.start()
    process.join(limit_s)
    code = process.exitcode
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, 9)  # also what a test left behind
    process.join()
    text = said.read_text(errors="replace") if said.is_file() else ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    became = {None: "hung", 0: "survived", 5: "no tests"}.get(code, "killed")
    return became, failed[1] if failed else text.strip()[-300:] if became == "killed" else ""


def _within(folder: Path, arguments: list[str], said: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    sys.dont_write_bytecode = True  # a fault of the same length, written within the same second, would not be read again
    sys.argv[:] = ["pytest", *arguments]
    sys.path[:] = [str(folder), *(path for path in sys.path if path and not (Path(path) / "kernels").is_dir())]
    for name in [name for name in sys.modules if (folder / name.partition(".")[0]).is_dir()]:
        del sys.modules[name]
    code = int(pytest.main(arguments))
    sys.stdout.flush()
    os._exit(code)  # without waiting for threads that a test left behind


def copied(checkout: Path, folder: Path) -> Path:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=checkout, capture_output=True, check=True, text=True).stdout
    for name in listing.split("\0"):
        if (checkout / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkout / name, folder / name)
    return folder


def tests_of(folder: Path, listed: str, room: str, rooms: bool) -> list[list[str]]:
    """Return the arguments of pytest, one list per step: the listed files that exist, and with `rooms` the whole room."""
    names, _, chosen = listed.partition(" -k ")
    all_files = sorted((folder / "tests").rglob("test_*.py"))
    files = [str(p) for name in names.split() for p in all_files if f"/{p.relative_to(folder)}".endswith(f"/{name}.py")]
    first = [[*files, *(["-k", chosen] if chosen else [])]] if files else []
    own = [path for path in (folder / "tests" / room, folder / room / "tests") if path.is_dir()]
    return first + ([[str(path) for path in own]] if rooms and own else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="parts of names of functions, files or tests; default: all")
    parser.add_argument("--rooms", action="store_true", help="run all tests of a fault's room, too")
    parser.add_argument("--minutes", type=float, default=1e6)
    asked = parser.parse_args()
    began, checkout = time.monotonic(), asked.checkout.resolve()
    results = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    kept = asked.out.with_suffix(".whole.json")  # of every step without a fault
    whole: dict[str, list] = json.loads(kept.read_text()) if kept.is_file() else {}
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1")
    os.environ.update(CUBLAS_WORKSPACE_CONFIG=":4096:8")
    sys.path[0] = str(checkout)  # for what is preloaded
    os.chdir(checkout)
    SERVER.set_forkserver_preload(list(PRELOADED))
    code = Code(checkout)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        folder = copied(checkout, Path(scratch, "copy"))
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu and not long and not slurm"]

        def tried(step: list[str], limit_s: float) -> tuple[str, str]:
            return run_pytest(folder, [*options, f"--basetemp={scratch}/tmp", *step], limit_s)

        for tests, name, old, new in ((tests, *fault) for tests, faults in FAULTS.items() for fault in faults):
            key = f"{name}: {old} -> {new}"
            places = code.changed(name, old, new)
            where = places[0][0] if places else ""
            if key in results or (asked.names and not any(part in f"{where} {key} {tests}" for part in asked.names)):
                continue
            if (time.monotonic() - began) / 60 > asked.minutes:
                print("to be continued", flush=True)
                return 75
            result = {"became": "gone" if not places else "several places", "file": where, "by": ""}
            if len(places) == 1:
                before = (folder / where).read_text()
                for step in tests_of(folder, tests, where.split("/")[0], asked.rooms):
                    at = " ".join(step).replace(f"{folder}/", "")
                    if at not in whole:
                        started = time.monotonic()
                        became, by = tried(step, 1800)
                        whole[at] = [became, time.monotonic() - started]
                        kept.write_text(json.dumps(whole, indent=1))
                        print(f"without a fault {became} {by} in {whole[at][1]:.0f} s: {at}", flush=True)
                    if whole[at][0] != "survived":
                        result |= {"became": result["became"] if result["by"] else f"{whole[at][0]} without a fault"}
                        continue
                    (folder / where).write_text(places[0][1])
                    result["became"], result["by"] = tried(step, 90 + 4 * whole[at][1])
                    (folder / where).write_text(before)
                    if result["became"] in ("killed", "hung"):
                        break
            results[key] = result
            asked.out.write_text(json.dumps(results, indent=1))
            print(f"{result['became']}: {key}: {result['by']}", flush=True)
    kinds = [each["became"] for each in results.values()]
    print({kind: kinds.count(kind) for kind in sorted(set(kinds))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
