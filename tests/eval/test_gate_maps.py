"""Gate maps: against the whole matrices worked out plainly, and half-lives and pruning of constant gates by formula."""

import math

import numpy as np
import pytest
import torch

from eval.gate_maps import measure
from eval.gate_maps.measure import half_life, maps, median_decay
from eval.gate_maps.spec import Spec
from models.build import build_model
from models.forgetting_transformer.module import decay_time_bias


def plain(q: torch.Tensor, k: torch.Tensor, log_fgate: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """F and A of one head as (T, T) matrices, from the definitions."""
    q, k, log_fgate = q.double(), k.double(), log_fgate.double()
    T, D = q.shape
    decay = torch.full((T, T), -math.inf, dtype=torch.float64)
    for i in range(T):
        for j in range(i + 1):
            decay[i, j] = log_fgate[j + 1 : i + 1].sum()
    return decay.exp().numpy(), (q @ k.T / math.sqrt(D) + decay).softmax(-1).numpy()


@pytest.mark.parametrize(("T", "grid"), [(48, 48), (48, 12), (50, 12)])
def test_maps_pool_the_whole_matrices(T, grid):
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, T, 8, generator=generator)
    log_fgate = -torch.rand(T, generator=generator)
    forget, attend = maps(q, k, log_fgate, grid)
    whole_f, whole_a = plain(q, k, log_fgate)
    cell = -(-T // grid)
    size = -(-T // cell)
    assert forget.shape == attend.shape == (size, size)
    for row, col in np.ndindex(size, size):
        place = slice(row * cell, (row + 1) * cell), slice(col * cell, (col + 1) * cell)
        if col > row:
            assert np.isnan(forget[row, col])
            continue
        causal = np.tril(np.ones((T, T), bool))[place]
        assert forget[row, col] == pytest.approx(whole_f[place][causal].mean(), rel=1e-5)
        assert attend[row, col] == pytest.approx(whole_a[place].max(), rel=1e-5)


@pytest.mark.parametrize("life", [0.4, 3.0, 17.5, 60.0, 400.0])
def test_half_life_and_median_of_a_constant_gate(life):
    decay = torch.full((200,), -math.log(2) / life, dtype=torch.float64).cumsum(0)
    assert half_life(decay) == pytest.approx(life, rel=1e-9)
    assert median_decay(decay, 50) == pytest.approx(-50 * math.log(2) / life)
    assert half_life(0 * decay) == math.inf


def test_half_life_is_the_medians_not_the_means():
    """One gate that forgets everything hardly moves the median over queries."""
    log_fgate = torch.full((400,), -math.log(2) / 20, dtype=torch.float64)
    log_fgate[200] = -50.0
    assert half_life(log_fgate.cumsum(0)) == pytest.approx(20, rel=0.05)
    once = torch.cat([torch.zeros(40), -torch.ones(24)]).double()  # of queries 22 back 22 of 42 see it, 21 back 21 of 43
    assert half_life(once) == pytest.approx(21 + math.log(2))
    late = torch.cat([torch.zeros(150), torch.full((50,), -0.01)]).double()  # beyond half the text at the rate of that half
    assert half_life(late.cumsum(0)) == pytest.approx(100 * math.log(2) / 0.01)


@pytest.fixture
def fixed(tiny_fox):
    """Decay times 4 and 256 tokens on the two heads of each layer."""
    torch.manual_seed(0)
    return build_model(tiny_fox(forget_gate="fixed", decay_time_min=4.0, decay_time_max=256.0)).eval()


def test_statistics_of_fixed_gates(fixed, in_memory, bind, context):
    rows = measure.evaluate(in_memory(fixed), bind(Spec(seq_len=512, distance=64, grid=32, num_maps=2)), context)
    found = rows[rows["row"] == -1].pivot(index=["layer", "head"], columns="quantity", values="value")
    assert len(found) == 4
    for (_, head), row in found.iterrows():
        time = (4.0, 256.0)[head]
        assert row["half_life_tokens"] == pytest.approx(time * math.log(2), rel=1e-4)
        assert row["median_F"] == pytest.approx(math.exp(-64 / time), rel=1e-4)
        # delta = -2 sqrt(32) - log(512) - 10 = -27.6, out of reach of 512 / 256 in the exponent
        assert row["pruned_share"] > 0.3 if head == 0 else row["pruned_share"] == 0.0
    assert torch.sigmoid(decay_time_bias(2, 4.0, 256.0)).log().tolist() == pytest.approx([-1 / 4, -1 / 256], rel=1e-5)
    drawn = rows[rows["row"] >= 0]
    assert set(zip(drawn["layer"], drawn["head"], strict=True)) == {(0, 0), (1, 1)}
    assert set(drawn["quantity"]) == {"F", "A"} and len(drawn) == 2 * 2 * 32 * 33 / 2
    assert {"seq_len": 512, "cell": 16, "distance": 64, "document": 0}.items() <= context.extras.items()


def test_attention_of_the_model_itself(tiny_fox, in_memory, bind, corpus, context):
    """A at full resolution explains the layer's output: o = A v, before norm and gate."""
    torch.manual_seed(0)
    model = build_model(tiny_fox()).eval()
    attention, seen = model.base_model.layers[0].attn, {}
    model.get_input_embeddings().register_forward_pre_hook(lambda module, args: seen.update(inputs=args[0][0].tolist()))
    attend = attention.attend
    attention.attend = lambda q, k, v, f, p: seen.setdefault("o", attend(q, k, v, f, p)) if seen.update(v=v) is None else None
    asked = dict(seq_len=40, distance=8, grid=40, document=2)
    rows = measure.evaluate(in_memory(model), bind(Spec(**asked, layers=(0,), heads=(1,), num_maps=1)), context)
    drawn, matrix = rows[rows["quantity"] == "A"], np.zeros((40, 40))
    matrix[drawn["row"], drawn["col"]] = drawn["value"]
    assert seen["inputs"] == [corpus.spec.bos_id, *corpus.heldout.read(slice(2, 3), 0, 39)[0].tolist()]
    np.testing.assert_allclose(matrix.sum(1), 1.0, atol=1e-5)
    np.testing.assert_allclose(matrix @ seen["v"][0, :, 1].numpy(), seen["o"][0, :, 1].numpy(), atol=1e-5)


def test_one_map_more_is_of_a_local_head(fixed, in_memory, bind, context):
    rows = measure.evaluate(in_memory(fixed), bind(Spec(seq_len=64, distance=8, grid=8, num_maps=3)), context)
    drawn = rows[rows["row"] >= 0]
    assert set(zip(drawn["layer"], drawn["head"], strict=True)) == {(0, 0), (1, 0), (1, 1)}
