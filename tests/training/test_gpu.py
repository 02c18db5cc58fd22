"""On a GPU: the fast step follows a plain one, and graphs, recomputation and other models train."""

import functools
import os
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

import models.forgetting_transformer.module as fox
from beyond.models.fox_hybrid.spec import FoxHybridSpec
from beyond.models.gated_delta_net.spec import GatedDeltaNetSpec
from experiments.recipes import NAMES, model_spec
from experiments.scales import SCALES
from kernels.forgetting_attention import forgetting_attention
from models.build import build_model
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.loss import TokenLoss
from tests.models.test_gpu import is_wrong_for_gates
from training import node
from training.distributed import World
from training.spec import Execution, TrainSpec
from training.step import build_stepper

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def as_it_was():
    """Leave the other tests PyTorch's own algorithms: a step that repeats asks for others, for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)


ROOT = Path(__file__).parents[2]
STEPS, BATCH, SEQ_LEN = 50, 4, 1024


def batches(vocab_size: int) -> torch.Tensor:
    """Random texts with something to learn: each token follows one of four that its predecessor allows."""
    generator = torch.Generator().manual_seed(0)
    follows = torch.randint(vocab_size, (vocab_size, 4), generator=generator)
    tokens = torch.zeros(STEPS, BATCH, SEQ_LEN + 1, dtype=torch.long)
    choice = torch.randint(4, tokens.shape, generator=generator)
    for i in range(1, SEQ_LEN + 1):
        tokens[..., i] = follows[tokens[..., i - 1], choice[..., i]]
    return tokens.cuda()


def model_125m(name: str = "fox_pro", vocab_size: int = 2049, **changes: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(model_spec(name, SCALES["125m-2.7b"], vocab_size, changes)).cuda()


def curve(model: torch.nn.Module, precision: str, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    spec = TrainSpec(
        seq_len=SEQ_LEN, batch_tokens=BATCH * SEQ_LEN, train_tokens=BATCH * SEQ_LEN * STEPS, warmup_tokens=0, peak_lr=1e-3,
        precision=precision,
    )  # fmt: skip
    world = World(0, 1, torch.device("cuda", 0))
    stepper = build_stepper(model, spec, Execution(**options), world)
    losses = [stepper.run(batch[:, :-1], batch[:, 1:], 1e-3)[0] for batch in tokens]
    return torch.stack(losses).cpu()


def test_fast_step_follows_a_plain_fp32_one(monkeypatch):
    """bf16, Triton attention, compiled layers and chunked loss against fp32, quadratic attention and whole logits."""
    tokens = batches(2049)
    fast = curve(model_125m(), "bf16", tokens, compile="yes")
    eager = curve(model_125m(), "bf16", tokens)

    monkeypatch.setattr(fox, "forgetting_attention", functools.partial(forgetting_attention, backend="chunked"))

    def whole_logits(self, inputs, targets):
        logits = self.model(input_ids=inputs).logits.float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)

    monkeypatch.setattr(TokenLoss, "forward", whole_logits)
    plain = curve(model_125m(), "fp32", tokens)
    noise = (curve(model_125m(), "bf16", tokens) - plain).abs()
    print(f"plain fp32 {plain[0]:.4f} -> {plain[-1]:.4f}; |fast - plain| mean {(fast - plain).abs().mean():.2e} "
          f"max {(fast - plain).abs().max():.2e}; |eager - plain| max {(eager - plain).abs().max():.2e}; "
          f"plain bf16 against fp32: mean {noise.mean():.2e} max {noise.max():.2e}")  # fmt: skip
    assert plain[-1] < plain[0] - 1.0
    for ours in (fast, eager):
        assert (ours - plain).abs().mean() < 2 * noise.mean() + 1e-3
        assert (ours - plain).abs().max() < 3 * noise.max() + 5e-3


def refused_by_fla(name: str) -> bool:
    gated = GatedDeltaNetSpec | FoxHybridSpec
    return isinstance(model_spec(name, SCALES["125m-2.7b"], 2049), gated) and is_wrong_for_gates()


@pytest.mark.parametrize("name", [name for name in NAMES if model_spec(name, SCALES["125m-2.7b"], 2049).is_built])
def test_every_model_learns_in_bf16(name):
    if refused_by_fla(name):
        with pytest.raises(RuntimeError, match="upgrade Triton"):
            curve(model_125m(name), "bf16", batches(2049)[:1])
        return
    losses = curve(model_125m(name), "bf16", batches(2049))
    print(f"{name}: {losses[0]:.3f} -> {losses[-5:].mean():.3f}")
    assert losses.isfinite().all()
    assert losses[-5:].mean() < losses[0] - 0.3


TWICE = """
import sys
import torch
from tests.training.test_gpu import batches, curve, model_125m
model = model_125m(sys.argv[1])
losses = curve(model, "bf16", batches(2049)[:8], compile="yes" if sys.argv[1].startswith("fox") else "no")
print(losses.double().numpy().tobytes().hex())
print(sum(p.double().abs().sum() for p in model.parameters()).item().hex())
"""


@pytest.mark.parametrize("name", [name for name in NAMES if model_spec(name, SCALES["125m-2.7b"], 2049).is_built])
def test_a_deterministic_run_repeats_bit_by_bit(name):
    """In processes of their own: what is tuned by timing may differ between them."""
    command = [sys.executable, "-c", TWICE, name]
    done = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False) for _ in range(2)]
    if refused_by_fla(name):
        assert all("upgrade Triton" in one.stderr for one in done)
        return
    assert all(one.returncode == 0 for one in done), done[0].stderr[-2000:] + done[1].stderr[-2000:]
    assert done[0].stdout == done[1].stdout


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(
    ("name", "changes"),
    [(name, {}) for name in NAMES if model_spec(name, SCALES["125m-2.7b"], 2049).is_built]
    + [("fox_pro", {"prune_log_tolerance": -10.0})],
)
def test_a_graph_changes_no_bit_and_skips_a_bad_step(name, changes, parts):
    """The sixth of nine steps has a target outside the vocabulary, whose loss is NaN."""
    if refused_by_fla(name):
        return
    tokens = batches(2049)[:9]
    tokens[5, 0, -1] = 2**20
    spec = TrainSpec(seq_len=SEQ_LEN, batch_tokens=BATCH * SEQ_LEN, train_tokens=2**20, warmup_tokens=0, peak_lr=1e-3)

    def trained(graph: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model = model_125m(name, **changes)
        compiled = "yes" if parts == 1 and model.config.to_spec().compiles else "no"
        how = Execution(cuda_graph=graph, micro_batch_tokens=BATCH * SEQ_LEN // parts, compile=compiled)
        stepper = build_stepper(model, spec, how, World(0, 1, torch.device("cuda", 0)))
        outcomes = torch.stack([stepper.run(batch[:, :-1], batch[:, 1:], 1e-3) for batch in tokens])
        assert (stepper._replay is not None) is graph
        return outcomes, list(model.parameters())

    (one, weights), (other, others) = trained(True), trained(False)
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert one[:, 2].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert all(map(torch.equal, weights, others))


SHARED = """
import sys
import torch
from tests.training.test_gpu import SEQ_LEN, batches, model_125m
from training.distributed import join_world
from training.spec import Execution, TrainSpec
from training.step import build_stepper
with join_world("cuda", 5) as world:
    batch = 8 * SEQ_LEN
    spec = TrainSpec(seq_len=SEQ_LEN, batch_tokens=batch, train_tokens=6 * batch, warmup_tokens=0, peak_lr=1e-3)
    model = model_125m(sys.argv[1])
    execution = Execution(micro_batch_tokens=SEQ_LEN, compile="yes" if sys.argv[1].startswith("fox") else "no")
    stepper = build_stepper(model, spec, execution, world)
    lines = []
    for tokens in batches(2049)[:12].view(6, 8, SEQ_LEN + 1).chunk(world.size, 1)[world.rank]:
        lines.append([value.item().hex() for value in stepper.run(tokens[:, :-1], tokens[:, 1:], 1e-3)])
    lines.append([parameter.double().abs().sum().item().hex() for parameter in model.parameters()])
    if world.is_main:
        print(*lines, sep="\\n")
"""


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["fox_pro", "transformer_pro", "hgrn2", "mamba2"])
def test_several_gpus_give_the_bits_of_one(name, size):
    """Eight micro-batches a step, over NCCL."""
    if torch.cuda.device_count() < size:
        pytest.skip(f"this machine has fewer than {size} GPUs")

    def printed(size: int) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            place = dict(WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=probe.getsockname()[1])
        ranks = []
        for rank in range(size):
            given = os.environ | {key: str(value) for key, value in (place | dict(RANK=rank, LOCAL_RANK=rank)).items()}
            command = [sys.executable, "-c", SHARED, name]
            ranks.append(subprocess.Popen(command, cwd=ROOT, env=given, stdout=PIPE, stderr=PIPE, text=True))
        said = [rank.communicate(timeout=250) for rank in ranks]
        assert not any(rank.returncode for rank in ranks), "\n".join(error[-2000:] for _, error in said)
        return said[0][0]

    assert printed(1) == printed(size)


def test_softmax_attention_that_repeats_is_the_same_function(monkeypatch):
    """Forgetting attention with open gates beside PyTorch's softmax attention, whose gradient repeats only slowly."""
    tokens = batches(2049)[:8]
    ours = Mock(wraps=forgetting_attention)
    monkeypatch.setattr(fox, "forgetting_attention", ours)
    as_it_comes = curve(model_125m("transformer_pro"), "bf16", tokens, deterministic=False)
    assert not ours.called
    repeats = curve(model_125m("transformer_pro"), "bf16", tokens)
    assert ours.called
    torch.testing.assert_close(repeats, as_it_comes, rtol=5e-3, atol=0)


def test_recomputation_changes_no_gradient():
    spec = ForgettingTransformerSpec(vocab_size=257, hidden_size=256, num_layers=2, num_heads=4, use_k_shift=True, qk_norm=True)
    tokens = torch.randint(257, (2, 513), device="cuda")

    def gradients(checkpointing: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = build_model(spec).cuda()
        if checkpointing:
            model.gradient_checkpointing_enable()
        with torch.autocast("cuda", torch.bfloat16):
            TokenLoss(model)(tokens[:, :-1], tokens[:, 1:]).mean().backward()
        return [p.grad for p in model.parameters()]

    for with_it, without in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(with_it, without, rtol=2e-2, atol=1e-5)


@pytest.mark.gpu
def test_the_gpu_of_this_machine_is_sound():
    assert node.multiply(torch.device("cuda", 0))[0]
    node.check_gpus(World(0, 1, torch.device("cuda", 0)))
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
