"""The order of imports: no circle, none upwards, no private name across files."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import posenc_lib

LIBRARY = Path(posenc_lib.__file__).parent

# Each line may import those above it, and a package its own modules. What stands in one
# line does not import one another: an encoding is read without the others' folders.
ORDER = (
    ("_command", "_torch"),
    ("_checks",),
    ("_draws", "_trees"),
    ("frequencies", "positions"),
    ("multimodal_positions",),
    ("embedding", "rotary", "bias", "content"),
    ("scheme",),
    ("attention",),
    ("layers", "properties"),
    ("figures",),
    ("lab", "ledger", "zoo"),
    ("checkpoints",),
    ("doctor",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(LIBRARY.parent).with_suffix("").parts): path
        for path in sorted(LIBRARY.rglob("*.py"))
    }


def imports(path: Path) -> set[tuple[str, str]]:
    """Module and name of each import of the library's own, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "posenc_lib"
        ):
            found |= {(str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                (alias.name, "")
                for alias in node.names
                if alias.name.startswith("posenc_lib")
            }
    return found


def target(module: str, name: str) -> str:
    """The module that an import reads: that of `from package import module`, too."""
    known = modules()
    for candidate in (f"{module}.{name}", module, f"{module}.__init__"):
        if candidate in known:
            return candidate
        if f"{candidate}.__init__" in known:
            return f"{candidate}.__init__"
    raise ValueError(f"{module} has no {name}")


def graph() -> dict[str, set[str]]:
    return {
        module: {target(*each) for each in imports(path)} - {module}
        for module, path in modules().items()
    }


def test_there_is_no_circle() -> None:
    TopologicalSorter(graph()).prepare()  # raises CycleError, with the circle


def test_nothing_imports_what_stands_above_it() -> None:
    wrong = []
    for module, used in graph().items():
        group = module.split(".")[1]
        if module.endswith(".__main__"):  # a command, which nothing imports
            continue
        for other in used:
            other_group = other.split(".")[1]
            if "__init__" in (group, other_group) or group == other_group:
                continue
            if RANK[other_group] >= RANK[group]:
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_every_module_has_its_line() -> None:
    groups = {module.split(".")[1] for module in modules()} - {"__init__"}
    assert groups == set(RANK)


def test_no_private_name_crosses_a_file() -> None:
    wrong = [
        f"{module} imports {name} of {source}"
        for module, path in modules().items()
        for source, name in imports(path)
        if name.startswith("_") and not name.startswith("__")
        if f"{source}.{name}" not in modules()
    ]
    assert not wrong


def test_tests_import_one_another_as_packages() -> None:
    """Plain `import test_x` works in one import mode only, and parity runs apart."""
    wrong = [
        path.name
        for path in Path(__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        if (node.module or "").startswith("test_")
    ]
    assert not wrong
