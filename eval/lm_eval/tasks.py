"""Tasks of the paper from the LM evaluation harness. Torch-free."""

import csv
from pathlib import Path

with open(Path(__file__).with_name("tasks.csv"), newline="") as _file:
    TABLE = {line["task"]: line for line in csv.DictReader(_file)}
"""By task: the harness's file, the split scored, and the metrics in the paper's tables; for the cost in a plan the number of
examples, and about how many tokens each has in all its requests."""
TASKS = tuple(TABLE)
