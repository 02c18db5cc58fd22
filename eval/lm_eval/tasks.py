"""Tasks of the paper from the LM evaluation harness. Torch-free."""

import csv
from pathlib import Path

with open(Path(__file__).with_name("tasks.csv"), newline="") as _file:
    TABLE = {line["task"]: line for line in csv.DictReader(_file)}
"""By task: the harness's file, the scored split, and the metrics in the paper's tables; and for a plan's cost the number of
examples and the approximate tokens of each in all its requests."""
TASKS = tuple(TABLE)
