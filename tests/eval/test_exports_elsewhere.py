"""Exports in plain transformers: what their own README says is enough."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from models.build import load_model

ROOT = Path(__file__).parents[2]
THEN = """
import json
ids = tokenizer("The river was quiet.", return_tensors="pt").input_ids
logits = model(input_ids=ids).logits[0, -1].tolist()
new = model.generate(ids, max_new_tokens=4, do_sample=False)
print(json.dumps([ids.tolist(), logits, new.shape[1] - ids.shape[1], type(tokenizer).__name__]))
"""


def test_an_export_opens_as_its_readme_says(make_run, corpus, tmp_path):
    run = make_run()
    code = re.search(r"```python\n(.*?)```", (run / "export" / "README.md").read_text(), re.DOTALL)[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code + THEN], cwd=run, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ids, logits, new, name = json.loads(done.stdout)
    assert ids[0] == [corpus.spec.bos_id, *corpus.tokenizer.encode("The river was quiet.")]
    ours = load_model(run / "export")
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(logits), ours(input_ids=torch.tensor(ids)).logits[0, -1], rtol=1e-4, atol=1e-5)
    assert new == 4 and name == "CorpusTokenizer"
