"""Writes the reference from docstrings: `make docs`, or `python docs/reference.py [FOLDER]` (default `docs/reference`).

One Markdown page a package, one section a module, in it every public class and function with its signature and docstring. The
source is read, never imported: no torch, no vllm, nothing but the standard library is needed.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("simulators", "collab", "recipes")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    """Write the pages and say where they are."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "docs" / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    pages = dict(reference())
    for old in folder.glob("*.md"):
        old.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{len(pages)} pages -> {folder}")


def reference() -> Iterator[tuple[str, str]]:
    """Yield (file name, Markdown) of every page, the index `README.md` last."""
    index = ["# Reference\n", "Written by `make docs` from the docstrings.\n"]
    for package in PACKAGES:
        for folder in sorted({path.parent for path in (REPOSITORY / package).rglob("*.py")}):
            name = dotted(folder)
            initial = folder / "__init__.py"
            modules = sorted(folder.glob("*.py"), key=lambda path: (path.name != initial.name, path.name))
            yield f"{name}.md", page(name, modules)
            about = first_sentence(initial) if initial.is_file() else ""
            index.append(f"- [{name}]({name}.md): {about or ', '.join(path.stem for path in modules)}")
        index.append("")
    index += ["## What `collab` and `simulators` export\n", "| name | where it lives |", "|---|---|"]
    for package in PACKAGES[:2]:
        for exported, home in sorted(exports(REPOSITORY / package / "__init__.py").items()):
            index.append(f"| `{package}.{exported}` | [{home}]({home.rpartition('.')[0]}.md#{anchor(home)}) |")
    yield "README.md", "\n".join(index) + "\n"


def dotted(path: Path) -> str:
    """Return the module name of a file, or the package name of a folder."""
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)


def anchor(heading: str) -> str:
    """Return the anchor that a heading gets, as GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def first_sentence(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(parsed(path)) or "").partition("\n")[0]


def exports(path: Path) -> dict[str, str]:
    """Return what a package exports, as {name: module}: its table `_HOMES`."""
    for node in parsed(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_HOMES":
            homes: dict[str, str] = ast.literal_eval(node.value)
            return homes
    raise SystemExit(f"{path} has no table _HOMES")


def page(package: str, modules: list[Path]) -> str:
    """Return the page of one package."""
    sections = [f"# {package}\n"]
    for path in modules:
        tree = parsed(path)
        members = [member(node) for node in tree.body if isinstance(node, Definition) and public(node)]
        text = ast.get_docstring(tree)
        if path.name == "__init__.py":
            sections += [prose(text)] if text else []
        else:
            sections.append(f"## {dotted(path)}\n")
            sections += [prose(text)] if text else []
        sections += members
    return "\n".join(sections)


def public(node: Definition) -> bool:
    """True for names without a leading underscore."""
    return not node.name.startswith("_")


def member(node: Definition, owner: str = "") -> str:
    """Return the section of a class with its public methods, or of a function."""
    heading = f"{'####' if owner else '###'} {owner}{node.name}\n"
    lines = [heading, f"```python\n{signature(node)}\n```\n"]
    if text := ast.get_docstring(node):
        lines.append(prose(text))
    if isinstance(node, ast.ClassDef):
        methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and public(each)]
        lines += [member(method, f"{node.name}.") for method in methods if ast.get_docstring(method)]
    return "\n".join(lines)


def signature(node: Definition) -> str:
    """Return a definition's first lines as they stand in the source: decorators, name, parameters, and a class's fields."""
    decorators = [f"@{ast.unparse(each)}" for each in node.decorator_list]
    if not isinstance(node, ast.ClassDef):
        keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return "\n".join([*decorators, f"{keyword} {node.name}({ast.unparse(node.args)}){result}"])
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    fields = [f"    {ast.unparse(each)}" for each in node.body if isinstance(each, ast.AnnAssign) and not _hidden(each)]
    made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    fields += [f"    def __init__({ast.unparse(each.args)})" for each in made]
    return "\n".join([*decorators, f"class {node.name}{f'({bases})' if bases else ''}:", *(fields or ["    ..."])])


def _hidden(field: ast.AnnAssign) -> bool:
    return isinstance(field.target, ast.Name) and field.target.id.startswith("_")


def prose(docstring: str) -> str:
    """Return a docstring as Markdown: what stands indented below "Raises:" becomes a list, other indented text stays code."""
    lines: list[str] = []
    listed = False
    for line in inspect.cleandoc(docstring).splitlines():
        if re.fullmatch(r"\w+:", line):
            listed = True
            lines += [line, ""]
        elif listed and line.startswith(" "):
            deeper = line.startswith("     ") or not re.match(r"\s+[\w, ]+:", line)
            lines.append(f"  {line.strip()}" if deeper else f"- {line.strip()}")
        else:
            listed = listed and not line.strip()
            lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
