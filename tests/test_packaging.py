"""The package as others get it, and the one-way imports inside it.

The wheel and the sdist are built from a copy of the checkout, and what is installed from them is
used from a foreign directory, so that nothing here can be satisfied by the checkout itself. The
layering tests read the sources with `ast` and import nothing. Both walk what is there: a new module
needs no change here unless it takes a place in the order.
"""

import ast
import graphlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER_OF_PACKAGE = {
    "cugraphs": "cugraphs",
    "cugraphs.kernels": "kernels",
    "cugraphs.models": "models",
}
WHEEL_LIMIT_BYTES = 4 * 2**20  # 3 MB of demo model, and code
NOT_IN_BUILDS = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
NEEDS_CUDA_EXTRA = {"cupy", "cupy_backends", "cuda"}

# Imports go upwards only. A module that is not named here may stand anywhere, as long as no path
# through it goes downwards and no two modules import each other.
ORDER = (
    ("cugraphs.kernel",),
    ("cugraphs.kernels", "cugraphs.program"),
    ("cugraphs.trace",),
    ("cugraphs.models", "cugraphs.fusion", "cugraphs.buffer_assignment", "cugraphs.interpreter"),
    ("cugraphs.executable",),
    ("cugraphs.compiler",),
    ("cugraphs.bucketed_step",),
    ("cugraphs.compiled_step", "cugraphs.step_plan"),
    ("cugraphs.model_runner",),
    ("cugraphs.engine",),
    ("cugraphs.llm",),
    ("cugraphs.cli",),
)


def run(*command: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Returns stdout; a failure shows everything that the command printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def package_folders() -> dict[str, Path]:
    """Every package of the checkout (import name -> folder), the symlinks not followed."""
    found = {}
    for package, folder in FOLDER_OF_PACKAGE.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found[".".join((package, *init.parent.relative_to(ROOT / folder).parts))] = init.parent
    return found


def module_files() -> dict[str, Path]:
    """Every module of the checkout: import name -> file. A package stands for its __init__.py."""
    found = {}
    for package, folder in package_folders().items():
        for file in folder.glob("*.py"):
            found[package if file.stem == "__init__" else f"{package}.{file.stem}"] = file
    return found


# ---------------------------------------------------------------------------------- wheel and sdist


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel, the sdist, and the wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("builds")
    source = folder / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*NOT_IN_BUILDS))
    for outdir, arguments in (("tree", ["--wheel"]), ("sdist", [])):  # no argument: sdist -> wheel
        run(sys.executable, "-m", "build", *arguments, "--outdir", folder / outdir, cwd=source)
    return {
        "wheel": next((folder / "tree").glob("*.whl")),
        "sdist": next((folder / "sdist").glob("*.tar.gz")),
        "wheel_of_sdist": next((folder / "sdist").glob("*.whl")),
    }


@pytest.fixture(scope="module")
def installed(builds: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that holds the wheel and its dependencies, nothing else."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", builds["wheel"], cwd=folder.parent)
    return python


def test_wheel_holds_every_module_and_data_file_and_nothing_else(builds: dict[str, Path]) -> None:
    expected = {"cugraphs/py.typed"}
    for module, file in module_files().items():
        path = module.replace(".", "/")
        expected.add(f"{path}/__init__.py" if file.stem == "__init__" else f"{path}.py")
    for pattern in ("kernels/*.cu", "kernels/*.cuh", "models/demo/*"):
        expected |= {f"cugraphs/{file.relative_to(ROOT)}" for file in ROOT.glob(pattern)}
    expected |= {f"cugraphs/{file.name}" for file in (ROOT / "cugraphs").glob("*.cu")}
    tables = ROOT.glob("cugraphs/tuning/*.json")
    expected |= {str(file.relative_to(ROOT)) for file in tables}
    cpp = ROOT.glob("cugraphs/emulation/cpp/**/*")
    expected |= {str(file.relative_to(ROOT)) for file in cpp if file.is_file()}

    with zipfile.ZipFile(builds["wheel"]) as wheel:
        names = set(wheel.namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}

    assert names - metadata == expected
    assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in metadata}


def test_wheel_is_small(builds: dict[str, Path]) -> None:
    assert builds["wheel"].stat().st_size <= WHEEL_LIMIT_BYTES


def test_wheel_of_the_sdist_holds_the_same_bytes(builds: dict[str, Path]) -> None:
    contents = []
    for name in ("wheel", "wheel_of_sdist"):
        with zipfile.ZipFile(builds[name]) as wheel:
            contents.append(
                {
                    info.filename: info.CRC
                    for info in wheel.infolist()
                    if info.filename[-6:] != "RECORD"
                }
            )
    assert contents[0] == contents[1]


def test_sdist_holds_each_source_once(builds: dict[str, Path]) -> None:
    with tarfile.open(builds["sdist"]) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    kernels = {name for name in names if name.endswith("kernels/__init__.py")}
    assert kernels == {"kernels/__init__.py"}
    assert {"LICENSE", "NOTICE", "README.md", "pyproject.toml"} <= set(names)


def test_every_module_of_the_installed_wheel_imports(installed: Path, tmp_path: Path) -> None:
    program = """
        import importlib, json, sys

        imported, failed = [], {}
        for name in json.loads(sys.argv[1]):
            try:
                imported.append(importlib.import_module(name).__file__)
            except ImportError as error:
                failed[name] = (error.name or str(error)).partition(".")[0]
        print(json.dumps({"files": imported, "failed": failed, "loaded": sorted(sys.modules)}))
    """
    names = sorted(name for name in module_files() if not name.endswith(".__main__"))
    assert len(names) > 3

    result = json.loads(
        run(installed, "-I", "-c", dedented(program), json.dumps(names), cwd=tmp_path)
    )

    # Only what wraps CUDA may refuse to load where no CUDA extra is installed.
    assert {
        name: cause for name, cause in result["failed"].items() if cause not in NEEDS_CUDA_EXTRA
    } == {}
    assert all(Path(file).is_relative_to(installed.parent.parent) for file in result["files"])
    assert {"torch", "transformers"}.isdisjoint(result["loaded"])


def test_installed_package_knows_its_version_and_command(installed: Path, tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    program = "import importlib.metadata as m; print(m.version('cugraphs'))"
    assert run(installed, "-I", "-c", program, cwd=tmp_path).strip() == version
    assert "generate" in run(installed.parent / "cugraphs", "--help", cwd=tmp_path)


# ---------------------------------------------------------------------------------- cheap imports


def dedented(program: str) -> str:
    """The program without the indentation it has in this file."""
    lines = program.strip("\n").rstrip().splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines)


@pytest.fixture
def traps(tmp_path: Path) -> dict[str, str]:
    """An environment in which CuPy, torch and transformers are found first, and raise on import."""
    for name in ("cupy", "torch", "transformers"):
        (tmp_path / f"{name}.py").write_text(f"raise AssertionError('{name} was imported')\n")
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(
    "module",
    [
        "cugraphs",
        "cugraphs.kernel",
        "cugraphs.scheduler",
        "cugraphs.block_manager",
        "cugraphs.sequence",
    ],
)
def test_import_takes_neither_cupy_nor_torch(module: str, traps: dict[str, str]) -> None:
    run(sys.executable, "-c", f"import {module}", cwd=ROOT, env=traps)


def test_bare_kernels_imports_cheaply_in_a_checkout(traps: dict[str, str]) -> None:
    # `kernels` is another distribution's name: libraries that look for it find this folder when the
    # working directory is a checkout, import it, and ask for its version. Cheap is what the
    # references need and such a library has loaded anyway.
    program = """
        import sys

        before = set(sys.modules)
        import kernels

        files = {name for name, module in sys.modules.items() if getattr(module, "__file__", None)}
        new = {name.partition(".")[0] for name in files - before}
        third_party = new - sys.stdlib_module_names - {"kernels", "cugraphs"}
        assert kernels.__file__.startswith(sys.argv[1]), kernels.__file__
        assert not hasattr(kernels, "__version__")
        assert third_party <= {"numpy", "ml_dtypes"}, third_party
    """
    run(sys.executable, "-c", dedented(program), ROOT, cwd=ROOT, env=traps)


# ---------------------------------------------------------------------------------- layering


def imports_of(module: str, file: Path, known: set[str]) -> set[str]:
    """Absolute names of what a file imports, at its top or inside functions, for types or not."""
    package = module if file.stem == "__init__" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(file.read_text(), filename=str(file))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            origin = ".".join(
                ([*parents] if node.level else []) + ([node.module] if node.module else [])
            )
            for alias in node.names:
                submodule = f"{origin}.{alias.name}"
                found.add(submodule if submodule in known else origin)
    return found - {module}


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Module -> what it imports. `cugraphs` itself is left out: it only names what loads lazily."""
    files = module_files()
    known = set(files)
    return {
        name: imports_of(name, file, known) for name, file in files.items() if name != "cugraphs"
    }


def reachable(module: str, imports: dict[str, set[str]]) -> set[str]:
    """All that a module imports, directly or through modules of this project."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for name in imports.get(waiting.pop(), set()) - found:
            found.add(name)
            waiting.append(name)
    return found


def place(module: str) -> int | None:
    """Index in ORDER; None for a module that is not in it."""
    for index, names in enumerate(ORDER):
        for name in names:
            if module == name or module.startswith(f"{name}."):
                return index
    return None


def test_imports_follow_the_order(imports: dict[str, set[str]]) -> None:
    wrong = []
    for module in imports:
        if (here := place(module)) is None:
            continue
        for other in reachable(module, imports):
            there = place(other)
            if there is not None and there > here:
                wrong.append(f"{module} -> {other}")
    assert sorted(wrong) == []


def test_no_two_modules_import_each_other(imports: dict[str, set[str]]) -> None:
    graph: dict[str, set[str]] = {}
    for module, others in imports.items():
        graph.setdefault(module, set()).update(other for other in others if other in imports)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_runtime_never_imports_models(imports: dict[str, set[str]]) -> None:
    # The model arrives as an argument. Only what faces the user chooses one.
    runtime = {
        module
        for module in imports
        if not module.startswith(("cugraphs.models", "cugraphs.cli")) and module != "cugraphs.llm"
    }
    wrong = {
        module: sorted(name for name in imports[module] if name.startswith("cugraphs.models"))
        for module in runtime
    }
    assert {module: names for module, names in wrong.items() if names} == {}


@pytest.mark.parametrize("module", ["scheduler", "block_manager", "sequence", "kernel"])
def test_never_reaches_cupy(module: str, imports: dict[str, set[str]]) -> None:
    roots = {name.partition(".")[0] for name in reachable(f"cugraphs.{module}", imports)}
    assert f"cugraphs.{module}" in imports
    assert roots.isdisjoint(NEEDS_CUDA_EXTRA)


def test_tests_and_package_take_no_framework(imports: dict[str, set[str]]) -> None:
    roots = {name.partition(".")[0] for names in imports.values() for name in names}
    for file in (ROOT / "tests").glob("*.py"):
        roots |= {name.partition(".")[0] for name in imports_of(file.stem, file, set())}
    assert roots.isdisjoint({"torch", "transformers", "tensorflow", "jax"})


def test_symlinks_lead_to_the_top_folders() -> None:
    for name in ("kernels", "models"):
        assert os.readlink(ROOT / "cugraphs" / name) == f"../{name}"
