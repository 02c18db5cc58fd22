"""Paths that the pages of prose name, and what their links lead to, are there."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LISTED = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
PAGES = [page for page in LISTED if Path(page).name != "export_readme.md"]  # which is read in a folder of its own
PATH = re.compile(r"`([\w.*/-]+/[\w.*-]+\.(?:py|md|toml|txt|sh|csv|j2|json))`")
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b(?!\.md)")
LINK = re.compile(r"\]\(([^)#:]+)\)")


def missing(page: Path) -> list[str]:
    """Paths that are neither in the page's folder nor in one above it, and links that lead nowhere."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    folders = [folder for folder in page.parents if folder.is_relative_to(ROOT)]
    paths = [path for path in PATH.findall(text) if not PLACEHOLDER.search(path)]
    gone = [path for path in paths if not any(any(folder.glob(path)) for folder in folders)]
    return gone + [link for link in LINK.findall(text) if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page):
    assert missing(ROOT / page) == []
