"""Set the repository's address everywhere it must appear.

    python book/tools/address.py https://github.com/NAME/REPOSITORY

It stands in pyproject.toml ([project.urls] repository); the files below repeat it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "pyproject.toml",
    "_config.yml",
    "CITATION.cff",
    "README.md",
    "notebooks/*.ipynb",
)


def address() -> str:
    """The repository's address, from pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(settings["project"]["urls"]["repository"])


def pages(repository: str) -> str:
    """The address of the rendered book on GitHub Pages."""
    owner, name = repository.removeprefix("https://github.com/").split("/")
    return f"https://{owner}.github.io/{name}/"


def main(new: str) -> int:
    """Replace the old address by the new one; 2 if that is not a GitHub address."""
    if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", new):
        print(
            f"URL must look like https://github.com/NAME/REPOSITORY, got {new!r}",
            file=sys.stderr,
        )
        return 2
    old = address()
    for path in (path for pattern in FILES for path in sorted(ROOT.glob(pattern))):
        text = path.read_text(encoding="utf-8")
        changed = text.replace(pages(old), pages(new)).replace(old, new)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
