"""Parts of figures whose made-up rows elsewhere leave something out, by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis.style import plt
from analysis.verdict import Status
from experiments.acp import acp_pruned_share, acp_speed
from experiments.beyond import cache_eviction, context_use, ruler
from experiments.fox import fig1_architecture as fig1
from experiments.fox import fig2_per_token_loss as fig2
from experiments.fox import fig3_forget_gates as fig3
from experiments.fox import fig5_tokens_and_lr as fig5
from experiments.fox import fig6_scale as fig6
from experiments.fox import fig7_gate_types as fig7
from experiments.fox import table6_throughput as table6

PLAIN = {
    "attn.q_proj.weight": "8 x 8",
    "attn.o_proj.weight": "8 x 9",
    "attn.k_proj.weight": "8 x 3",
    "attn.v_proj.weight": "8 x 4",
}
PRO = {
    "attn.q_proj.weight": "8 x 8", "attn.k_proj.shift_proj.weight": "2 x 8", "attn.k_proj.linear.weight": "8 x 5",
    "attn.v_proj.shift_proj.weight": "2 x 8", "attn.v_proj.linear.weight": "8 x 6", "attn.fgate_proj.bias": "2",
    "attn.fgate_proj.weight": "2 x 7", "attn.q_norm.weight": "4", "attn.k_norm.weight": "5", "attn.ogate_proj.weight": "8 x 2",
    "attn.output_norm.weight": "8", "attn.o_proj.weight": "8 x 9",
}  # fmt: skip


@pytest.mark.parametrize(("sizes", "rope", "boxes"), [
    (PLAIN, True, ["Linear 8 x 8", "RoPE None", "Linear 8 x 3", "RoPE None", "Linear 8 x 4", "Softmax attention None",
                   "Linear 8 x 9"]),
    (PRO, False, ["Linear, $\\log\\sigma$ 2 x 7", "Linear 8 x 8", "RMSNorm 4", "ShiftLinear 8 x 5", "RMSNorm 5",
                  "ShiftLinear 8 x 6", "Forgetting attention None", "RMSNorm 8", "Linear, $\\sigma$ 8 x 2", "Linear 8 x 9"]),
])  # fmt: skip
def test_boxes_of_an_attention_layer(monkeypatch, sizes, rope, boxes):
    """Sizes of the matrices, the shifted projections' own; where each stage stands is a pair of axes of its own."""
    drawn, places = [], {}

    def box(axes: object, x: float, stage: tuple, half: float = 0.0) -> None:
        drawn.append(f"{stage[1]} {stage[2]}".replace("\N{MULTIPLICATION SIGN}", "x"))
        places.setdefault(x, []).append(stage[0])

    monkeypatch.setattr(fig1, "_box", box)
    figure, axes = plt.subplots()
    rows = pd.DataFrame({"name": list(sizes), "shape": list(sizes.values())})
    fig1._layer(axes, fig1.Parts(rows, rope))
    plt.close(figure)
    assert drawn == boxes and all(heights == sorted(set(heights)) for heights in places.values())


@pytest.mark.parametrize(("gate", "label", "dashed"), [
    (fig7.Gate("full"), "data-dependent (Pro)", False), (fig7.Gate("none"), "none", True),
    (fig7.Gate("fixed", 64), "constant, $T_{max}$ 64", True), (fig7.Gate("bias_only", 2048), "constant, $T_{max}$ 2k", True),
])  # fmt: skip
def test_styles_of_gates(monkeypatch, gate, label, dashed):
    """Constant gates of one T_max have one shade, whatever their kind; another T_max has another."""
    monkeypatch.setattr(fig7, "GATES", {**fig7.GATES, "none": "none"})
    style = fig7._style("fox_pro", gate, [64, 2048])
    assert style.label == label and (style.dashes == fig7.DASHED) is dashed and (style.dashes is None) is not dashed
    if gate.longest is not None:
        shades = [fig7._style("fox_pro", fig7.Gate(kind, gate.longest), [64, 2048]).colour for kind in fig7.CONSTANT]
        other = fig7._style("fox_pro", fig7.Gate("fixed", 2112 - gate.longest), [64, 2048]).colour
        assert set(shades) == {style.colour} != {other}


def test_gates_are_above_the_data_dependent_one_of_their_block(monkeypatch):
    """A block without them has losses alone, and a gate that a block lacks has nothing there."""
    curve = lambda *losses: SimpleNamespace(train_len=64, log_p=lambda n: np.array(losses) + n - 64)  # noqa: E731
    full, fixed, long = fig7.Gate("full"), fig7.Gate("fixed", 64), fig7.Gate("fixed", 2048)
    found = {"fox_llama": {full: curve(1.0, 3.0), fixed: curve(5.0, 7.0)}, "fox_pro": {fixed: curve(4.0), long: curve(6.0)}}
    monkeypatch.setattr(fig7, "gates", lambda study, model: found[model])
    monkeypatch.setattr(fig7, "about", lambda study: "about")
    monkeypatch.setattr(fig7, "over_seeds", lambda *given: given)
    monkeypatch.setattr(fig7, "difference", lambda one, other: np.array([one.log_p(64).mean() - other.log_p(64).mean()]))
    _, columns, values, _ = fig7.summary(SimpleNamespace(train_len=64))
    told = {gate: [None if cell is None else np.array(cell).tolist() for cell in cells] for gate, cells in values.items()}
    assert told == {str(full): [[1.0, 3.0], 0.0, None, None], str(fixed): [[5.0, 7.0], [4.0], [4.0], None],
                    str(long): [None, None, [6.0], None]}  # fmt: skip
    assert [column.key for column in columns] == ["fox_llama_loss", "fox_llama_above", "fox_pro_loss", "fox_pro_above"]


def test_points_without_an_interval_are_drawn_without_one(monkeypatch):
    """Later contexts than the first, and than the one from which the right panel goes; and of each pair the lead at all."""
    contexts = np.array([8, 16, 40])
    found = {name: SimpleNamespace(contexts_C=contexts, name=name) for name in ("fox_pro", "transformer_pro")}
    of = lambda effect, interval: SimpleNamespace(effect=effect, interval=interval)  # noqa: E731
    monkeypatch.setattr(context_use, "context_losses", lambda study: found)
    monkeypatch.setattr(context_use, "_early", lambda losses: 16)
    monkeypatch.setattr(context_use, "pairs_in", lambda found: ([("fox_pro", "transformer_pro")], []))
    monkeypatch.setattr(
        context_use, "along", lambda losses, before, after: of(before * 100.0 + after, None if after == 40 else (1.0, 2.0))
    )
    monkeypatch.setattr(
        context_use, "lead", lambda fox, other, context: of(context / 2, (0.0, 9.0) if fox.name == "fox_pro" else None)
    )
    rows = context_use.points(None).to_numpy(object).tolist()
    wanted = [
        (panel, model, after, start * 100.0 + after, *((math.nan,) * 2 if after == 40 else (1.0, 2.0)))
        for panel, start in (("all", 8), ("late", 16))
        for model in found
        for after in (8, 16, 40)
        if after >= start
    ]
    wanted += [("lead", "fox_pro", context, context / 2, 0.0, 9.0) for context in (8, 16, 40)]  # fmt: skip
    assert [str(row) for row in map(tuple, rows)] == [str(row) for row in wanted]


@pytest.mark.parametrize(("answers", "how"), [
    ("choose", "the likeliest of four values, guessing gives 25%; 7 examples per task and length"),
    ("generate", "values found in what is generated; 7 examples per task and length"),
])  # fmt: skip
def test_what_is_said_of_how_ruler_was_answered(answers, how):
    assert ruler._note(SimpleNamespace(metas=lambda kind: [{"spec": {"answers": answers, "samples": 7}}])) == how


def test_curves_of_trainings_that_did_not_measure_what_they_skip_are_left_out():
    """Rows of older trainings lack the column, and between two measurements there is none."""
    measured = pd.DataFrame({"tokens": [10, 20, 40], "pruned_share": [0.5, math.nan, 0.75]})
    lines = [("a", measured), ("b", measured), ("a", measured.assign(pruned_share=math.nan)), ("a", measured[["tokens"]]),
             ("a", measured.assign(pruned_share=[0.25, math.nan, 0.5]))]  # fmt: skip
    of = lambda some: SimpleNamespace(evaluations=lambda kind: [(SimpleNamespace(label=name), rows, {}) for name, rows in some])  # noqa: E731
    drawn = acp_pruned_share._over_training(of(lines), "a", "style")
    assert (drawn.style, drawn.x.tolist(), drawn.values_SX.tolist()) == ("style", [0.25, 1.0], [[0.5, 0.75], [0.25, 0.5]])
    assert acp_pruned_share._over_training(of(lines[1:4]), "a", "style") is None


@pytest.mark.parametrize(("effects", "told"), [
    ((-1.0, 1.0), "In 1 of 1 pairs"), ((0.0, 1.0), "In 0 of 1 pairs"), ((-1.0, 0.0), "In 0 of 1 pairs"),
    ((1.0, -1.0), "In 0 of 1 pairs"), ((-1.0, None), "In 0 of 0 pairs"),
])  # fmt: skip
def test_pairs_that_more_tokens_help_inside_and_hurt_beyond(monkeypatch, effects, told):
    """Ties are neither; a pair is of the longer training and the shorter one."""
    curves = [
        SimpleNamespace(model=model, label=str(size), length=length, train_len=64, axes={"train_tokens": size})
        for model, size, length in (("fox_pro", 1, 128), ("fox_pro", 4, 128), ("fox_pro", 9, 64), ("mamba2", 9, 128))
    ]
    asked, decided = [], []
    of = lambda value: None if value is None else SimpleNamespace(effect=value)  # noqa: E731
    monkeypatch.setattr(fig5, "settings", lambda study: curves)
    monkeypatch.setattr(fig5, "stored_needles", lambda study: None)
    monkeypatch.setattr(
        fig5, "inside_and_beyond", lambda more, fewer: asked.append((more.label, fewer.label)) or [*map(of, effects)]
    )
    monkeypatch.setattr(fig5, "Comparison", lambda name, estimate, **how: (name, estimate.effect, how))
    monkeypatch.setattr(fig5, "decide_any", lambda sentence, ways, absent: decided.append((ways, absent)) or sentence)
    assert fig5.c24(None).startswith(told) and asked == [("4", "1")]
    inside, beyond = effects
    way = [("4 minus 1, loss up to 64", inside, {"below": True}), ("4 minus 1, loss from 64 to 128", beyond, {})]
    assert decided[0][0] == ([] if beyond is None else [way]) and len(decided[0][1]) == (beyond is None)


def test_sizes_that_are_not_drawn_are_no_claim(monkeypatch):
    monkeypatch.setattr(fig6, "panels_of", lambda study: {"context": {"a": 1}})
    monkeypatch.setattr(fig6, "pairs_of", lambda groups: [] if groups == {} else pytest.fail("of another panel"))
    verdict = fig6.c25b(None)
    assert verdict.status is Status.NOT_MEASURED, verdict


@pytest.mark.parametrize("entropy", [None, 5.0])
def test_losses_are_below_the_unigram_entropy_where_it_is_known(monkeypatch, entropy):
    """Lengths are those that the curves reach; a mean inside is never of more than they have."""
    asked = []
    curve = SimpleNamespace(length=100, label="a", log_p=lambda length: asked.append(length) or np.array([length / 50]))
    monkeypatch.setattr(fig2, "in_order", lambda study: {"a": curve})
    monkeypatch.setattr(fig2, "unigram_entropy", lambda study: entropy)
    monkeypatch.setattr(fig2, "about", lambda study: "About.")
    monkeypatch.setattr(fig2, "over_seeds", lambda title, columns, values, note: ([each.key for each in columns], values, note))
    keys, values, note = fig2.summary(SimpleNamespace(train_len=64))
    known = entropy is not None
    assert keys == ["mean_loss", *["below_unigram"] * known, "ppl_16", "ppl_64"] and asked == [64, 16, 64]
    wanted = [64 / 50, *[5 - 64 / 50] * known, math.exp(16 / 50), math.exp(64 / 50)]
    assert [cell.item() for cell in values["a"]] == pytest.approx(wanted)
    assert note.startswith("About.") and ("Unigram entropy of the held-out text: 5.000 nats" in note) is known
    fig2.summary(SimpleNamespace(train_len=128))
    assert asked[3:] == [100, 32]


def test_heads_are_drawn_by_how_far_they_see():
    """By the median of F, which a half-life need not follow."""
    rows = [(0, head, -1, quantity, value) for head, median, life in ((0, 0.9, 1.0), (1, 0.1, 3.0), (2, 0.5, 2.0))
            for quantity, value in (("median_F", median), ("half_life_tokens", life))]  # fmt: skip
    rows += [(0, head, 0, "F", 1.0) for head in (0, 1, 2)]
    table = pd.DataFrame(rows, columns=["layer", "head", "row", "quantity", "value"])
    assert fig3.stored_heads(table) == [(0, 1), (0, 2), (0, 0)] and fig3.two_heads(table) == [(0, 1), (0, 0)]


def test_the_table_of_heads_is_in_percent_and_seeds_are_apart(monkeypatch):
    heads = [pd.DataFrame({"half_life_tokens": [1.0, life], "median_F": [1e-4, median], "pruned_share": [0.2, share]})
             for life, median, share in ((3.0, 0.6, 0.4), (5.0, 1e-4, 0.8))]  # fmt: skip
    left = iter(heads)
    monkeypatch.setattr(fig3, "labels_of", lambda study: {"fox_pro": pd.DataFrame({"run_id": ["a", "a", "b"]})})
    monkeypatch.setattr(fig3, "head_statistics", lambda rows: next(left))
    monkeypatch.setattr(fig3, "about", lambda study: "")
    table = fig3.summary(SimpleNamespace(extra=lambda kind, run, name: {"distance": 64, "seq_len": 1024}[name]))
    assert table.rows["fox_pro"] == pytest.approx([2.0, 2.5, 75.0, 25.0, 40.0])


def test_the_lead_is_the_mean_over_a_window(monkeypatch):
    """With the interval of what is stored there, moved to that mean."""
    asked = []
    estimate = SimpleNamespace(effect=1.0, interval=(0.5, 2.0))
    monkeypatch.setattr(fig2, "difference", lambda other, fox, first, last: asked.append((first, last)) or estimate)
    fox, other = (SimpleNamespace(length=9, mean_N=sign * np.arange(9.0) ** 2) for sign in (-1, 1))
    table = fig2.lead(fox, other, 3)
    assert asked == [(place - 1, place + 1) for place in range(2, 9)] and table["position"].tolist() == [*range(2, 9)]
    means = [2 * sum(each**2 for each in range(place - 2, place + 1)) / 3 for place in range(2, 9)]
    assert table["lead"].tolist() == pytest.approx(means)
    for end in (table["low"] + 0.5, table["high"] - 1.0):
        assert end.tolist() == pytest.approx(means)


def test_a_column_of_which_one_line_is_known_is_shown():
    known, nothing, missing = {"mfu": 3.0}, {"mfu": None}, {"mfu": math.nan}
    for lines, shown in (([nothing, known], True), ([known, missing], True), ([nothing, missing], False)):
        assert table6._is_shown("mfu", lines) is shown


def test_one_context_says_nothing_of_what_grows(monkeypatch):
    estimate = SimpleNamespace(effect=0.75)
    times = [SimpleNamespace(context=context, medians=lambda what: (2.0, 1.0)) for context in (4096, 8192)]
    monkeypatch.setattr(
        acp_speed, "skipped", lambda study: [SimpleNamespace(context=each.context, share=estimate) for each in times]
    )
    for count, grows in ((1, False), (2, True)):
        monkeypatch.setattr(acp_speed, "timed", lambda study, count=count: (None, times[:count]))
        assert ("while attention's work grows" in acp_speed.time_and_tiles(None)) is grows


def test_entropy_is_the_first_that_is_recorded_if_any():
    for found, entropy in (([None, 5], 5.0), ([None, None], None), ([], None)):
        lines = [SimpleNamespace(run_id=str(number)) for number in range(len(found))]
        study = SimpleNamespace(lines=lines, extra=lambda kind, run_id, name, found=found: found[int(run_id)])
        assert fig2.unigram_entropy(study) == entropy


def test_a_head_that_loses_nothing_has_a_logarithm(monkeypatch):
    """Shares of probability are computed to 1e-16."""
    each = SimpleNamespace(
        bytes_SDP=np.ones((1, 1, 1)), share=1.0, losses_SD={"loss": np.ones((1, 1))}, change=0.0, positions=[16384],
        whole_P=np.ones(1), heads=pd.DataFrame({"dropped": [0.0]}), log_tolerance=-10.0,
        model="fox_pro", ahead=False,
    )  # fmt: skip
    known = SimpleNamespace(**{**vars(each), "model": "fox_llama", "ahead": True})
    monkeypatch.setattr(cache_eviction, "remaining", lambda study: {"fox_pro": each, "fox_llama": known})
    monkeypatch.setattr(cache_eviction, "about", lambda study: "About.")
    monkeypatch.setattr(cache_eviction, "count_range", lambda *counts, **how: "1")
    monkeypatch.setattr(cache_eviction, "over_seeds", lambda title, columns, values, note: (values, note))
    found, note = cache_eviction.summary(None)
    assert found["fox_pro"][-1] == pytest.approx(math.log(1e-16)) and ". FoX (LLaMA) knows the whole text: without" in note
