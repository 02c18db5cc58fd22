"""Generation: batches of different lengths give what one prompt alone gives, and cached decoding what recomputing gives."""

import pytest
import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, RwkvConfig, RwkvForCausalLM

from eval.runner.batching import batches, recorded
from eval.runner.context import Compute, Context
from eval.runner.generation import end_ids, greedy, seconds_of_tokens, stands_batches
from models.build import build_model
from models.delta_net.spec import DeltaNetSpec
from models.mamba2.spec import Mamba2Spec
from models.samba.spec import SambaSpec
from tests.eval.oracles import llama

NEW = 12
CPU = Compute()
SIZE = {"vocab_size": 64, "hidden_size": 64, "num_layers": 2}
NAMES = ["llama", "gpt2", "rwkv", "fox_pro", "transformer", "mamba2", "delta_net", "samba"]


@pytest.fixture
def make_model(tiny_fox):
    def make(name: str) -> torch.nn.Module:
        torch.manual_seed(1)
        if name == "llama":
            return llama(vocab_size=64)
        if name == "gpt2":
            model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
        elif name == "rwkv":  # reads padding whatever the mask says, and mixes up states of several rows
            model = RwkvForCausalLM(RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, context_length=64))
            for module in model.modules():
                if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                    torch.nn.init.normal_(module.weight, std=0.2)
        else:
            spec = {
                "fox_pro": lambda: tiny_fox(64),
                "transformer": lambda: tiny_fox(64, forget_gate="none", use_rope=True),
                "mamba2": lambda: Mamba2Spec(**SIZE, head_dim=32, ssm_state_size=16),
                "delta_net": lambda: DeltaNetSpec(**SIZE, head_dim=32, mlp_width=128),
                "samba": lambda: SambaSpec(**SIZE, num_heads=2),
            }[name]()
            model = build_model(spec)
        with torch.no_grad():  # sharper logits: near ties would decide by rounding
            model.get_output_embeddings().weight.mul_(8.0)
        return model.eval()

    return make


@pytest.mark.parametrize("name", NAMES)
def test_batched_single_and_uncached_generation_agree(name, make_model):
    model = make_model(name)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(1, 64, (n,), generator=generator).tolist() for n in (7, 40, 21, 3)]
    batched = greedy(model, CPU, NEW)(prompts)
    assert batched == [greedy(model, CPU, NEW)([prompt])[0] for prompt in prompts]
    for prompt, new in zip(prompts, batched, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + new])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == new


def test_models_that_mix_up_rows_are_told_apart(make_model):
    asked = [make_model(name) for name in ("llama", "gpt2", "rwkv", "fox_pro")]
    assert [stands_batches(model) for model in asked] == [True, True, False, True]
    assert seconds_of_tokens(asked[2], [[1, 2]], CPU, 3).shape == (3,)
    with pytest.raises(ValueError, match="batches of 1"):
        seconds_of_tokens(asked[2], [[1, 2]] * 2, CPU, 3)
    assert seconds_of_tokens(asked[3], [[1, 2]] * 300, CPU, 3).shape == (3,), "one batch, however large"


def test_answers_end_where_they_are_told_and_checkpoints_settings_have_no_say(make_model):
    model, prompts = make_model("llama"), [[1, 2, 3], [4, 5, 6, 7, 8]]
    free = greedy(model, CPU, NEW)(prompts)
    end = free[0][3]
    stopped = greedy(model, CPU, NEW, {end})(prompts)
    assert stopped == [ids[: ids.index(end)] if end in ids else ids for ids in free]
    last = greedy(model, CPU, NEW, stop=lambda ids: ids[-1] == end)(prompts)  # each row at its own end
    assert last == [ids[: ids.index(end) + 1] if end in ids else ids for ids in free]
    short = greedy(model, CPU, NEW, stop=lambda ids: len(ids) == 2)(prompts)
    assert short == [ids[:2] for ids in free]
    model.generation_config = own = GenerationConfig(eos_token_id=free[0][1], do_sample=True, repetition_penalty=5.0)
    assert greedy(model, CPU, NEW)(prompts) == free and model.generation_config is own
    assert end_ids(model, None) == {free[0][1]} and end_ids(model, 9) == {free[0][1], 9}
    model.generation_config.eos_token_id = [7, 8]
    assert end_ids(model, 9) == {7, 8, 9}


def test_positions_are_enough_for_all_but_the_last_token():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=8, eos_token_id=None))
    assert len(greedy(model.eval(), CPU, 6)([[1, 2, 3]])[0]) == 6
    with pytest.raises(ValueError, match="9 tokens are more than the 8 positions"):
        greedy(model, CPU, 7)([[1, 2, 3]])


def test_batches_keep_to_the_budget_the_longest_first():
    lengths = dict(a=5, b=100, c=30, d=31, e=7, f=90)
    assert list(batches(lengths, 100)) == [["b"], ["f"], ["d", "c", "e"], ["a"]]
    assert list(batches(lengths, 1e9, 4)) == [["b", "f", "d", "c"], ["e", "a"]]
    assert [len(batch) for batch in batches(dict.fromkeys(range(300), 1), 1e9)] == [256, 44]


def test_out_of_memory_halves_the_batch_and_names_a_hopeless_prompt():
    limit, tried = 2, []

    def run(keys: list[str]) -> list[dict]:
        tried.append(keys)
        if len(keys) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [{"x": key} for key in keys]

    lengths = dict(a=3, b=4, c=1, d=2)
    found = recorded("what", lengths, Context(), CPU, run)
    assert found == {key: {"x": key} for key in lengths} and tried == [["b", "a", "d", "c"], ["b", "a"], ["d", "c"]]
    limit = 0
    with pytest.raises(ValueError, match="a prompt of 4 tokens"):
        recorded("what", lengths, Context(), CPU, run)
