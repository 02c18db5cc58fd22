"""C7 to C16 hold on Table 3's own numbers and each fails where its line is spoilt; C26 and C26b on gates."""

import math

import numpy as np
import pytest

from analysis.verdict import Status, judge
from experiments.beyond.gate_worth import LOOKS, rates_or_tokens
from experiments.fox import fig7_gate_types, table3_ablation
from experiments.fox.fig7_gate_types import DATA_DEPENDENT, Gate, or_a_seed
from experiments.fox.table3_ablation import PRINTED
from tests import synthetic

TABLE = table3_ablation.CLAIMS
STEM = "table3_ablation"
PRO = "FoX (Pro)"


@pytest.fixture
def judged(tmp_path):
    """Verdicts by claim on a table with some perplexities changed, or left out where None; one document: printed numbers."""
    places = iter(range(100))

    def make(changes=None, *, documents=1, noise=0.0, seeds=1):
        store = synthetic.Store(tmp_path / str(next(places)), "360m-7.5b", 64)
        perplexities = {label: line["ppl"] for label, line in PRINTED.items()} | (changes or {})
        curves = {label: np.full(256, math.log(value)) for label, value in perplexities.items() if value is not None}
        models = dict.fromkeys(curves, "fox_pro")
        synthetic.add_losses(store, STEM, curves, models=models, documents=documents, noise=noise, seeds=seeds)
        return {claim.id: verdict for claim, verdict in judge(TABLE, store.study(STEM))}

    return make


def statuses(verdicts):
    return {claim: verdict.status for claim, verdict in verdicts.items()}


def test_all_hold_on_the_papers_numbers(judged):
    verdicts = judged()
    assert set(verdicts) == {f"C{number}" for number in range(7, 17)}
    assert set(statuses(verdicts).values()) == {Status.HOLDS}
    assert "P(64): FoX (Pro) 6.620, FoX (Pro) + RoPE 6.630." in verdicts["C7"].sentence
    assert verdicts["C9"].decisive.estimate.effect == pytest.approx(math.log(7.25 / 7.49))


@pytest.mark.parametrize(("claim", "changes"), [
    ("C7", {"FoX (Pro) + RoPE": 6.59}),
    ("C8", {"FoX (LLaMA) + RoPE": 7.14}),
    ("C9", {"FoX (LLaMA)": 7.50}),
    ("C10", {"FoX (LLaMA) + RoPE": 7.50}),
    ("C11", {"Transformer (LLaMA) w/o RoPE": 14.9}),
    ("C12", {"FoX (Pro) - forget gate": 8.01}),
    ("C12", {"FoX (Pro) - forget gate": 6.81}),
    ("C13", {"FoX (LLaMA) + QK-norm": 7.26}),
    ("C13", {"FoX (LLaMA) + QK-norm + output gate + output norm": 6.61}),
    ("C14", {"FoX (Pro) - output norm": 6.61}),
    ("C15", {"FoX (Pro) - output norm": 6.80}),
    ("C15", {"FoX (Pro) - QK-norm": 6.87}),
    ("C16", {"FoX (Pro) - forget gate + RoPE": 6.73}),
])  # fmt: skip
def test_each_fails_where_its_line_is_spoilt(judged, claim, changes):
    assert statuses(judged(changes))[claim] is Status.FAILS


@pytest.mark.parametrize(("claim", "changes"), [
    ("C8", {"FoX (LLaMA) + RoPE": 7.26}), ("C16", {"FoX (Pro) - forget gate + RoPE": 6.91}),
])  # fmt: skip
def test_more_than_the_paper_says_exceeds(judged, claim, changes):
    assert statuses(judged(changes))[claim] is Status.EXCEEDS


@pytest.mark.parametrize(("claim", "changes"), [
    ("C7", {"FoX (Pro) + RoPE": 6.605}), ("C8", {"FoX (LLaMA) + RoPE": 7.16}), ("C11", {"Transformer (LLaMA) w/o RoPE": 15.1}),
    ("C12", {"FoX (Pro) - forget gate": 7.99}), ("C16", {"FoX (Pro) - forget gate + RoPE": 6.89}),
])  # fmt: skip
def test_margins_are_those_of_the_claims(judged, claim, changes):
    assert statuses(judged(changes))[claim] is Status.HOLDS


@pytest.mark.parametrize("label", list(PRINTED))
def test_no_claim_holds_without_a_line_that_it_needs(judged, label):
    verdicts = judged({label: None})
    missing = [claim for claim, verdict in verdicts.items() if verdict.status is Status.NOT_MEASURED]
    assert missing
    assert all(label in verdicts[claim].sentence for claim in missing)
    assert set(statuses(verdicts).values()) <= {Status.HOLDS, Status.NOT_MEASURED}


def test_small_differences_are_noise_where_documents_vary(judged):
    verdicts = judged(documents=64, noise=0.4, seeds=2)
    assert verdicts["C11"].status is Status.HOLDS
    assert verdicts["C7"].status is Status.UNDECIDED, "the paper's effect is 0.0015, and its margin 0.003"
    assert verdicts["C7"].decisive.estimate.detectable > 0.003
    assert "It would take about" in verdicts["C7"].sentence


def axes_of(gate):
    return {"gate": gate.kind} | ({} if gate.longest is None else {"longest": gate.longest})


def gate_study(tmp_path, losses, documents=1, noise=0.0, seeds=None):
    """`losses` by (model, gate), of the first seed; `seeds`: those of further ones."""
    store = synthetic.Store(tmp_path, "360m-7.5b", 64)
    rng = np.random.default_rng(0)
    for (model, gate), loss in losses.items():
        how = dict(model=model, name=f"{model}/{gate}", axes=axes_of(gate))
        mean, bands = synthetic.documents_of(np.full(256, loss), rng, np.zeros((documents, 16)), noise=noise)
        rows = synthetic.loss_rows(mean, bands)
        store.add("fig7_gate_types", str(gate), [("per_token_loss", rows)], **how)
        for seed, other in enumerate((seeds or {}).get((model, gate), ()), 1):
            mean, bands = synthetic.documents_of(np.full(256, other), rng, np.zeros((documents, 16)), noise=noise)
            kinds = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            store.add("fig7_gate_types", str(gate), kinds, seed=seed, **how)
    return store.study("fig7_gate_types")


def losses_of(changes=None):
    table = {}
    for model, base in (("fox_llama", 2.2), ("fox_pro", 2.0)):
        table[model, DATA_DEPENDENT] = base
        for place, longest in enumerate((256, 2048, 16384)):
            table[model, Gate("bias_only", longest)] = base + 0.05 + 0.01 * place
            table[model, Gate("fixed", longest)] = base + 0.06 + 0.01 * place
    return table | (changes or {})


def on_gates(study):
    return [verdict for _, verdict in judge(fig7_gate_types.CLAIMS, study)]


def test_c26_and_c26b_hold_on_the_papers_order(tmp_path):
    dependent, learned = on_gates(gate_study(tmp_path, losses_of(), documents=32, noise=1e-3))
    assert dependent.status is learned.status is Status.HOLDS
    assert len(dependent.comparisons) == 12
    assert len(learned.comparisons) == 6
    assert dependent.sentence.startswith("12 of 12 comparisons of mean loss up to 64 go the claimed way")


def test_c26_fails_if_one_constant_gate_is_better_and_c26b_if_a_fixed_one_beats_the_learned(tmp_path):
    dependent, learned = on_gates(gate_study(tmp_path / "a", losses_of({("fox_pro", Gate("fixed", 2048)): 1.9})))
    assert dependent.status is learned.status is Status.FAILS
    equal = {("fox_llama", Gate("fixed", 256)): 2.2 + 0.05}
    dependent, learned = on_gates(gate_study(tmp_path / "b", losses_of(equal)))
    assert dependent.status is learned.status is Status.HOLDS, "at least as good"


def test_findings_of_gates_say_what_is_told_apart(tmp_path):
    fixed, learned = Gate("fixed", 2048), Gate("bias_only", 2048)
    losses = losses_of({("fox_pro", fixed): 2.045, ("fox_llama", learned): 2.2})
    told = fig7_gate_types.findings(gate_study(tmp_path / "all", losses, documents=32, noise=1e-3))
    llama, pro, constants = told
    closest = "constant gates are worse than the data-dependent one; closest is"
    assert llama.startswith(f"LLaMA block: 5 of 6 {closest} data-independent, T_max 2048, with ")
    assert pro.startswith(f"Pro block: 6 of 6 {closest} fixed, T_max 2048, with +0.04")
    assert constants == "Of 6 learned constants 5 are better than the fixed one with the same T_max, 1 worse."
    alone = {("fox_pro", fixed): 2.05, ("fox_pro", learned): 2.05, ("fox_llama", DATA_DEPENDENT): 2.2}
    assert fig7_gate_types.findings(gate_study(tmp_path / "alone", alone, documents=32, noise=1e-3)) == [
        "Of 1 learned constants 0 are better than the fixed one with the same T_max, 0 worse."
    ]


def test_the_look_into_c26b_sets_what_is_missed_beside_the_seeds(tmp_path):
    learned, fixed = ("fox_pro", Gate("bias_only", 256)), ("fox_pro", Gate("fixed", 256))

    def said(name, gap, **how):
        losses = losses_of({learned: 2.06 + gap})
        return or_a_seed(gate_study(tmp_path / name, losses, documents=32, noise=1e-3, **how))

    assert said("a", -0.01) == "0 of 6 comparisons fail."
    text = said("b", 0.01)
    assert text.startswith("1 of 6 comparisons fail: Pro, data-independent, T_max 256, +0.0")
    assert text.endswith("above fixed (one seed: this may be seed noise).")
    near = {learned: (2.0701, 2.0699), fixed: (2.0601, 2.0599)}
    assert said("c", 0.01, seeds=near).endswith("(3 seeds: more than seed noise).")
    far = {learned: (2.17, 1.99), fixed: (2.16, 1.98)}
    assert said("d", 0.01, seeds=far).endswith("(3 seeds: within seed noise).")


def worth_study(tmp_path, worth, loss=None, models=("fox_pro", "transformer_pro")):
    """Return what the gate is worth by (tokens, rate); `loss` of FoX by the same."""
    store, rng = synthetic.Store(tmp_path, train_len=64), np.random.default_rng(0)
    for model in models:
        for (count, rate), gap in worth.items():
            value = (loss or {}).get((count, rate), 3.0) + gap * model.startswith("transformer")
            mean, bands = synthetic.documents_of(np.full(128, value), rng, np.zeros((16, 16)), noise=0.001)
            label = f"{count}M tokens" + f", LR {rate:g}" * (count == 1)
            train = {"train_tokens": count * 10**6, "peak_lr": rate}
            axes = train if count == 1 else {"train_tokens": count * 10**6}
            kinds = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            store.add("gate_worth", label, kinds, model=model, name=f"{model} {label}", train=train, axes=axes)
    return store.study("gate_worth")


@pytest.mark.parametrize(("worth", "loss", "said"), [
    ({(1, 1e-3): 0.3, (1, 2e-3): 0.3, (4, 2e-3): 0.1}, {}, "training tokens rather than learning rates bring it nearer"),
    ({(1, 1e-3): 0.1, (1, 2e-3): 0.3, (4, 2e-3): 0.29}, {(1, 1e-3): 2.5}, "learning rates rather than training tokens"),
    ({(1, 1e-3): 0.3, (1, 2e-3): 0.3, (4, 2e-3): 0.5}, {}, "neither brings it nearer"),
    ({(1, 1e-3): 0.3, (1, 2e-3): 0.3, (4, 2e-3): 0.3}, {}, "neither brings it nearer"),
    ({(1, 1e-3): -0.2, (1, 2e-3): -0.2, (4, 2e-3): 0.0}, {}, "training tokens rather than learning rates bring it nearer"),
    ({(1, 2e-3): 0.3, (4, 2e-3): 0.1}, {}, "Pro block: unknown, because"),
    ({(1, 1e-3): 0.3, (1, 2e-3): 0.3}, {}, "Pro block: unknown, because"),
])  # fmt: skip
def test_the_look_into_the_gates_worth_turns_with_the_numbers(tmp_path, worth, loss, said):
    text = rates_or_tokens(worth_study(tmp_path, worth, loss))
    assert said in text and "LLaMA block: unknown, because" in text
    assert text.startswith("Worth of the gate in place of RoPE, as in C16. Pro block: ")


def test_the_look_into_the_gates_worth_is_asked_only_of_the_claim_on_it():
    assert [*LOOKS] == ["C16"], "no other claim compares the gate with RoPE and can be missed by too much"


def test_the_look_into_the_gates_worth_owns_that_a_better_rate_may_not_have_been_tried(tmp_path):
    edge = {(1, 1e-3): 2.5, (1, 2e-3): 2.6, (1, 4e-3): 2.7, (4, 2e-3): 2.0}
    inside = edge | {(1, 2e-3): 2.4}
    worth = {(1, 1e-3): 0.3, (1, 2e-3): 0.3, (1, 4e-3): 0.3, (4, 2e-3): 0.1}
    assert "edge of what was tried for FoX (Pro) and Transformer (Pro)" in rates_or_tokens(
        worth_study(tmp_path / "a", worth, edge)
    )
    assert "edge" not in rates_or_tokens(worth_study(tmp_path / "b", worth, inside))


def test_both_blocks_are_needed(tmp_path):
    table = {key: loss for key, loss in losses_of().items() if key[0] == "fox_llama"}
    dependent, learned = on_gates(gate_study(tmp_path / "a", table))
    assert dependent.status is learned.status is Status.UNDECIDED
    assert "Pro, data-dependent" in dependent.sentence
    table = {key: loss for key, loss in losses_of().items() if key[1].kind != "fixed"}
    dependent, learned = on_gates(gate_study(tmp_path / "b", table))
    assert (dependent.status, learned.status) == (Status.UNDECIDED, Status.NOT_MEASURED)


def test_a_t_max_that_is_missing_leaves_the_gates_undecided_unless_another_is_lost(tmp_path):
    left = {("fox_pro", Gate("fixed", 256)), ("fox_llama", Gate("bias_only", 2048))}
    table = {key: loss for key, loss in losses_of().items() if key not in left}
    dependent, learned = on_gates(gate_study(tmp_path / "a", table))
    assert dependent.status is learned.status is Status.UNDECIDED
    assert dependent.sentence.startswith("Not measured: LLaMA, data-independent, T_max 2048, Pro, fixed, T_max 256. 10 of 10 ")
    assert "(10 of 12 comparisons are stored)" in dependent.decisive.name
    assert "(4 of 6 comparisons are stored)" in learned.decisive.name
    lost, _ = on_gates(gate_study(tmp_path / "b", table | {("fox_pro", Gate("fixed", 2048)): 1.9}))
    assert lost.status is Status.FAILS


def test_gates_as_they_are_printed():
    assert [str(Gate("bias_only", 256)), str(DATA_DEPENDENT)] == ["data-independent, T_max 256", "data-dependent"]
