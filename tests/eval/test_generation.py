"""Generation: batches of different lengths give what one prompt alone gives, and cached decoding what recomputing gives."""

from types import SimpleNamespace

import pytest
import torch
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)  # fmt: skip

from eval.shell import generation
from eval.shell.batching import batches, in_batches
from eval.shell.context import Compute
from eval.shell.generation import generate, own_cache, stands_batches
from models.build import build_model
from models.spec import DeltaNetSpec, HGRN2Spec, Mamba2Spec, SambaSpec

NEW = 12
CPU = Compute()


def make_model(name: str, tiny_fox) -> torch.nn.Module:
    torch.manual_seed(1)
    size = {"vocab_size": 64, "hidden_size": 64, "num_layers": 2}
    if name == "llama":
        config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        model: torch.nn.Module = LlamaForCausalLM(config)
    elif name == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    elif name == "rwkv":  # reads padding whatever the mask says, and mixes up states of several rows
        model = RwkvForCausalLM(RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, context_length=64))
        for module in model.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                torch.nn.init.normal_(module.weight, std=0.2)
    else:
        spec = {
            "fox_pro": lambda: tiny_fox(64),
            "fox_llama": lambda: tiny_fox(64, use_k_shift=False, use_v_shift=False, qk_norm=False),
            "transformer": lambda: tiny_fox(64, forget_gate="none", use_rope=True),
            "mamba2": lambda: Mamba2Spec(**size, head_dim=32, ssm_state_size=16),
            "hgrn2": lambda: HGRN2Spec(**size, expand_ratio=32, mlp_width=128),
            "delta_net": lambda: DeltaNetSpec(**size, head_dim=32, mlp_width=128),
            "samba": lambda: SambaSpec(**size, num_heads=2),
        }[name]()
        model = build_model(spec)
    with torch.no_grad():  # sharper logits: near ties would decide by rounding
        model.get_output_embeddings().weight.mul_(8.0)
    return model.eval()


NAMES = ["llama", "gpt2", "rwkv", "fox_pro", "fox_llama", "transformer", "mamba2", "hgrn2", "delta_net"]


@pytest.mark.parametrize("name", NAMES)
def test_batched_single_and_uncached_generation_agree(name, tiny_fox):
    model = make_model(name, tiny_fox)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(1, 64, (n,), generator=generator).tolist() for n in (7, 40, 21, 3)]
    batched = generate(model, prompts, CPU, max_new_tokens=NEW)
    single = [generate(model, [prompt], CPU, max_new_tokens=NEW)[0] for prompt in prompts]
    assert batched == single
    for prompt, new in zip(prompts, batched, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + new])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == new


@pytest.mark.parametrize("name", [*NAMES, "samba"])
def test_a_gpu_has_a_cache_with_a_place_for_each_token(name, tiny_fox):
    model = make_model(name, tiny_fox)
    assert own_cache(model, CPU) is None
    made = own_cache(model, Compute("cuda:0", "bf16"))
    assert (None if made is None else made(20).room) == (None if name in ("llama", "gpt2", "rwkv", "samba") else 20)


def test_a_model_is_asked_once_whether_it_stands_batches(tiny_fox, monkeypatch):
    """In either precision; what rounding does is none of it."""
    asked = [make_model(name, tiny_fox) for name in ("llama", "gpt2", "rwkv", "fox_pro")]
    for precision in ("bf16", "fp32"):
        assert [stands_batches(model, Compute("cpu", precision)) for model in asked] == [True, True, False, True]
        generation._standing.clear()
    assert not stands_batches(asked[2], CPU)
    monkeypatch.setattr(asked[2], "generate", None)
    assert not stands_batches(asked[2], CPU)


def test_stops_and_callbacks(tiny_fox):
    model = make_model("llama", tiny_fox)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    free = generate(model, prompts, CPU, max_new_tokens=NEW)
    end = free[0][3]
    stopped = generate(model, prompts, CPU, max_new_tokens=NEW, stop_ids={end})
    assert stopped == [ids[: ids.index(end)] if end in ids else ids for ids in free]
    short = generate(model, prompts, CPU, max_new_tokens=NEW, stop=lambda ids: len(ids) == 2)
    assert short == [ids[:2] for ids in free]
    assert generate(model, prompts, CPU, max_new_tokens=NEW, batch_tokens=1) == free
    seen: dict[int, int] = {}
    assert in_batches([3, 5], CPU, lambda batch: batch, batch_tokens=1, on_done=seen.__setitem__) == [0, 1]
    assert list(seen) == [1, 0]  # the longest first


def test_checkpoint_generation_settings_have_no_say(tiny_fox):
    model = make_model("llama", tiny_fox)
    free = generate(model, [[1, 2, 3]], CPU, max_new_tokens=NEW)
    model.generation_config.eos_token_id = free[0][1]
    model.generation_config.do_sample = True
    model.generation_config.repetition_penalty = 5.0
    assert generate(model, [[1, 2, 3]], CPU, max_new_tokens=NEW) == free
    assert model.generation_config.eos_token_id == free[0][1]


def test_batches_keep_to_the_budget():
    lengths = [5, 100, 30, 31, 7, 90]
    made = list(batches(lengths, 130))
    assert sorted(i for batch in made for i in batch) == list(range(6))
    assert made[0] == [1]
    for batch in made:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= 130


def test_out_of_memory_halves_the_batch_and_names_a_hopeless_prompt(tiny_fox, monkeypatch):
    model = make_model("llama", tiny_fox)
    prompts = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]
    free = generate(model, prompts, CPU, max_new_tokens=NEW)
    real, limit = model.generate, 2

    def small_machine(**arguments):
        if arguments["input_ids"].shape[0] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(**arguments)

    monkeypatch.setattr(model, "generate", small_machine)
    assert generate(model, prompts, CPU, max_new_tokens=NEW) == free
    limit = 0
    with pytest.raises(ValueError, match=r"a prompt of 16 tokens \(new ones included\) does not fit into the memory of cpu"):
        generate(model, prompts, CPU, max_new_tokens=NEW)
    with pytest.raises(ValueError, match="no tokens"):
        generate(model, [[]], CPU, max_new_tokens=NEW)


class Played(torch.nn.Module):
    """Goes on with the same tokens, whatever it is given, and notes that."""

    generation_config = "its own"

    def __init__(self, new, limit=None):
        super().__init__()
        self.wpe = torch.nn.Embedding(1, 1)
        self.config, self.new, self.given = SimpleNamespace(max_position_embeddings=limit), new, []
        generation._standing[self] = True

    def generate(self, **given):
        self.given.append(given | {"own": self.generation_config, "bf16": torch.is_autocast_enabled("cpu")})
        if self.new is None:
            raise KeyError
        rows = given["input_ids"]
        out = torch.cat([rows, torch.tensor([self.new] * len(rows))], 1)
        given["stopped"] = [each(out, None).tolist() for each in given["stopping_criteria"]]
        self.given[-1] |= given
        return out


@pytest.mark.parametrize(("stop_ids", "stop", "kept"), [
    ((), None, [5, 6, 7, 8]), ((7, 9), None, [5, 6]), ((), lambda ids: sum(ids) > 11, [5, 6, 7]),
    ((5,), lambda ids: len(ids) > 1, []),
    ((8,), lambda ids: len(ids) > 1, [5, 6]),
])  # fmt: skip
def test_a_batch_is_padded_on_the_left_and_cut_where_each_of_its_rows_ends(stop_ids, stop, kept):
    model = Played([5, 6, 7, 8])
    assert generation.greedy(model, Compute("cpu", "bf16"), 4, stop_ids, stop)([[1, 2, 3], [4]]) == [kept, kept]
    (given,) = model.given
    filler = min(stop_ids, default=0)
    assert given["input_ids"].tolist() == [[1, 2, 3], [filler, filler, 4]] and given["bf16"]
    assert given["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    config = given["generation_config"]
    assert (config.eos_token_id, config.max_new_tokens) == (sorted(stop_ids) or None, 4)
    assert (config.use_cache, config.do_sample, config.pad_token_id) == (True, False, filler)
    assert given.get("stopped", []) == ([] if stop is None else [[True, True]]), "by what is new alone"
    assert isinstance(given["own"], GenerationConfig) and model.generation_config == "its own"


def test_prompts_fit_into_positions_and_a_models_settings_come_back():
    """The last token is never read; whatever goes wrong."""
    assert generate(Played([5, 6], limit=4), [[1, 2, 3]], CPU, max_new_tokens=2) == [[5, 6]]
    with pytest.raises(
        ValueError, match=r"5 tokens are more than the 4 positions .*; choose shorter prompts or fewer new tokens"
    ):
        generate(Played([5, 6, 7], limit=4), [[1, 2, 3]], CPU, max_new_tokens=3)
    broken = Played(None)
    with pytest.raises(KeyError):
        generate(broken, [[1]], CPU, max_new_tokens=1)
    assert broken.generation_config == "its own"
    model = Played([5, 6])
    generate(model, [[1], [2], [3]], CPU, max_new_tokens=2, batch_tokens=6)
    assert [len(given["input_ids"]) for given in model.given] == [2, 1], "three tokens each"
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        generate(model, [[1], []], CPU, max_new_tokens=2)


@pytest.mark.parametrize(
    ("eos", "named", "ends"), [(9, None, {9}), (None, None, set()), (9, 9, {9}), (None, 8, {8}), (9, [9, 7, 8], {7, 8, 9})]
)
def test_an_answer_ends_with_the_tokenisers_end_or_the_checkpoints(eos, named, ends, monkeypatch):
    """Models of dialogues end what they say with other tokens than texts."""
    model, asked = SimpleNamespace(generation_config=GenerationConfig(eos_token_id=named)), []
    run = lambda *given: asked.append(given) or (lambda prompts: [prompt * 2 for prompt in prompts])  # noqa: E731
    monkeypatch.setattr(generation, "greedy", run)
    monkeypatch.setattr(generation, "recorded", lambda what, sizes, context, compute, answer: answer(list(sizes)))
    loaded = SimpleNamespace(tokenizer=SimpleNamespace(eos_id=eos, decode=str), model=model)
    context = SimpleNamespace(compute=lambda precision: Compute("cpu", precision))
    found = generation.answered("what", {"a": [1], "b": [2]}, loaded, context, "bf16", 7)
    assert found == [{"prediction": "[1, 1]"}, {"prediction": "[2, 2]"}]
    assert asked == [(model, Compute("cpu", "bf16"), 7, ends)]


def test_an_answer_counts_its_prompt_and_all_that_it_may_be(monkeypatch):
    """As `batch_tokens` says: new tokens included."""
    seen = []
    monkeypatch.setattr(generation, "recorded", lambda what, sizes, *given: seen.append((what, sizes)) or "recorded")
    loaded = SimpleNamespace(tokenizer=SimpleNamespace(eos_id=None), model=None)
    context = SimpleNamespace(compute=lambda precision: CPU)
    assert generation.answered("needle", {"a": [1, 2, 3], "b": [4]}, loaded, context, None, 7) == "recorded"
    assert seen == [("needle", {"a": 10, "b": 8})]
