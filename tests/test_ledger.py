"""The ledger: verdicts follow from evidence; a reversed verdict makes its cell fail."""

from __future__ import annotations

import random
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from posenc_lib.ledger import VERDICTS, claims, verdict

ROOT = Path(__file__).resolve().parents[1]
OPPOSITE = {
    "holds": "false",
    "holds with a caveat": "misleading",
    "misleading": "holds with a caveat",
    "false": "holds with a caveat",
}


def test_claims_are_numbered_in_order():
    assert list(claims()) == [f"C{number:02d}" for number in range(1, 67)]
    assert all(claim.statement.endswith(".") for claim in claims().values())


def test_sources_are_cited_in_the_chapter_that_settles_the_claim():
    chapters = [
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    ]
    bibliography = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    for claim in claims().values():
        settling = [
            text
            for text in chapters
            if re.search(rf'verdict\([\s\\n",]*{claim.id}', text)
        ]
        assert len(settling) <= 1, f"{claim.id} is settled in more than one chapter"
        for key in claim.sources:
            assert f"{{{key}," in bibliography, (
                f"{claim.id}: {key} is not in references.bib"
            )
            assert all(key in text for text in settling), (
                f"{claim.id}: its chapter does not cite {key}"
            )


@pytest.mark.parametrize("name", VERDICTS)
@pytest.mark.parametrize("claim", [True, False])
@pytest.mark.parametrize("correction", [True, False])
def test_verdict_follows_from_evidence(name, claim, correction, capsys):
    if claim is VERDICTS[name] and correction:
        verdict(
            "C27", name, claim_holds=claim, correction_holds=correction, note="A note."
        )
        assert f"C27 {name}: " in capsys.readouterr().out
    else:
        with pytest.raises(AssertionError, match="C27"):
            verdict(
                "C27",
                name,
                claim_holds=claim,
                correction_holds=correction,
                note="A note.",
            )


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"claim_id": "C99"}, KeyError, "claim_id"),
        ({"verdict": "true"}, ValueError, "verdict"),
        ({"claim_holds": 1}, TypeError, "claim_holds"),
        ({"correction_holds": "yes"}, TypeError, "correction_holds"),
        ({"note": " "}, ValueError, "note"),
        (
            {"verdict": "misleading", "claim_holds": False},
            ValueError,
            "correction_holds",
        ),
    ],
)
def test_malformed_settlement(arguments, error, named):
    whole = {
        "claim_id": "C27",
        "verdict": "holds",
        "claim_holds": True,
        "note": "A note.",
        **arguments,
    }
    with pytest.raises(error, match=named):
        verdict(whole.pop("claim_id"), **whole)


def settling_cells() -> dict[str, list[tuple[str, int]]]:
    """The sampled cells by notebook: claim and index of the cell."""
    found = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for index, cell in enumerate(nbformat.read(path, as_version=4).cells):
            if cell.cell_type == "code":
                found += [
                    (path.name, claim, index)
                    for claim in re.findall(r'verdict\(\s*"(C\d\d)"', cell.source)
                ]
    sample = random.Random(0).sample(found, min(10, len(found)))
    return {
        name: [(claim, index) for n, claim, index in sample if n == name]
        for name in sorted({s[0] for s in sample})
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", settling_cells())
def test_reversed_verdict_fails(name):
    """Run a notebook.

    At each sampled cell, first with the verdict reversed: that must fail.
    """
    sampled = dict((index, claim) for claim, index in settling_cells()[name])
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3")
    with client.setup_kernel(cwd=ROOT / "notebooks"):
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            if index in sampled:
                right, claim = cell.source, sampled[index]
                [stated] = re.findall(rf'"{claim}",\s*"([a-z ]+)"', right)
                cell.source = re.sub(
                    rf'("{claim}",\s*)"{stated}"', rf'\1"{OPPOSITE[stated]}"', right
                )
                with pytest.raises(
                    CellExecutionError, match=f"{sampled[index]}: the claim tested"
                ):
                    client.execute_cell(cell, index)
                cell.source = right
            client.execute_cell(cell, index)


@pytest.mark.slow
def test_ten_cells_are_sampled():
    assert sum(map(len, settling_cells().values())) == 10
