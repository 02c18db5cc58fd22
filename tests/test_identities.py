"""Every field of every identity, changed once: another id, or a field that is named here because it changes no result."""

import copy
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import data.pack
import data.plan
from data.plan import resolve
from data.recall import RecallTask
from data.spec import DataSpec
from eval import job as evaluation
from eval.kinds import KINDS, eval_id
from eval.runner.loading import _content_id
from eval.runner.sources import digest
from experiments.plan import _corpus_key
from experiments.scales import SCALES
from models.delta_net.spec import DeltaNetSpec
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.hgrn2.spec import HGRN2Spec
from models.mamba2.spec import Mamba2Spec
from models.samba.spec import SambaSpec
from models.spec import KINDS as MODELS
from training import manifest
from training.spec import RunSpec, TrainSpec

SIZES = dict(vocab_size=64, hidden_size=64, num_layers=2)
WIDTH = dict(vocab_size=65, hidden_size=128, num_layers=4, norm_eps=1e-3)
FOX = ForgettingTransformerSpec(**SIZES, num_heads=2)
PLAIN = dataclasses.replace(FOX, forget_gate="none")
STICK = dataclasses.replace(PLAIN, attention="stick_breaking")
FIXED = dataclasses.replace(FOX, forget_gate="fixed", decay_time_min=2.0, decay_time_max=8.0)
PRUNED = dataclasses.replace(FOX, prune_log_tolerance=-10.0)
MLP = dict(mlp_ratio=3.0, mlp_width=128)

MODEL_CHANGES = [
    (FOX, WIDTH | MLP | dict(num_heads=4, forget_gate="none", use_rope=True, rope_base=1e4, use_k_shift=True, use_v_shift=True,
                             qk_norm=True, qk_norm_share_param_across_head=False, use_output_gate=True, use_output_norm=True,
                             window_size=8, prune_log_tolerance=-10.0, initializer_range=0.1)),
    (dataclasses.replace(FOX, use_output_gate=True), dict(output_gate_activation="silu")),
    (PLAIN, dict(attention="stick_breaking")),
    (STICK, dict(stick_remainder=True)),
    (FIXED, dict(decay_time_min=3.0, decay_time_max=9.0, forget_gate="bias_only")),
    (PRUNED, dict(prune_tightly=True, prune_log_tolerance=-9.0)),
    (Mamba2Spec(**SIZES), WIDTH | dict(head_dim=32, ssm_state_size=64, expand=3, conv_size=3)),
    (HGRN2Spec(**SIZES, expand_ratio=32), WIDTH | MLP | dict(expand_ratio=64, use_lower_bound=True, output_norm_eps=None)),
    (DeltaNetSpec(**SIZES, head_dim=32), WIDTH | MLP | dict(head_dim=64, conv_size=3)),
    (SambaSpec(**SIZES, num_heads=2), WIDTH | MLP | dict(num_heads=4, window_size=8, rope_base=1e4, mamba_mlp_ratio=2.0,
                                                        mamba_mlp_width=64, ssm_state_size=8, expand=3, conv_size=3)),
]  # fmt: skip
TASK = RecallTask(num_keys=4, num_assignments=1, num_queries=1, num_symbols=8)
DATA = DataSpec(source="text", tokenizer="bytes", vocab_size=64, bos_id=63, document_len=256, fingerprint="aa")
TRAIN = TrainSpec(seq_len=64, batch_tokens=128, train_tokens=1280, warmup_tokens=128, peak_lr=1e-3)
RUN = RunSpec(name="fox_llama", scale="tiny", model=FOX, data=DATA, train=TRAIN)
TRAIN_CHANGES = dict(
    seq_len=32, batch_tokens=256, train_tokens=2560, warmup_tokens=256, peak_lr=2e-3, weight_decay=0.2, beta1=0.8, beta2=0.9,
    adam_eps=1e-6, grad_clip=2.0, precision="fp32", grad_reduce="bf16", piece_len=128, order_seed=1,
)  # fmt: skip
DATA_CHANGES = dict(
    source="packages", tokenizer="bpe-64", vocab_size=63, bos_id=62, document_len=512, fingerprint="ab", recall=TASK
)
RUN_CHANGES = dict(model=PLAIN, data=dataclasses.replace(DATA, fingerprint="cc"), seed=1, weights="abc",
                   train=dataclasses.replace(TRAIN, peak_lr=5e-4))  # fmt: skip
FOR_PEOPLE = {"name", "scale"}
"""Fields of a run that change no result."""


def fields_of(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)} - {"kind"}


def test_every_field_of_a_run_changes_its_id():
    ids = [RUN.run_id]
    for base, changes in MODEL_CHANGES:
        before = dataclasses.replace(RUN, model=base).run_id
        changed = [dataclasses.replace(RUN, model=dataclasses.replace(base, **{n: v})).run_id for n, v in changes.items()]
        assert len({before, *changed}) == 1 + len(changes), base
        ids += changed
    of_train = [dataclasses.replace(RUN, train=dataclasses.replace(TRAIN, **{n: v})).run_id for n, v in TRAIN_CHANGES.items()]
    small = dataclasses.replace(DATA, vocab_size=32, bos_id=31)
    of_data = [dataclasses.replace(RUN, data=dataclasses.replace(DATA, **{"bos_id": 0, n: v})).run_id
               for n, v in DATA_CHANGES.items()]  # fmt: skip
    of_run = [dataclasses.replace(RUN, **{n: v}).run_id for n, v in RUN_CHANGES.items()]
    ids += [*of_train, *of_data, *of_run, dataclasses.replace(RUN, data=small).run_id]
    assert len(set(of_train) | set(of_data) | set(of_run) | {RUN.run_id}) == 1 + len(of_train + of_data + of_run)
    assert all(dataclasses.replace(RUN, **{name: "another"}).run_id == RUN.run_id for name in FOR_PEOPLE)
    for cls in {type(base) for base, _ in MODEL_CHANGES}:
        assert set().union(*(changes for base, changes in MODEL_CHANGES if type(base) is cls)) == fields_of(cls)
    assert set(TRAIN_CHANGES) == fields_of(TrainSpec) and set(DATA_CHANGES) == fields_of(DataSpec)
    assert set(RUN_CHANGES) | FOR_PEOPLE == fields_of(RunSpec)


def test_an_id_is_the_digest_of_what_is_not_at_its_default():
    """A change of this rule renames every run that there is."""
    identity = {
        "format": 2, "model": {"kind": "forgetting_transformer", **SIZES, "num_heads": 2},
        "data": {"source": "text", "tokenizer": "bytes", "vocab_size": 64, "bos_id": 63, "document_len": 256,
                 "fingerprint": "aa"},
        "train": {"seq_len": 64, "batch_tokens": 128, "train_tokens": 1280, "warmup_tokens": 128, "peak_lr": 1e-3}, "seed": 0,
    }  # fmt: skip
    assert RUN.run_id == hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]
    assert RUN.folder_name == f"fox_llama-{RUN.run_id}"


def test_every_field_of_a_recall_task_changes_its_fingerprint(monkeypatch):
    changes = dict(num_keys=5, num_assignments=2, num_queries=2, num_symbols=9, pairs_first=True)
    assert set(changes) == fields_of(RecallTask)
    tasks = [TASK, *(dataclasses.replace(TASK, **{name: value}) for name, value in changes.items())]
    found = {DataSpec.of_recall(task).fingerprint for task in tasks}
    monkeypatch.setattr("data.spec.FORMAT", 99)
    assert len(found | {DataSpec.of_recall(TASK).fingerprint}) == 2 + len(changes)


READ = dict(corpus="c", precision="fp32")
GRID = dict(text="t", wording="w", precision="fp32")
GRID_CHANGES = dict(lengths=(1000,), depths=(50.0,), samples_per_cell=2, reserve=99, text="u", wording="v", precision="bf16")
LENGTHS = dict(context_len=256, num_documents=3, corpus="d", precision="bf16")
EVALUATIONS = {
    "per_token_loss": (dict(context_len=128, num_documents=2, **READ), LENGTHS),
    "needle": (GRID | dict(mode="passkey"), GRID_CHANGES | dict(mode="standard", max_new_tokens=9, num_keys=2)),
    "needle_recall": (GRID, GRID_CHANGES | dict(mode="easy")),
    "recall": (READ, dict(num_sequences=9, seq_len=9, corpus="d", precision="bf16")),
    "equal_logits": (dict(precision="fp32"), dict(precision="bf16")),
    "longbench": (dict(dataset="hub", precision="fp32"), dict(tasks=("trec",), dataset="0123", max_prompt_tokens=99,
                  original_cut=True, max_examples=9, max_new_tokens=9, precision="bf16")),
    "lm_eval": (dict(precision="fp32"), dict(tasks=("copa",), include="0123", max_length=99, batch_size=9, add_bos=False,
                scores_bos=True, limit=9, precision="bf16")),
    "gate_maps": (READ, dict(seq_len=2048, document=1, layers=(0,), heads=(0,), num_maps=2, grid=32, distance=512,
                  log_tolerance=-9.0, corpus="d", precision="bf16")),
    "throughput": (dict(machine="m", precision="fp32"), dict(mode="generate", seq_len=64, batch_size=9, new_tokens=19, warmup=9,
                   repeats=9, activation_checkpointing=True, micro_batch_tokens=16384, compile=True, step="stepper",
                   beside=FOX, machine="n", precision="bf16")),
    "training_curve": ({}, {}),
    "parameters": ({}, {}),
    "pruning": (dict(context_len=128, **READ), LENGTHS | dict(tile=64, decoded_tokens=9, log_tolerance=-9.0,
                                                                rule="tight")),
    "decoding": (dict(lengths=(128,), machine="m", **READ), dict(lengths=(99,), batch_sizes=(1, 16), new_tokens=18, repeats=9,
                 log_tolerance=-9.0, machine="n", corpus="d", precision="bf16")),
    "attention_speed": (dict(seq_len=128, machine="m", **READ), dict(seq_len=64, batch_size=9, warmup=9, repeats=9,
                        log_tolerance=-9.0, rule="tight", machine="n", corpus="d", precision="bf16")),
    "ruler": (dict(lengths=(512,), text="t", precision="fp32"), dict(tasks=("niah_single_1",), lengths=(64,), samples=9,
              answers="choose", max_new_tokens=9, text="u", version=2, precision="bf16")),
}  # fmt: skip


@pytest.mark.parametrize("kind", EVALUATIONS)
def test_every_field_of_an_evaluation_changes_its_id(kind):
    given, changes = EVALUATIONS[kind]
    spec = KINDS[kind](**given)
    changed = [dataclasses.replace(spec, **{name: value}) for name, value in changes.items()]
    asked = {eval_id(each) for each in (spec, *changed)}
    assert len(asked) == 1 + len(changes) and all(each.startswith(f"{kind}-") for each in asked)
    if kind == "needle":  # passkey has no judge
        judged = [dataclasses.replace(spec, mode="easy", judge=judge) for judge in (None, "a", "b")]
        assert len({eval_id(each) for each in judged}) == 3
        changes = {**changes, "judge": "a"}
    assert set(changes) == fields_of(KINDS[kind]), "a new field needs a value here"


def walked(cls: type) -> Iterator[object]:
    """A spec of a kind, and one for every field of it that has another value there; none is valid."""
    made = object.__new__(cls)
    for field in dataclasses.fields(cls):
        known = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        is_set = known not in (dataclasses.MISSING, None, "heldout", "local")
        object.__setattr__(made, field.name, known if is_set else 7)
    yield made
    for name in fields_of(cls):
        other, value = copy.copy(made), getattr(made, name)
        changed = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else f"{value}, changed"
        object.__setattr__(other, name, (changed,) if isinstance(value, tuple) else changed)
        yield other


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("cls", [*KINDS.values(), *MODELS.values()])
def test_every_field_of_every_listed_kind_is_in_its_identity(cls):
    """Those that are listed later, too."""

    def run_id(spec: object) -> str:
        return RunSpec.run_id.fget(SimpleNamespace(model=spec, data=DATA, train=TRAIN, seed=0, weights=None))

    found = [run_id(spec) if cls in MODELS.values() else eval_id(spec) for spec in walked(cls)]
    assert len(set(found)) == len(found) == 1 + len(fields_of(cls))


def test_everything_that_decides_a_corpus_changes_its_fingerprint(tmp_path, monkeypatch):
    texts, other = tmp_path / "a.txt", tmp_path / "b.txt"
    texts.write_text("one")
    other.write_text("two")
    base = dict(cache_dir=tmp_path, tokenizer="bpe-512", document_len=64)

    def fingerprint(source=f"text:{texts}", **changes):
        return resolve(source, **{**base, **changes}).spec.fingerprint

    whole = fingerprint()
    changes = [
        dict(source=f"text:{other}"), dict(source=f"text:{texts},{other}"), dict(source=f"text:{other},{texts}"),
        dict(tokenizer="bpe-513"), dict(tokenizer="bytes"), dict(document_len=65), dict(heldout_fraction=0.1),
        dict(heldout=str(other)), dict(max_documents=9), dict(packed=True), dict(packed=True, max_tokens=99),
    ]  # fmt: skip
    found = [whole, *(fingerprint(**change) for change in changes)]
    monkeypatch.setattr(data.plan, "FORMAT", 99)
    found.append(fingerprint())
    monkeypatch.setattr(data.plan, "PACK_FORMAT", 99)
    found.append(fingerprint(packed=True))
    assert len(set(found)) == len(changes) + 3
    monkeypatch.undo()
    moved = tmp_path / "moved.txt"
    moved.write_text("one")
    assert fingerprint(f"text:{moved}") == fingerprint(cache_dir=tmp_path / "elsewhere") == whole
    moved.write_text("0ne")
    assert fingerprint(f"text:{moved}") != whole


def test_scales_share_a_corpus_only_where_all_is_the_same():
    scale = SCALES["tiny-packed"]
    changes = dict(default_tokenizer="bytes", document_len=2048, heldout_fraction=0.2, short_documents=False,
                   train_tokens=2**22, default_data="text:x")  # fmt: skip
    keys = {_corpus_key(scale), *(_corpus_key(dataclasses.replace(scale, **{n: v})) for n, v in changes.items())}
    assert len(keys) == 1 + len(changes)
    whole = SCALES["tiny"]
    assert _corpus_key(whole) == _corpus_key(dataclasses.replace(whole, train_tokens=2**22, name="other", hidden_size=32))


def test_a_folder_is_known_by_names_and_contents(tmp_path):
    def of(**files):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            path = folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return digest(folder)

    folders = [of(a="one", b="two"), of(a="two", b="one"), of(a="one", c="two"), of(a="onet", b="wo"), of(a="one", d__b="two"),
               of(a="one"), of(a="0ne", b="two")]  # fmt: skip
    assert len(set(folders)) == len(folders) and of(a="one", b="two") == folders[0]
    assert of(a="one", b="two", __pycache____x="new") == folders[0]
    assert digest(tmp_path / "0" / "a") != digest(tmp_path / "0" / "b") and digest(tmp_path / "0" / "a") == digest(
        tmp_path / "2" / "a"
    )


def test_a_model_of_others_is_known_by_all_that_is_loaded(tmp_path):
    files = {"config.json": "{}", "model.safetensors": "w", "tokenizer.json": "t", "tokenizer_config.json": "c",
             "kind.json": "k", "vocab.json": "v", "merges.txt": "m", "spiece.model": "s", "special_tokens_map.json": "x",
             "added_tokens.json": "a"}  # fmt: skip
    folder = tmp_path / "model"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    found = [_content_id(folder, None), _content_id(folder, "gpt2"), _content_id(folder, "bytes")]
    for name, text in files.items():
        (folder / name).write_text("changed")
        found.append(_content_id(folder, None))
        (folder / name).unlink()
        found.append(_content_id(folder, None))
        (folder / name).write_text(text)
    assert len(set(found)) == 3 + 2 * len(files)
    (folder / "README.md").write_text("read me")
    assert _content_id(folder, None) == found[0]
    other = tmp_path / "tokenizer"
    other.mkdir()
    (other / "tokenizer.json").write_text("t")
    mine = _content_id(folder, str(other))
    (other / "tokenizer.json").write_text("u")
    assert _content_id(folder, str(other)) != mine


def test_weights_are_known_by_names_and_contents():
    one, two = "11" * 32, "22" * 32
    digests = [manifest.weights_digest(files) for files in (
        {"a.safetensors": one}, {"b.safetensors": one}, {"a.safetensors": two}, {"a.safetensors": one, "b.safetensors": two},
        {"a.safetensors": two, "b.safetensors": one})]  # fmt: skip
    assert len(set(digests)) == 5 and None not in digests
    assert manifest.weights_digest({"a.safetensors": one, "config.json": two}) == digests[0]
    assert manifest.weights_digest({"config.json": two}) is None


def test_samples_begun_are_of_one_model_evaluation_and_weights(monkeypatch, tmp_path):
    """Each of the three changed: another identity, under which the samples of the first are not taken."""
    identities: list[str] = []

    def stop(path: Path, identity: str) -> None:
        identities.append(identity)
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "Partial", stop)
    loss = KINDS["per_token_loss"](**EVALUATIONS["per_token_loss"][0])
    for run_id, weights, spec in (
        ("r", "w", loss), ("s", "w", loss), ("r", "v", loss), ("r", "w", dataclasses.replace(loss, num_documents=9)),
    ):  # fmt: skip
        loaded = SimpleNamespace(subject=SimpleNamespace(run_id=run_id, weights=weights))
        with pytest.raises(KeyboardInterrupt):
            evaluation.run(loaded, spec, SimpleNamespace(), tmp_path / "x.parquet")
    assert len(set(identities)) == 4


@pytest.mark.parametrize(("changes", "stands"), [
    ({}, True), ({"weights": "v"}, False), ({"weights": None}, True), ({"run_id": "s"}, None), ({"eval_id": "loss-00"}, None),
])  # fmt: skip
def test_rows_stand_for_one_model_evaluation_and_weights(changes, stands, monkeypatch, tmp_path):
    """Rows of other weights are made again; those of another run or evaluation are refused; unnamed weights are any."""
    loss, out = KINDS["per_token_loss"](**EVALUATIONS["per_token_loss"][0]), tmp_path / "x.parquet"
    out.touch()
    meta = {"run_id": "r", "eval_id": eval_id(loss), "model": "m", "weights": "w"} | changes
    monkeypatch.setattr(evaluation, "fault_of", lambda path: None)
    monkeypatch.setattr(evaluation, "read_rows", lambda path: (None, meta))
    for weights in ("w", None):
        subject = SimpleNamespace(run_id="r", model="m", weights=weights)
        if stands is None:
            with pytest.raises(ValueError, match="delete it, or name another file"):
                evaluation.exists(out, subject, loss)
        else:
            assert evaluation.exists(out, subject, loss) is (stands or weights is None)
