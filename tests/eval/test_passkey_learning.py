"""A tiny FoX learns the pass-key task on the CPU and then finds the key at every depth of its training length."""

from pathlib import Path

import numpy as np
import torch

from data.tokenizer import train_bpe
from eval.needle import measure
from eval.needle.measure import NAMES, key_line
from eval.needle.spec import Spec
from eval.shell.context import Context
from eval.shell.sources import Sources
from eval.shell.text import TextCodec
from models.build import build_model
from models.loss import token_losses
from tests.eval.passkey_training import training_batch

SEQ_LEN, STEPS, BATCH = 96, 110, 16


def test_a_tiny_fox_learns_pass_keys(tiny_fox, texts_folder: Path, bind, in_memory):
    """Starts with open gates (b = 4): from the paper's b = 0 a gate forgets within a token or two, and this task alone has
    nothing between one token and the key's distance that would open it step by step, as text does."""
    text = "".join(path.read_text() for path in sorted(texts_folder.iterdir()))
    rng = np.random.default_rng(5)
    lines = [key_line(str(rng.choice(NAMES)), " ".join("0123456789")) for _ in range(2000)]
    codec = TextCodec(train_bpe([text, *lines], 512))
    filler = codec.encode(text)
    torch.manual_seed(0)
    model = build_model(tiny_fox())
    with torch.no_grad():
        for layer in model.base_model.layers:
            layer.attn.fgate_proj.bias.fill_(4.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 30) * (1 - step / STEPS))
    for step in range(STEPS):
        batch = training_batch(codec, filler, seq_len=SEQ_LEN, batch_size=BATCH, seed=0, step=step)
        inputs, targets, mask = map(torch.from_numpy, batch)
        losses = token_losses(model, inputs, targets)
        (losses[mask].mean() + 0.1 * losses.mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    spec = Spec(mode="passkey", lengths=(48, 90), depths=(0.0, 25.0, 50.0, 75.0, 100.0), samples_per_cell=8, max_new_tokens=8)
    context = Context(sources=Sources(haystack=texts_folder))
    rows = measure.evaluate(in_memory(model.eval(), codec), bind(spec, haystack=texts_folder), context)
    assert len(rows) == 80
    assert rows["exact"].mean() > 0.95
    assert rows.loc[rows["exact"] == 1, "score"].eq(10).all()
