import time
from itertools import product

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from analysis import panels, training_curves
from analysis.curves import by_model, perplexity, smooth
from analysis.needles import needles
from analysis.style import changed_note, plt, scale_note, tokens
from experiments.acp import acp_pruned_share, acp_speed, acp_tiles, acp_training_curves
from experiments.beyond import cache_eviction, context_use, generation, last_words, mqar, mqar_gates, ruler
from experiments.fox import (
    appendix_ablation_losses,
    appendix_extrapolation,
    appendix_forget_gates,
    appendix_long_needle,
    appendix_seeds,
    appendix_tokens_and_lr,
    appendix_training_curves,
    fig1_architecture,
    fig2_per_token_loss,
    fig3_forget_gates,
    fig4_needle,
    fig5_tokens_and_lr,
    fig6_scale,
    fig7_gate_types,
    table3_ablation,
)
from tests import synthetic

FEW = ("fox_pro", "transformer_pro", "hgrn2")
FOXES = ("fox_pro", "fox_llama")
STEM2, STEM4 = "fig2_per_token_loss", "fig4_needle"
LOOKED_AT = ("test_equal_rows_give_equal_bytes_in_the_artefacts_folder", "test_figure_2_at_the_papers_size_is_fast_and_small")


@pytest.fixture(autouse=True)
def pictures_of_the_tests_that_look_at_them(request):
    if request.function.__name__ not in LOOKED_AT:
        request.getfixturevalue("pictures_of_a_dot")


def losses(tmp_path, stem=STEM2, **how):
    return synthetic.main_losses(synthetic.Store(tmp_path, train_len=128), stem, **{"models": FEW, "documents": 8} | how)


def gates(tmp_path, *, models=("fox_pro",), seeds=1, seq_len=512, change=None, stem="fig3_forget_gates", **how):
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(2)
    for model in models:
        for seed in range(seeds):
            rows = synthetic.gate_rows(rng, **{"layers": 2, "heads": 3, "size": 16, "seq_len": seq_len} | how)
            rows = rows if change is None else change(rows)
            extras = {"seq_len": seq_len, "cell": seq_len // 16, "distance": seq_len // 16, "document": 0}
            store.add(stem, model, [("gate_maps", rows)], seed=seed, extras=extras)
    return store.study(stem)


def needle_study(
    tmp_path, *, models=("fox_pro", "mamba2"), floor=False, recall=True, train_len=128, seeds=1, stem=STEM4, **how
):
    store, rng = synthetic.Store(tmp_path, train_len=train_len), np.random.default_rng(1)
    grid = {"lengths": (64, 100, 200), "depths": (0.0, 50.0)} | how
    for model in models:
        for seed in range(seeds):
            rows = synthetic.needle_rows(model, rng, train_len=train_len, **grid)
            kinds = [("needle", rows.assign(score=1.0) if floor else rows)]
            kinds += [("needle_recall", synthetic.recall_rows(rng, 2.0, train_len=train_len, **grid))] if recall else []
            store.add(stem, model, kinds, seed=seed)
    return store.study(stem)


def settings(tmp_path, stem="fig5_tokens_and_lr", mode="easy"):
    store, rng = synthetic.Store(tmp_path, train_len=128), np.random.default_rng(3)
    for count, rate in ((1e6, 1e-3), (1e6, 2e-3), (4e6, 1e-3)):
        loss = synthetic.curve("fox_pro", 128, 512, floor=3.0) - count / 1e8
        mean, bands = synthetic.documents_of(loss, rng, np.zeros((8, 16)))
        recall = synthetic.recall_rows(
            rng, 2.0, train_len=128, lengths=(64, 200), depths=(0.0, 100.0), samples=2, modes=(mode,)
        )
        kinds = [("per_token_loss", synthetic.loss_rows(mean, bands)), ("needle_recall", recall)]
        train = {"train_tokens": int(count), "peak_lr": rate}
        store.add(stem, f"{count / 1e6:g}M tokens, LR {rate:g}", kinds, model="fox_pro", train=train, axes=train)
    return store.study(stem)


def scales(tmp_path, stem="fig6_scale"):
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(4)
    for axis, value, train_len in (("size", "25M", 128), ("size", "50M", 128), ("context", 128, 128), ("context", 256, 256)):
        label = f"{axis} {value}"
        for model in ("fox_pro", "transformer_pro"):
            mean, bands = synthetic.documents_of(synthetic.curve(model, train_len, 4 * train_len), rng, np.zeros((8, 16)))
            store.add(stem, label, [("per_token_loss", synthetic.loss_rows(mean, bands))], model=model,
                      train={"seq_len": train_len, "batch_tokens": 1024}, name=model + label,
                      axes={"varied": axis, "value": value})  # fmt: skip
    return store.study(stem)


def gate_types(tmp_path):
    store, rng = synthetic.Store(tmp_path, train_len=128), np.random.default_rng(5)
    for model in ("fox_pro", "fox_llama"):
        for axes in ({"gate": "full"}, *({"gate": kind, "longest": n} for kind in ("bias_only", "fixed") for n in (8, 64))):
            mean, bands = synthetic.documents_of(synthetic.curve("fox_pro", 128, 512), rng, np.zeros((8, 16)))
            kinds = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            store.add("fig7_gate_types", str(axes), kinds, model=model, name=f"{model} {axes}", axes=axes)
    return store.study("fig7_gate_types")


def trainings(tmp_path, seeds=2):
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(6)
    for model in FEW:
        for seed in range(seeds):
            step = np.arange(1, 201)
            loss = 3 + np.exp(-step / 20) + 0.05 * rng.normal(size=200)
            loss[17] = np.nan  # a bad step
            rows = {
                "step": step,
                "tokens": 1024 * step,
                "loss": loss,
                "grad_norm": 1.0,
                "lr": 1e-3,
                "tokens_per_s": 500.0 + seed,
            }
            store.add("appendix_training_curves", model, [("training_curve", pd.DataFrame(rows | {"mfu": np.nan}))], seed=seed)
    return store.study("appendix_training_curves")


LLAMA = {f"layers.0.attn.{name}_proj.weight": "8 x 8" for name in "qkvo"} | {"layers.0.attn.fgate_proj.weight": "2 x 8"}
PRO = {"layers.0.attn.q_proj.weight": "8 x 8", "layers.0.attn.k_proj.linear.weight": "8 x 8",
       "layers.0.attn.k_proj.shift_proj.weight": "2 x 8", "layers.0.attn.v_proj.linear.weight": "8 x 8",
       "layers.0.attn.v_proj.shift_proj.weight": "2 x 8",
       "layers.0.attn.o_proj.weight": "8 x 8", "layers.0.attn.fgate_proj.weight": "2 x 8",
       "layers.0.attn.q_norm.weight": "4", "layers.0.attn.k_norm.weight": "4", "layers.0.attn.output_norm.weight": "8",
       "layers.0.attn.ogate_proj.weight": "8 x 8"}  # fmt: skip


def blocks(tmp_path, extra=("fox_llama", LLAMA)):
    store = synthetic.Store(tmp_path)
    for model, names in (("fox_pro", PRO), extra):
        store.add(
            "fig1_architecture", model, [("parameters", synthetic.parameter_rows(names | {"embeddings.weight": "9 x 8"}))]
        )
    return store.study("fig1_architecture")


def pruned(tmp_path, stem="acp_pruned_share", kinds=("pruning", "training_curve")):
    store = synthetic.Store(tmp_path)
    steps = np.arange(1, 65)
    for context in (256, 512):
        share = np.where(steps % 8 == 0, 0.4 + steps / 200, np.nan)
        training = {"step": steps, "tokens": 1024 * steps, "loss": 3 + np.exp(-steps / 20), "grad_norm": 1.0, "lr": 1e-3,
                    "tokens_per_s": 500.0, "mfu": np.nan, "pruned_share": share}  # fmt: skip
        rows = {
            "pruning": synthetic.pruning_rows([0.9, 0.5, 0.1], context=context),
            "training_curve": pd.DataFrame(training),
            "attention_speed": synthetic.speed_rows({"attention_forward": 0.5, "attention": 0.4, "step": 0.8}),
        }
        spec = {"context_len": context, "tile": 32, "log_tolerance": -10.0}
        for name in ("pruned", "unpruned") if stem == "acp_training_curves" else ("pruned",):
            own = [(kind, rows[kind]) for kind in kinds]
            store.add(stem, f"{name}, context {context}", own, model="fox_pro", evaluation=spec, train={"seq_len": context},
                      axes={"pruning": name, "context": context})  # fmt: skip
    return store.study(stem)


def ablated(tmp_path):
    store, stem = synthetic.Store(tmp_path, train_len=128), "appendix_ablation_losses"
    models, axes = ({row[0]: row[place] for row in table3_ablation.ROWS} for place in (1, 2))
    curves = {label: synthetic.curve("fox_pro", 128, 512) + place / 50 for place, label in enumerate(table3_ablation.PRINTED)}
    synthetic.add_losses(store, stem, curves, documents=8, models=models, axes=axes)
    return store.study(stem)


def needles_of_ruler(tmp_path):
    store, rng = synthetic.Store(tmp_path, train_len=640), np.random.default_rng(7)
    for model in ("fox_pro", "mamba2"):
        rows = [{"task": f"niah_single_{n}", "length": length, "value": float(rng.uniform(0, 100)), "stderr": 3.0,
                 "num_examples": 16} for n in (1, 2, 3) for length in (448, 1024)]  # fmt: skip
        store.add("ruler", model, [("ruler", pd.DataFrame(rows))], evaluation={"answers": "choose", "samples": 16})
    return store.study("ruler")


def recalled(tmp_path, seeds=2, pairs_first=()):
    """`pairs_first`: models whose rows are of Zoology's layout."""
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(8)
    for model, seed in ((model, seed) for model in ("fox_pro", "mamba2") for seed in range(seeds)):
        for keys in (16, 32):
            correct = rng.integers(0, keys + 1, 20)
            rows = {"sequence": np.arange(20), "num_queries": keys, "num_correct": correct, "num_stale": 0}
            own = [("recall", pd.DataFrame(rows))]
            task = {"recall": {"num_symbols": 16} | ({"pairs_first": True} if model in pairs_first else {})}
            axes, name = {"num_keys": keys}, f"{model} {keys}"
            store.add("mqar", f"{keys} keys", own, model=model, seed=seed, name=name, data=task, axes=axes)
    return store.study("mqar")


def recalled_from_the_start(tmp_path, seeds=2):
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(8)
    lines = {("transformer_pro", None): 0.9, ("fox_pro", None): 0.2, ("fox_pro", "spread"): 0.6, ("fox_pro", "long"): 0.8}
    for ((model, start), share), keys, seed in product(lines.items(), (16, 32), range(seeds)):
        rows = pd.DataFrame({"sequence": np.arange(20), "num_queries": keys, "num_correct": rng.binomial(keys, share, 20)})
        own, axes = [("recall", rows.assign(num_stale=0))], {"num_keys": keys} | ({"start": start} if start else {})
        task = {"recall": {"num_symbols": 16, "pairs_first": True}}
        how = dict(model=model, seed=seed, name=f"{model} {keys} {start}", data=task, axes=axes)
        store.add("mqar_gates", f"{keys} keys{f', {start}' if start else ''}", own, **how)
    return store.study("mqar_gates")


def test_recall_is_told_by_how_the_gates_start(tmp_path):
    """A gate's start is not averaged with another's, and what starts in no way of its own is the paper's."""
    rows = mqar_gates.summary(recalled_from_the_start(tmp_path)).rows
    assert list(rows) == ["transformer_pro", *(f"FoX (Pro), {name}" for name in mqar_gates.STARTS.values())]
    assert [round(row[0] / 10) for row in rows.values()] == [9, 2, 6, 8]


def test_rows_of_two_layouts_of_recall_do_not_meet(tmp_path):
    whole, some = recalled(tmp_path / "old"), recalled(tmp_path / "new", pairs_first=("mamba2",))
    assert set(mqar.shares(whole).index.get_level_values("model")) == {"fox_pro", "mamba2"}
    assert set(mqar.shares(some).index.get_level_values("model")) == {"mamba2"}


def test_recall_says_which_models_start_from_larger_weights(tmp_path):
    """Unless all of them do, or none."""

    def told(**starts: float | None) -> str:
        store, rows = synthetic.Store(tmp_path / "-".join(starts)), {"num_queries": 16, "num_correct": 8, "num_stale": 0}
        task = {"recall": {"num_symbols": 16, "pairs_first": True}}
        for model, start in starts.items():
            spec = {"kind": model} | ({"initializer_range": start} if start else {})
            own, axes = [("recall", pd.DataFrame({"sequence": [0, 1], **rows}))], {"num_keys": 16}
            store.add("mqar", "16 keys", own, model=model, spec=spec, name=model, data=task, axes=axes)
        return mqar.summary(store.study("mqar")).note

    note = " Initial weights have a standard deviation of 0.1 in FoX (Pro), in others as on text. One seed."
    assert told(fox_pro=0.1, path_fox=None).endswith(note)
    assert "weights" not in told(fox_pro=0.1, alibi=0.1) + told(mamba2=None, hgrn2=None)


def test_recall_by_learning_rate_is_of_one_model_and_number_of_keys(tmp_path):
    store = synthetic.Store(tmp_path)
    told = {("fox_pro", 16, 1e-3): 4, ("fox_pro", 16, 4e-3): 12, ("fox_pro", 32, 1e-3): 24, ("mamba2", 16, 1e-3): 16}
    for (model, keys, rate), correct in told.items():
        rows = pd.DataFrame({"sequence": [0, 1], "num_queries": keys, "num_correct": [0, correct], "num_stale": 0})
        axes, task = {"num_keys": keys, "peak_lr": rate}, {"recall": {"num_symbols": 16, "pairs_first": True}}
        how = dict(model=model, name=f"{model} {keys} {rate}", data=task, axes=axes, train={"peak_lr": rate})
        store.add("mqar", f"{keys} keys, LR {rate:g}", [("recall", rows)], **how)
    assert mqar.shares_by_rate(store.study("mqar"), "fox_pro", 16) == {1e-3: 12.5, 4e-3: 37.5}


def more_context(tmp_path, seeds=2):
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(9)
    for place, model in enumerate(("fox_pro", "transformer_pro", "hgrn2")):
        for seed in range(seeds):
            rows = synthetic.context_rows(lambda c, place=place: 3.0 + 0.1 * place - 0.02 * np.log2(c), rng)
            store.add("context_use", model, [("context_use", rows)], seed=seed, evaluation={"targets": 32})
    return store.study("context_use")


def told_words(tmp_path, seeds=2):
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(10)
    rule = {"anywhere": False, "words": 200, "near": 20, "common": 500}
    for place, model in enumerate(("fox_pro", "transformer_pro", "hgrn2")):
        for seed in range(seeds):
            rows = synthetic.word_rows(rng, 0.5 - 0.1 * place, 0.05)
            store.add("last_words", model, [("last_words", rows)], seed=seed, evaluation=rule)
    return store.study("last_words")


def generated(tmp_path, commits=None):
    store = synthetic.Store(tmp_path)
    for model, speeds in (("fox_pro", {"whole": 50.0, "pruned": 90.0, "evicting": 30.0}), ("mamba2", {"whole": 80.0})):
        sha = (commits or {}).get(model, synthetic.PROVENANCE["git_sha"])
        rows = [("decoding", synthetic.decoding_rows(speeds))]
        store.add("generation", model, rows, evaluation={"new_tokens": 32}, git_sha=sha)
    return store.study("generation")


def test_generation_is_told_from_the_fastest_to_the_slowest(tmp_path):
    found = generation.findings(generated(tmp_path))
    rates = ("FoX (Pro), pruned {}, Mamba-2 {}, FoX (Pro) {}, FoX (Pro), evicting {}.".format(*each) for each in (
        ("45 [81, 99]", "40 [72, 88]", "25 [45, 55]", "15 [27, 33]"),
        ("180 [81, 396]", "160 [72, 352]", "100 [45, 220]", "60 [27, 132]")))  # fmt: skip
    texts = ("one text", "4 texts")
    of_all = f"Tokens decoded per second [{generation.QUANTILES}] after {{}} of 1k tokens: {{}}"
    assert found[:2] == [of_all.format(*each) for each in zip(texts, rates, strict=True)]
    assert (
        found[3].startswith("In memory for one text of 1k tokens, with gate sums and unused slots, in MiB: FoX (Pro) 4, ")
        and found[2] == generation.EVICTING
        and len(found) == 4
    )


def test_generation_says_which_models_were_timed_with_other_code(tmp_path):
    found = generation.findings(generated(tmp_path, {"mamba2": "f" * 40}))
    assert found[0].endswith(" FoX (Pro), evicting 15 [27, 33]; with other code: Mamba-2 40 [72, 88].")
    assert found[2] == "Timed with different code: FoX (Pro) (0123456789+); Mamba-2 (ffffffffff+). Compare within these."


def evicted(tmp_path, seeds=2):
    store = synthetic.Store(tmp_path)
    for model in FOXES:
        for seed in range(seeds):
            rows = synthetic.eviction_rows(kept=[[0.02, 0.1], [0.3, 1.0]], change=2e-7, dropped=3e-6)
            store.add("cache_eviction", model, [("cache_eviction", rows)], seed=seed, evaluation={"log_tolerance": -10.0})
    return store.study("cache_eviction")


EVERY = [
    (cache_eviction, evicted, 3),
    (ruler, needles_of_ruler, 3),
    (mqar, recalled, 3),
    (mqar_gates, recalled_from_the_start, 3),
    (generation, generated, 3),
    (context_use, more_context, 3),
    (last_words, told_words, 3),
    (appendix_ablation_losses, ablated, 3),
    (appendix_forget_gates, lambda path: gates(path, models=FOXES, heads=2, stem="appendix_forget_gates"), 3),
    (appendix_long_needle, lambda path: needle_study(path, stem="appendix_long_needle", modes=("easy",)), 3),
    (appendix_seeds, lambda path: losses(path, stem="appendix_seeds", models=FEW[:2], seeds=3, seed_noise=0.02), 6),
    (appendix_tokens_and_lr, lambda path: settings(path, "appendix_tokens_and_lr", "standard"), 3),
    (acp_pruned_share, pruned, 3),
    (acp_tiles, lambda path: pruned(path, "acp_tiles", ("pruning",)), 3),
    (acp_speed, lambda path: pruned(path, "acp_speed", ("attention_speed",)), 3),
    (acp_training_curves, lambda path: pruned(path, "acp_training_curves", ("training_curve",)), 3),
    (fig1_architecture, blocks, 3),
    (fig2_per_token_loss, losses, 6),
    (fig3_forget_gates, gates, 3),
    (fig4_needle, needle_study, 3),
    (fig5_tokens_and_lr, settings, 3),
    (fig6_scale, scales, 3),
    (fig7_gate_types, gate_types, 3),
    (appendix_training_curves, trainings, 3),
    (appendix_extrapolation, scales, 3),
]


@pytest.mark.parametrize(("module", "made", "files"), EVERY, ids=[module.__name__.rpartition(".")[2] for module, _, _ in EVERY])
def test_equal_rows_give_equal_bytes_in_the_artefacts_folder(module, made, files, tmp_path, request):
    """Bytes of three pictures with all that a figure can hold; test_committed draws the others a second time."""
    studies = made(tmp_path / "a"), made(tmp_path / "b")
    one = module.draw(studies[0])
    compares_pictures = module in (fig2_per_token_loss, fig4_needle, context_use)
    if not compares_pictures:
        request.getfixturevalue("pictures_of_a_dot")
    two = module.draw(studies[1])
    assert len(one) == len(two) == files
    assert {path.parent for path in one} == {tmp_path / "a" / "tiny" / "figures"}
    assert all(path.stem.startswith(studies[0].stem) for path in one)
    for first, second in zip(one, two, strict=True):
        if compares_pictures or first.suffix == ".csv":
            assert first.read_bytes() == second.read_bytes()
    picture = Image.open(next(path for path in one if path.suffix == ".png"))
    assert picture.width > 1000
    assert picture.info["Description"].startswith("scale: tiny (not the paper's) · corpus: made-up")
    assert module.summary(studies[0]).rows


def test_figure_1_draws_what_the_model_has(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(fig1_architecture, "_box", lambda axes, x, stage, *rest: drawn.append((x, *stage[:2])))
    softmax = {name: shape for name, shape in LLAMA.items() if "fgate" not in name}
    fig1_architecture.draw(blocks(tmp_path, ("transformer_llama", softmax)))
    texts = [text for _, _, text in drawn[4:]]  # the block's own four come first
    pro, plain = texts[: texts.index("Linear", texts.index("Linear, $\\sigma$")) + 1], texts[-5:]
    assert sorted(pro) == sorted(["Linear, $\\log\\sigma$", "Linear", "RMSNorm", "ShiftLinear", "RMSNorm", "ShiftLinear",
                                  "Forgetting attention", "RMSNorm", "Linear, $\\sigma$", "Linear"])  # fmt: skip
    assert sorted(plain) == sorted(["Linear"] * 4 + ["Softmax attention"])
    # from the bottom to the top: attention, its norm, the output projection
    heights = {text: y for _, y, text in drawn[4 : 4 + len(pro)]}
    assert heights["Forgetting attention"] < heights["RMSNorm"] < heights["Linear"]
    table = fig1_architecture.summary(blocks(tmp_path / "again"))
    assert table.rows["fox_pro"][1:3] == [16.0, 32.0]  # gate; shift


def test_figure_2_draws_smoothed_losses_and_perplexities(tmp_path):
    study = losses(tmp_path, seeds=3, seed_noise=0.02)
    table = pd.read_csv(fig2_per_token_loss.draw(study)[2])
    assert table["position"].iloc[[0, -1]].tolist() == [8, 512]
    curve, at = by_model(study)["transformer_pro"], table["position"] - 1
    seeds = np.stack([smooth(own, 17) for own in curve.losses_SN])[:, at]
    np.testing.assert_allclose(table["transformer_pro_loss_smoothed"], seeds.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(table["transformer_pro_loss_smoothed_low"], seeds.min(axis=0), rtol=1e-5)
    np.testing.assert_allclose(table["transformer_pro_loss_smoothed_high"], seeds.max(axis=0), rtol=1e-5)
    np.testing.assert_allclose(table["transformer_pro_perplexity"], perplexity(curve.losses_SN)[:, at].mean(axis=0), rtol=1e-5)


def test_figure_2_takes_the_texts_own_difficulty_out(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(panels, "draw_lines", lambda axes, lines: drawn.append(lines))
    paths = fig2_per_token_loss.draw(losses(tmp_path))
    table, left = pd.read_csv(paths[2]), drawn[0]
    assert [line.style.label for line in left] == ["FoX (Pro)", "Transformer (Pro)", "HGRN2"]
    for model, line in zip(FEW, left, strict=True):
        np.testing.assert_allclose(line.mean, table[f"{model}_loss_smoothed"] - table["mean_of_models"], atol=1e-4)
    drawn.clear()
    fig2_per_token_loss.draw(losses(tmp_path / "one", models=FEW[:1]))
    assert drawn[0][0].mean.mean() > 1, "one model is not set against itself"


@pytest.mark.parametrize(("figure", "made"), [(fig5_tokens_and_lr, settings), (appendix_ablation_losses, ablated)])
def test_one_line_is_not_set_against_itself(tmp_path, monkeypatch, figure, made):
    """It would be 0 everywhere. The first line of the ablations is in one panel alone."""
    drawn, study = [], made(tmp_path)
    study.lines, draw = study.lines[:1], panels.draw_lines
    monkeypatch.setattr(panels, "draw_lines", lambda axes, lines: drawn.append((axes, lines)) or draw(axes, lines))
    figure.draw(study)
    ((axes, (line,)),) = drawn
    assert line.mean.mean() > 1 and axes.get_ylabel() == "$L(i)$ (nats)"


@pytest.mark.parametrize("rule", ["pruned", "unpruned"])
def test_a_training_without_its_partner_is_drawn_alone(tmp_path, monkeypatch, rule):
    study, drawn = pruned(tmp_path, "acp_training_curves", ("training_curve",)), []
    study.lines = [line for line in study.lines if line.axes["pruning"] == rule]
    monkeypatch.setattr(acp_training_curves, "publish", lambda study, figure, *_: drawn.extend(figure.axes))
    acp_training_curves.draw(study)
    assert [axes.get_ylabel() for axes in drawn] == ["training loss (nats)"], "no empty panel beside it"


def test_a_model_that_breaks_down_is_not_in_the_mean_of_the_models():
    x = np.arange(1, 1025)
    styles = [panels.LineStyle(name, "#000000") for name in ("calm", "also", "wild")]
    values = [np.full(1024, 3.0), np.full(1024, 3.2), np.where(x > 300, 9.0, 3.1)]
    lines = [panels.Drawn(style, x, own[None]) for style, own in zip(styles, values, strict=True)]
    shown, text, wild = panels.without_text(lines, 256)
    assert wild == ["wild"]
    np.testing.assert_allclose(text, 3.1)
    np.testing.assert_allclose([line.mean[-1] for line in shown], [-0.1, 0.1, 5.9])


def test_runs_from_a_changed_tree_are_said_on_the_picture(tmp_path):
    study = losses(tmp_path)
    for record in study.runs.values():
        record["starts"] = [{"date": "2026-01-01", "git_dirty": False}]
    assert changed_note(study) == ""
    study.runs[study.lines[0].run_id]["starts"].append({"date": "2026-01-02", "git_dirty": True})
    assert changed_note(study) == "1 of 3 runs of uncommitted code"
    note = Image.open(fig2_per_token_loss.draw(study)[0]).info["Description"]
    assert note.endswith("1 of 3 runs of uncommitted code")


def test_one_seed_has_no_band(tmp_path):
    assert not [name for name in pd.read_csv(fig2_per_token_loss.draw(losses(tmp_path))[2]) if name.endswith("_low")]


@pytest.mark.parametrize(("count", "low", "high"), [(2, 0.0, 1.0), (4, 0.0, 3.0), (5, 2 - 2.5**0.5, 2 + 2.5**0.5)])
def test_bands_are_the_extremes_of_few_seeds_and_the_deviation_of_many(count, low, high):
    band = panels.Drawn(None, np.zeros(1), np.arange(float(count))[:, None]).band
    assert (band[0][0], band[1][0]) == pytest.approx((low, high))
    said = panels.band_note([count])
    assert f"{count} seeds" in said
    assert ("min to max" in said) == (count <= 4)
    assert panels.band_note([1, 1]) == "one seed"


def test_the_lead_of_fox_is_drawn_with_an_interval_at_every_position(tmp_path):
    study = losses(tmp_path, seeds=3, seed_noise=0.01)
    table = pd.read_csv(fig2_per_token_loss.draw(study)[5])
    assert table["position"].min() < 10
    assert table["position"].max() > 500
    assert (table["low"] < table["lead"]).all()
    assert (table["lead"] < table["high"]).all()
    inside = table[table["position"].between(20, 120)]
    assert inside["lead"].mean() == pytest.approx(0.028, abs=0.02)
    assert len(fig2_per_token_loss.draw(losses(tmp_path / "fox", models=("fox_pro", "hgrn2")))) == 3


def test_figure_2_at_the_papers_size_is_fast_and_small(tmp_path):
    store = synthetic.Store(tmp_path, "760m-48b", 16_384)
    study = synthetic.main_losses(store, floor=1.49, documents=512, noise=0.004)
    start = time.process_time()
    _, pdf, csv, *_ = fig2_per_token_loss.draw(study)
    assert time.process_time() - start < 10  # about 3 s on an idle core
    assert pdf.stat().st_size < 500_000
    assert csv.stat().st_size < 600_000
    assert {128, 16_384, 65_536} <= set(pd.read_csv(csv)["position"])


@pytest.mark.parametrize(
    ("scale", "floor", "of_paper"), [("760m-48b", 1.49, True), ("760m-16b", 1.49, False), ("760m-48b", 3.5, False)]
)
def test_y_limits_are_the_papers_only_where_they_fit(tmp_path, scale, floor, of_paper):
    study = synthetic.main_losses(synthetic.Store(tmp_path, scale, 128), models=FEW, floor=floor, documents=4)
    lines = [panels.Drawn(None, np.arange(1, 513), curve.losses_SN) for curve in by_model(study).values()]
    limits = fig2_per_token_loss._limits(lines, study, fig2_per_token_loss.PAPER_LOSS_RANGE)
    assert (limits == fig2_per_token_loss.PAPER_LOSS_RANGE) == of_paper


def test_an_exploding_curve_does_not_flatten_the_rest():
    x = np.arange(1, 2049)
    fox = panels.Drawn(None, x, np.linspace(3.2, 3.0, 2048)[None])
    calm = np.linspace(3.3, 3.1, 2048)
    wild = np.where(x > 520, 1e6, calm)
    wild[2000:] = np.nan
    limits = panels.core_limits([fox, panels.Drawn(None, x, wild[None])], 512)
    assert limits == pytest.approx(panels.core_limits([fox, panels.Drawn(None, x, calm[None])], 512), abs=1e-3)
    assert limits[0] < 3.0, "what falls on beyond the training context stays visible"
    assert panels.cut_note([panels.Drawn(None, x, wild[None])], limits)
    assert not panels.cut_note([fox], limits)


def test_figure_2_draws_models_the_suite_does_not_know(tmp_path):
    store = synthetic.Store(tmp_path, train_len=128)
    store.add(STEM2, "some-org/some-model", [("per_token_loss", synthetic.loss_rows(np.linspace(3, 2, 512)))])
    assert len(fig2_per_token_loss.draw(store.study(STEM2))) == 3


def test_every_figure_states_its_scale_and_that_of_its_runs(tmp_path):
    study = losses(tmp_path)
    assert scale_note(study) == "scale: tiny (not the paper's main setting, 760m-48b)"
    paper = synthetic.Store(tmp_path / "paper", "760m-48b")
    paper.add("fig", "fox_pro", [])
    assert scale_note(paper.study("fig")) == "scale: 760m-48b (the paper's main setting)"
    paper.add("table", "fox_pro", [], scale="360m-7.5b")
    assert scale_note(paper.study("table")) == "scale: 760m-48b (the paper's main setting; runs at 360m-7.5b)"
    assert [tokens(count) for count in (512, 1024, 16_384, 65_536)] == ["512", "1k", "16k", "64k"]


def test_summary_of_figure_2_has_losses_perplexities_and_the_unigram_entropy(tmp_path):
    study = losses(tmp_path, seeds=2, seed_noise=0.05)
    table = fig2_per_token_loss.summary(study)
    assert [column.key for column in table.columns] == ["mean_loss", "below_unigram", "ppl_32", "ppl_128", "ppl_256", "ppl_512"]
    means = by_model(study)["hgrn2"].losses_SN[:, :128].mean(axis=1)
    assert table.rows["hgrn2"][:2] == pytest.approx([means.mean(), 7.0 - means.mean()])
    assert table.rows["hgrn2"][3] == pytest.approx(np.exp(means).mean())
    assert table.spreads["hgrn2"][0] == pytest.approx(means.std(ddof=1))
    assert "7.000 nats" in table.note
    assert table.note.endswith("over 2 seeds.")


def test_nothing_stored_is_an_error_that_names_the_artefact(tmp_path):
    for module, _, _ in EVERY:
        stem = module.__name__.rpartition(".")[2]
        store = synthetic.Store(tmp_path / stem)
        store.add(stem, "fox_pro", [])
        with pytest.raises(ValueError, match=f"^{stem}: no .* stored"):
            module.draw(store.study(stem))


def test_eviction_is_drawn_beside_the_transformer_and_the_promise(tmp_path):
    study = evicted(tmp_path)
    points, table = pd.read_csv(cache_eviction.draw(study)[2]), cache_eviction.summary(study)
    fox = points[points["model"] == "fox_pro"]
    along, heads = fox.dropna(subset="position"), fox.dropna(subset="layer")
    keys = np.minimum(along["position"].to_numpy()[:, None], 1024 * np.array([0.02, 0.1, 0.3, 1.0])).sum(1)
    np.testing.assert_allclose(along["bytes"], 101.5 * keys, rtol=1e-5)
    np.testing.assert_allclose(along["of_all"], 4 * 98 * along["position"])
    assert heads["kept"].tolist() == pytest.approx([0.02, 0.1, 0.3, 1.0])
    assert heads["dropped"].tolist() == pytest.approx([3e-6, 3e-6, 3e-6, 0.0])
    share = 100 * 101.5 * keys[-1] / (4 * 98 * 1024)
    assert table.rows["fox_pro"] == pytest.approx([101.5 * keys[-1] / 2**20, share, 3.0, 2e-7, np.log(3e-6)], abs=1e-9)
    assert "less than e^-10 of its probability" in table.note


def test_figure_3_picks_the_most_local_and_the_most_global_head(tmp_path):
    rows = gates(tmp_path).rows("gate_maps")
    statistics = fig3_forget_gates.head_statistics(rows)["median_F"]
    assert fig3_forget_gates.two_heads(rows) == [statistics.idxmin(), statistics.idxmax()]
    with pytest.raises(ValueError, match="no F matrices"):
        fig3_forget_gates.two_heads(rows[rows["row"] < 0])


def test_figure_3_draws_a_head_that_never_forgets(tmp_path):
    def never(rows):
        last = (rows["quantity"] == "half_life_tokens") & (rows["head"] == 2)
        return rows.assign(value=rows["value"].where(~last, np.inf))

    study = gates(tmp_path, layers=1, change=never)
    figure = fig3_forget_gates._draw(study, fig3_forget_gates.first_seeds(study))
    drawn = next(axes for axes in figure.axes if axes.get_ylabel() == "half-life (tokens)").lines[0].get_ydata()
    plt.close(figure)
    assert max(drawn) == 10 * 512


def test_figure_3_shows_the_end_of_the_text_of_a_head_that_forgets_within_a_cell(tmp_path):
    def sudden(rows):
        lives = rows["quantity"] == "half_life_tokens"
        return rows.assign(value=rows["value"].where(~lives, np.where(rows["head"] == 2, 100.0, 0.5)))

    rows = gates(tmp_path, layers=1, change=sudden).rows("gate_maps")
    figure, (near, far) = plt.subplots(1, 2)
    fig3_forget_gates.matrix(near, rows, (0, 0), "F", 32)
    fig3_forget_gates.matrix(far, rows, (0, 2), "F", 32)
    limits = near.get_xlim(), far.get_xlim()
    plt.close(figure)
    assert limits == ((512 - 64, 512), (0, 512))


def test_a_gate_that_is_0_is_as_dark_as_one_below_the_colours_and_not_as_white_as_the_future(tmp_path):
    rows = gates(tmp_path, layers=1).rows("gate_maps")
    own = (rows["quantity"] == "F") & (rows["head"] == 2)
    rows = rows.assign(value=rows["value"].mask(own & (rows["col"] == 14) & (rows["row"] == 15), 0.0))
    figure, axes = plt.subplots()
    fig3_forget_gates.matrix(axes, rows, (0, 2), "F", 32)
    picture = axes.images[0]
    colours = picture.to_rgba(picture.get_array())
    plt.close(figure)
    assert tuple(colours[-1, -2]) == plt.get_cmap("viridis")(0.0) and tuple(colours[-2, -1]) == (1, 1, 1, 1)


def test_figure_3_shows_the_first_seed_and_sums_up_all(tmp_path):
    study = gates(tmp_path, seeds=2, models=("fox_pro", "fox_llama"), seq_len=1024)
    assert set(pd.read_csv(fig3_forget_gates.draw(study)[2])["seed"]) == {0}
    table = fig3_forget_gates.summary(study)
    assert table.rows["fox_pro"][0] == 6
    assert table.spreads["fox_pro"][1] > 0
    assert table.columns[-1].key == "pruned_share"
    short = fig3_forget_gates.summary(gates(tmp_path / "short"))
    assert "pruned_share" not in [column.key for column in short.columns], "zero by construction: too few tiles"
    assert "too few tiles" in short.note


def test_figure_4_draws_scores_and_averages_samples_and_seeds(tmp_path):
    study = needle_study(tmp_path, samples=2, seeds=2)
    png, _, csv = fig4_needle.draw(study)
    rows = study.rows("needle")
    cells = pd.read_csv(csv)
    fox = rows[(rows["model"] == "fox_pro") & (rows["mode"] == "easy") & (rows["length"] == 200) & (rows["depth"] == 0)]
    drawn = cells[(cells["label"] == "fox_pro") & (cells["mode"] == "easy") & (cells["length"] == 200) & (cells["depth"] == 0)]
    assert len(fox) == 4
    assert drawn["score"].item() == pytest.approx(fox["score"].mean())
    assert "scores 1 (red) to 10 (green) by match of the answer · mean of 2 seeds" in Image.open(png).info["Description"]
    table = fig4_needle.summary(study)
    assert [column.key for column in table.columns] == ["easy_inside", "easy_beyond", "standard_inside", "standard_beyond"]
    assert table.rows["fox_pro"][0] == 10
    assert "2 needles per cell and seed" in table.note and "; 2 seeds." in table.note
    low, high = table.ranges["fox_pro"][1]
    assert low < table.rows["fox_pro"][1] < high


def test_a_table_of_needles_says_which_models_have_fewer_seeds(tmp_path):
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(3)
    modes = {"fox_pro": [("easy", "standard"), ("standard",), ("standard",)], "hgrn2": [("easy", "standard")] * 2}
    for model, seeds in {**modes, "mamba2": [("easy", "standard")] * 3}.items():
        for seed, own in enumerate(seeds):
            rows = synthetic.needle_rows(model, rng, train_len=128, lengths=(64, 200), depths=(0.0, 50.0))
            store.add(STEM4, model, [("needle", rows[rows["mode"].isin(own)])], seed=seed)
    assert "; 3 seeds, but 1 of FoX (Pro) (easy); 2 of HGRN2." in fig4_needle.summary(store.study(STEM4)).note


def test_where_scores_are_at_the_floor_recall_is_drawn_and_said(tmp_path):
    study = needle_study(tmp_path, floor=True, lengths=(64, 200), samples=3)
    png, _, csv = fig4_needle.draw(study)
    note = Image.open(png).info["Description"]
    assert "no score leaves the floor, so recall is drawn" in note
    cells = pd.read_csv(csv)
    largest, colours = cells["recall_nats"].max(), needles(study).colours
    assert largest <= colours.high <= 2.5 * largest
    table = fig4_needle.summary(study)
    assert "recall in nats" in table.caption
    assert "No model's score leaves the floor" in table.note
    low, high = table.ranges["fox_pro"][0]
    assert high - low < 2


def test_at_the_floor_without_recall_the_figure_says_so(tmp_path):
    png = fig4_needle.draw(needle_study(tmp_path, floor=True, recall=False))[0]
    assert "no model finds it: all scores are at the floor" in Image.open(png).info["Description"]


@pytest.mark.parametrize("floor", [True, False])
def test_choices_are_drawn_and_judged_where_scores_are_at_the_floor_and_else_drawn_beside_them(tmp_path, floor):
    store, rng = synthetic.Store(tmp_path, train_len=128), np.random.default_rng(1)
    for model, share in (("fox_pro", 0.8), ("mamba2", 0.15)):
        scores = synthetic.needle_rows(model, rng, train_len=128, lengths=(64, 200), depths=(0.0, 50.0))
        choices = synthetic.choice_rows(rng, share, lengths=(64, 200), depths=(0.0, 50.0))
        store.add(STEM4, model, [("needle", scores.assign(score=1.0) if floor else scores), ("needle_choice", choices)])
    study = store.study(STEM4)
    paths = fig4_needle.draw(study)
    pictures = [path for path in paths if path.suffix == ".png"]
    beside = [] if floor else ["fig4_needle-choice.png"]
    assert [path.name for path in pictures] == ["fig4_needle.png", *beside], "no picture of scores that are all the same"
    *others, note = (Image.open(path).info["Description"] for path in pictures)
    assert f"{choices['sample'].nunique()} needles a cell whose word is the likeliest of ten, from 10% by guessing" in note
    assert ("no score leaves the floor, so choices are drawn: " in note) == floor and "floor" not in "".join(others)
    if not floor:
        return
    cells, rows = pd.read_csv(paths[-1]), study.rows("needle_choice")
    assert cells["right"].sum() == pytest.approx(
        rows.groupby(["model", "mode", "length", "depth"])["right"].mean().sum(), rel=1e-4
    )
    table = fig4_needle.summary(study)
    assert "likeliest of ten (%)" in table.caption
    inside = rows[(rows["model"] == "fox_pro") & (rows["mode"] == "easy") & (rows["length"] == 64)]
    assert table.rows["fox_pro"][0] == pytest.approx(inside["right"].mean())


def test_figure_4_marks_the_training_length_where_the_paper_does(tmp_path):
    lengths = tuple(range(1000, 32001, 3100))
    depths = tuple(float(depth) for depth in range(0, 101, 10))
    how = dict(models=("fox_pro",), modes=("easy",), recall=False, train_len=16_384)
    study = needle_study(tmp_path, lengths=lengths, depths=depths, **how)
    figure = fig4_needle._draw(study, needles(study))
    axes = figure.axes[0]
    drawn = [line.get_xdata()[0] for line in axes.lines]
    assert axes.get_ylim() == (11, 0)
    plt.close(figure)
    assert drawn == [pytest.approx(5.5, abs=0.05)]  # the middle of the sixth column, 16,500


def test_figure_6_shows_positions_inside_the_training_context_and_the_appendix_those_beyond(tmp_path):
    inside = pd.read_csv(fig6_scale.draw(scales(tmp_path))[2])
    longest = inside.groupby("label")["position"].max()
    assert longest["size 25M"] == 128
    assert 112 < longest["context 128"] < 128 < 224 < longest["context 256"] < 256, "middles of the last means"
    beyond = pd.read_csv(appendix_extrapolation.draw(scales(tmp_path, "appendix_extrapolation"))[2])
    longest = beyond.groupby("label")["position"].max()
    assert longest["size 25M"] == 512
    assert 896 < longest["context 256"] < 1024


def test_the_appendix_names_the_lines_of_figure_6_that_it_lacks(tmp_path):
    scales(tmp_path)
    study = scales(tmp_path, "appendix_extrapolation")
    assert fig6_scale._absent_note(study) == ""
    study.lines = [line for line in study.lines if line.label != "context 256"]
    study.lines = [line for line in study.lines if line.model != "fox_pro" or line.label != "context 128"]
    said = "in Figure 6 and not here: FoX (Pro), context 128 and context 256; Transformer (Pro), context 256"
    assert fig6_scale._absent_note(study) == said
    assert said in Image.open(appendix_extrapolation.draw(study)[0]).info["Description"]


def test_figure_6_says_whose_losses_how_smoothed_and_of_how_many_sequences_a_step_they_are(tmp_path):
    study = scales(tmp_path)
    note = Image.open(fig6_scale.draw(study)[0]).info["Description"]
    assert "Pro block \N{MIDDLE DOT} smoothed over 17 tokens, by context in logarithmic bins" in note
    assert "sequences per step: 8 of 128, 4 of 256" in note


def test_figure_7_has_two_panels_per_block_and_the_papers_window_in_proportion(tmp_path):
    paths = fig7_gate_types.draw(gate_types(tmp_path))
    assert "smoothed over 7 tokens" in Image.open(paths[0]).info["Description"]
    table = pd.read_csv(paths[2])
    assert set(table["model"]) == {"fox_pro", "fox_llama"}
    assert table.groupby("model")["label"].nunique().tolist() == [5, 5]


def test_a_decay_time_has_its_colour_whatever_else_is_stored(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(fig7_gate_types, "legend_of", lambda figure, styles, **_: seen.append(styles[-1]))
    for stored in ((4, 32), (32,)):
        store, rows = synthetic.Store(tmp_path / f"{stored}", train_len=128), synthetic.loss_rows(np.full(512, 3.0))
        for axes in ({"gate": "full"}, *({"gate": "fixed", "longest": each} for each in stored)):
            store.add("fig7_gate_types", str(axes), [("per_token_loss", rows)], model="fox_pro", name=str(axes), axes=axes)
        fig7_gate_types.draw(store.study("fig7_gate_types"))
    assert seen[0] == seen[1] and seen[0].label.endswith(" 32")


def test_training_curves_leave_out_steps_that_were_not_applied(tmp_path):
    study = trainings(tmp_path)
    table = pd.read_csv(appendix_training_curves.draw(study)[2])
    assert table["loss_smoothed"].notna().all()
    assert table["tokens"].min() >= 0.05 * 200 * 1024
    summary = appendix_training_curves.summary(study)
    assert [column.key for column in summary.columns] == ["final_loss", "tokens_per_s"], "no MFU on a CPU"
    assert summary.rows["fox_pro"][1] == 501, "of seeds with 500 and 501"
    np.testing.assert_allclose(training_curves.smooth_backwards(np.array([1.0, np.nan, 4.0, 6.0]), 2), [1, 1, 4, 5])
