# `make test` and `make demo` do their own set-up in .venv; nothing outside this folder is touched, except that root on
# Debian or Ubuntu gets the package that holds Python's venv module where it is missing.
#
#   make test     install with the development tools, then run the tests     (PYTEST_ARGS="-k name" passes options on)
#   make demo     install, with CUDA where a driver is found, then generate text    (EXTRA= installs without CUDA)
#   make lint     ruff, mypy and clang-format, changing nothing
#   make format   let ruff and clang-format rewrite
#   make clean    remove .venv and everything that can be made again
#
# All paths are relative, so the folder may lie anywhere, spaces included.

SHELL := /bin/sh
.SHELLFLAGS := -euc
.ONESHELL:

# The first of these that is 3.11 or newer makes the environment; `make test PYTHON=/opt/bin/python3` names another.
PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11
PYTEST_ARGS ?=

CUDA_SOURCES := $(wildcard kernels/*.cu kernels/*.cuh tests/*.cu cugraphs/*.cu cugraphs/emulation/cpp/*.cpp cugraphs/emulation/cpp/*.h)
PIP_INSTALL := .venv/bin/python -m pip install --quiet --disable-pip-version-check

# Prints cuda12 or cuda13 where the driver finds a GPU and is new enough, otherwise nothing. The driver itself is asked,
# because the text that nvidia-smi prints changes between releases.
define CUDA_EXTRA_PROGRAM
import ctypes
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    raise SystemExit
version, count = ctypes.c_int(), ctypes.c_int()
if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0:
    driver.cuDriverGetVersion(ctypes.byref(version))
    major = version.value // 1000
    print("cuda13" if major >= 13 else "cuda12" if major == 12 else "")
endef
export CUDA_EXTRA_PROGRAM

.PHONY: test demo lint format clean

test: .venv/installed-dev
	@.venv/bin/python -m pytest $(PYTEST_ARGS)

demo: .venv/pyvenv.cfg
	@extra="$(if $(filter undefined,$(origin EXTRA)),$$(.venv/bin/python -c "$$CUDA_EXTRA_PROGRAM"),$(EXTRA))"
	stamp=".venv/installed-demo$${extra:+-$$extra}"
	if [ ! "$$stamp" -nt pyproject.toml ]; then
		echo "Installing cugraphs$${extra:+ with the extra $$extra} into .venv (once)"
		$(PIP_INSTALL) --editable ".$${extra:+[$$extra]}"
		touch "$$stamp"
	fi
	.venv/bin/cugraphs generate demo "Once upon a time"

lint: .venv/installed-dev
	@.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy
	$(if $(CUDA_SOURCES),.venv/bin/clang-format --dry-run -Werror $(CUDA_SOURCES))

format: .venv/installed-dev
	@.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .
	$(if $(CUDA_SOURCES),.venv/bin/clang-format -i $(CUDA_SOURCES))

clean:
	@rm -rf .venv build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed-dev: pyproject.toml .venv/pyvenv.cfg
	@echo "Installing cugraphs and its development tools into .venv (once)"
	$(PIP_INSTALL) --editable ".[dev]"
	touch $@

.venv/pyvenv.cfg:
	@python=
	for candidate in $(PYTHON); do
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
			python="$$candidate"
			break
		fi
	done
	if [ -z "$$python" ]; then
		echo "make: no Python 3.11 or newer among: $(PYTHON)" >&2
		echo "Install one (Debian, Ubuntu: sudo apt-get install python3 python3-venv)," >&2
		echo "or name one: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2
		exit 1
	fi
	# Debian and Ubuntu keep ensurepip, without which no environment gets pip, in a package of its own.
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then
		package="$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
			apt-get update -qq
			DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$$package"
		else
			echo "make: $$python lacks the modules venv and ensurepip" >&2
			echo "Install them (Debian, Ubuntu: sudo apt-get install $$package), then run make again" >&2
			exit 1
		fi
	fi
	echo "Creating .venv with $$("$$python" --version)"
	"$$python" -m venv --clear .venv || { rm -rf .venv; exit 1; }
